"""Chaos for fleets whose workers come back: the schedules of `relume chaos --respawn` on forked fleets, in seconds.

What is done, who is killed, how it is judged are the real ones; only how a worker comes to be differs (`tests.agents`).
The long forms go through many seeds: all stories, (rank, life) pairs, spares, all at once, scalings.
"""

from __future__ import annotations

import json
import os
import time

import pytest
import torch

from relume.chaos.agenda import Errand, Respawn, plan_return, steps_for
from relume.chaos.comeback import recoveries, scalings
from relume.chaos.driver import Fleet
from relume.chaos.evidence import read_evidence
from relume.chaos.outside import Killer
from relume.chaos.trial import check_kills
from relume.train import run as run_module
from tests import exact
from tests.agents import Agent
from tests.training import script
from tests.unit.tools.records import tool

WORKERS, SHARDS, EVERY = 4, 8, 8
LIMIT_S = 100.0
STEP_S = 0.02

pytestmark = pytest.mark.timeout(200)


def body_of(folder, record, steps, pause_s):
    """A worker's script, which records."""

    def after(_rank, _step):
        time.sleep(pause_s)

    base = script(folder, total=steps, after=after, global_batch_size=16, shards=SHARDS)

    def body(rank):
        os.environ["RELUME_RECORD"] = str(record)
        base(rank)

    return body


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the records of a plain run of so many steps."""
    folders = {}

    def plain(steps):
        if steps not in folders:
            folder = folders[steps] = tmp_path_factory.mktemp("reference")

            def run(path):
                body_of(path.parent, folder, steps, 0.0)(0)
                run_module._current.leave()
                torch.save({}, path)

            exact.in_child(run)
        return folders[steps]

    return plain


def judged(folder, reference, errand, seed):
    """Run the schedule of `seed`; return (all that is wrong, what came after each kill)."""
    schedule = plan_return(errand, seed)
    respawn = errand.respawn
    options = {
        "spares": respawn.spares,
        "seats": 2 * (max([errand.workers, *respawn.scale]) + respawn.spares),
        "mirror_every": EVERY,
        "max_restarts": 200,
        "environment": {"RELUME_TRAPS": json.dumps([kill.trap() for kill in schedule.exact])},
    }
    body = body_of(folder, folder / "record", errand.steps, STEP_S)
    with Agent(body, folder, workers=errand.workers, **options) as agent:
        killer = Killer(folder / "run", folder / "record", agent.pid, schedule.outside)
        killer.work(lambda: not agent._is_over(), time.monotonic() + LIMIT_S)
        code = agent.join(LIMIT_S)
    evidence = read_evidence(folder / "run", folder / "record")
    fleet = Fleet(code, 0, evidence, killer.killed_ns, killer.errors, killer.all_killed, killer.scaled)
    wrong = [*fleet.errors, *check_kills(schedule, fleet)]
    wrong += [f"{each} was not reached" for each in scalings(evidence, fleet.scaled) if each.reached_ns is None]
    backs = recoveries(evidence, fleet.all_kill_times, errand.workers, respawn.spares)
    wrong += [f"{back.who}: {back.missing}" for back in backs if not back.recovered]
    events = folder / "run" / "events.jsonl"
    wrong += tool.verify(reference, folder / "record", evidence.survivors, events=events)["differences"]
    return wrong, backs


def errand_of(kills=0, **changes):
    respawn = Respawn(mirror_every=EVERY, **changes)
    return Errand(WORKERS, steps_for(kills, respawn), SHARDS, kills, 1, many_blocks=False, respawn=respawn)


CASES = {
    "kills": errand_of(4),
    "a spare": errand_of(4, spares=1),
    "all at once": errand_of(kill_all=1),
    "scaled": errand_of(1, scale=(2, 5, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_whoever_is_killed_comes_back_and_nothing_differs(tmp_path, seed, reference, case):
    errand = CASES[case]
    wrong, backs = judged(tmp_path, reference(errand.steps), errand, seed % 1000)
    assert wrong == [], f"seed {seed % 1000}"
    assert len(backs) == errand.kills + WORKERS * errand.respawn.kill_all
    assert all(back.full_strength_ns for back in backs if back.member)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(13))
@pytest.mark.parametrize("spares", [0, 1, 2])
def test_many_seeds(tmp_path, reference, spares, number):
    errand = errand_of(8, spares=spares)
    assert judged(tmp_path, reference(errand.steps), errand, number)[0] == []


@pytest.mark.soak
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("spares", [0, 1])
def test_many_seeds_of_everything_at_once(tmp_path, reference, spares, number):
    errand = errand_of(3, spares=spares, kill_all=2, scale=(2, 5, 3))
    assert judged(tmp_path, reference(errand.steps), errand, number)[0] == []
