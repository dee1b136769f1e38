"""Bit for bit what the oracle says: plainly, in fleets, and in fleets whose workers are killed (Invariants 1 and 2).

Every worker here is a real process around the real agent, and dies a real death. `RELUME_TEST_SCHEDULES=1000` tries
that many random schedules of kills instead of forty.
"""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch

from tests import exact
from tests.fleet import run_fleet
from tests.scenarios_exact import ALL, BY_NAME

# Where a worker may die by itself; it is in "view" only while the loss of another one is handled.
PHASES = ("load", "forward", "backward", "publish", "wait", "sum", "take", "update", "between")
SCHEDULES = int(os.environ.get("RELUME_TEST_SCHEDULES", "40"))
LOOP_S = 0.15  # about how long the loop of a small scenario takes

every_scenario = pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)


def kill(rank, step, phase, nth=0):
    return {"rank": rank, "step": step, "phase": phase, "nth": nth, "action": "kill"}


def run_and_check(scenario, tmp_path, *, workers, kills=(), shards=None):
    """Run a fleet; nobody dies who was not to be killed, and every survivor has the oracle's bits. Returns the dead."""
    result = run_fleet(exact.body(scenario, shards, tmp_path), workers=workers, traps=kills, tmp_path=tmp_path)
    dead = {incident.rank for incident in result.incidents}
    assert dead <= {trap["rank"] for trap in kills}, result.output
    assert result.exit_code == 0, result.output
    exact.check(tmp_path, result.survivors, scenario, shards)
    return dead


@every_scenario
def test_a_plain_run_is_exact(scenario):
    trace = exact.in_child(lambda path: exact.train(scenario, scenario.shards, path))
    found = exact.differences(trace, scenario)
    assert not found, "\n".join(found[:20])


def test_the_comparison_is_not_blind():
    """Another number of shards rounds differently, and a run that stops early lacks something: both are seen."""
    scenario = BY_NAME["clipping"]
    found = exact.differences(exact.expected(scenario.name, 4), scenario, 6)
    assert {place.split("[")[0] for place in found} == {"means", "grads", "state"}
    trace = exact.expected(scenario.name, 4)
    assert exact.differences({**trace, "means": trace["means"][:-1]}, scenario) == ["means[5]: 1 bits: missing"]


def test_the_oracle_is_ordinary_training():
    """With one shard it is the loop that everybody writes; more shards are the same mean, rounded elsewhere."""
    one, four = (exact.expected("float64", shards)["state"]["model"] for shards in (1, 4))
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, rtol=1e-9, atol=1e-12)


@every_scenario
def test_an_undisturbed_fleet_is_exact(scenario, tmp_path):
    assert run_and_check(scenario, tmp_path, workers=3) == set()


@every_scenario
def test_a_fleet_that_loses_a_worker_is_exact(scenario, tmp_path):
    number = ALL.index(scenario)
    phase = ("backward", "publish", "update", "take", "forward", "between", "load")[number % 7]
    dead = run_and_check(scenario, tmp_path, workers=3, kills=[kill(number % 3, 2, phase)])
    if phase in {"take", "update", "between"}:  # other phases are not for a worker whose shards are empty
        assert dead == {number % 3}


@pytest.mark.parametrize("shards", [1, 4, 6, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_neither_workers_nor_shards_nor_losses_down_to_one_change_a_bit(workers, shards, tmp_path):
    """All but one die, one after the other, in phases that everybody passes."""
    kept = (workers + shards) % workers
    doomed = [rank for rank in range(workers) if rank != kept]
    kills = [kill(rank, i, ("update", "take", "between")[i % 3]) for i, rank in enumerate(doomed)]
    assert run_and_check(BY_NAME["dropout"], tmp_path, workers=workers, kills=kills, shards=shards) == set(doomed)


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_each_phase_changes_nothing(phase, tmp_path):
    """In the first step, in the middle and in the last but one."""
    kills = [kill(rank, 2 * rank, phase) for rank in range(3)]
    dead = run_and_check(BY_NAME["dropout"], tmp_path, workers=4, kills=kills)
    assert dead == {0, 1, 2} or (dead and phase in {"wait", "sum"})  # who comes last does not wait; not all sum


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_the_last_step_changes_nothing(phase, tmp_path):
    scenario = BY_NAME["dropout"]
    dead = run_and_check(scenario, tmp_path, workers=3, kills=[kill(1, scenario.steps - 1, phase)])
    assert dead == {1} or phase in {"wait", "sum"}


@pytest.mark.parametrize("phase", ["load", "backward", "publish", "take", "update"])
def test_all_but_one_killed_in_the_same_step_change_nothing(phase, tmp_path):
    dead = run_and_check(BY_NAME["dropout"], tmp_path, workers=4, kills=[kill(rank, 3, phase) for rank in (0, 1, 3)])
    assert dead == {0, 1, 3}


def test_a_second_kill_while_the_first_is_handled_changes_nothing(tmp_path):
    kills = [kill(0, 2, "backward"), kill(1, 2, "view"), kill(2, 4, "publish"), kill(3, 4, "view")]
    dead = run_and_check(BY_NAME["dropout"], tmp_path, workers=5, kills=kills, shards=10)
    assert {0, 2} <= dead


@pytest.mark.parametrize("name", ["fp16-grad-scaler", "batchnorm", "skipped-shards", "no-gradient-in-some-shards"])
def test_workers_without_a_shard_change_nothing(name, tmp_path):
    """Two shards for four workers, then for three."""
    dead = run_and_check(BY_NAME[name], tmp_path, workers=4, kills=[kill(0, 2, "update")], shards=2)
    assert dead == {0}


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_no_schedule_of_kills_changes_a_bit(number, seed, tmp_path):
    chance = random.Random(seed)
    scenario = chance.choice(ALL)
    shards = None if scenario.name == "ema" else chance.choice((None, None, 1, 2, 6, 13))  # its norm needs two samples
    workers = chance.randint(2, 5)
    doomed = chance.sample(range(workers), chance.randint(1, workers - 1))
    together = chance.random() < 0.3
    step = chance.randrange(scenario.steps)
    kills = [
        kill(
            rank,
            step if together else chance.randrange(scenario.steps),
            chance.choice((*PHASES, "view")),
            chance.choice((0, 0, 1)),
        )
        for rank in doomed
    ]
    print(f"{scenario.name}, {workers} workers, {shards or scenario.shards} shards, {kills}")
    run_and_check(scenario, tmp_path, workers=workers, kills=kills, shards=shards)


@pytest.mark.parametrize("number", range(SCHEDULES // 2))
def test_no_instant_of_death_changes_a_bit(number, seed, tmp_path):
    """The kernel ends all but one at random instants, between any two instructions."""
    chance = random.Random(seed)
    scenario = chance.choice([each for each in ALL if each.options.get("num_workers", 0) == 0])
    workers = chance.randint(2, 4)
    delays = {rank: chance.uniform(0.001, LOOP_S) for rank in chance.sample(range(workers), workers - 1)}
    print(f"{scenario.name}, {workers} workers, seconds until death: {delays}")
    train = exact.body(scenario, None, tmp_path)

    def doomed(rank):
        if rank in delays:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, delays[rank])
        train(rank)

    result = run_fleet(doomed, workers=workers, tmp_path=tmp_path)
    assert {incident.rank for incident in result.incidents} <= delays.keys(), result.output
    # Main may have died after the last step, while its script went on: then the run says so, and its training is whole.
    assert result.outcome in {"completed", "tail_lost"}, result.output
    survivors = [rank for rank in result.survivors if result.exit_code == 0 or exact.has_trace(tmp_path, rank)]
    exact.check(tmp_path, survivors, scenario)
