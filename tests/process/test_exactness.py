"""Bit for bit what the oracle says: plainly, in fleets, and in fleets whose workers are killed (Invariants 1 and 2).

Every worker here is a real process around the real agent, and is killed with SIGKILL. `RELUME_TEST_SCHEDULES=1000`
tries that many random schedules of kills instead of forty.
"""

from __future__ import annotations

import os
import random

import pytest

from tests import exact
from tests.fleet import run_fleet
from tests.scenarios_exact import ALL, BY_NAME

PHASES = ("load", "forward", "backward", "publish", "wait", "sum", "take", "update", "between", "view")
SCHEDULES = int(os.environ.get("RELUME_TEST_SCHEDULES", "40"))

every_scenario = pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)


def kill(rank, step, phase, nth=0):
    return {"rank": rank, "step": step, "phase": phase, "nth": nth, "action": "kill"}


def run_and_check(scenario, tmp_path, *, workers, kills=(), shards=None):
    """Run a fleet; every worker that was not to be killed survives, and every survivor has the oracle's bits."""
    result = run_fleet(exact.body(scenario, shards, tmp_path), workers=workers, traps=kills, tmp_path=tmp_path)
    doomed = {trap["rank"] for trap in kills}
    assert result.exit_code == 0
    assert set(result.survivors) >= set(range(workers)) - doomed
    exact.check(tmp_path, result.survivors, scenario, shards)
    return result


@every_scenario
def test_a_plain_run_is_exact(scenario):
    trace = exact.in_child(lambda path: exact.train(scenario, scenario.shards, path))
    found = exact.differences(trace, scenario)
    assert not found, "\n".join(found[:20])


@every_scenario
def test_an_undisturbed_fleet_is_exact(scenario, tmp_path):
    result = run_and_check(scenario, tmp_path, workers=3)
    assert sorted(result.survivors) == [0, 1, 2]
    assert result.incidents == []


@every_scenario
def test_a_fleet_that_loses_a_worker_is_exact(scenario, tmp_path):
    number = ALL.index(scenario)
    phase = ("backward", "publish", "sum", "update", "take", "forward", "between", "load")[number % 8]
    victim = number % 3
    result = run_and_check(scenario, tmp_path, workers=3, kills=[kill(victim, 2, phase)])
    if phase in {"update", "between"}:  # each worker passes them in every step
        assert sorted(result.survivors) == [rank for rank in range(3) if rank != victim]


@pytest.mark.parametrize("shards", [1, 4, 6, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_neither_workers_nor_shards_nor_losses_down_to_one_change_a_bit(workers, shards, tmp_path):
    """All but one die, one after the other, in different phases."""
    kept = (workers + shards) % workers
    doomed = [rank for rank in range(workers) if rank != kept]
    phases = ("update", "backward", "between", "wait", "take", "forward")
    kills = [kill(rank, i % 6, phases[i % 6]) for i, rank in enumerate(doomed)]
    run_and_check(BY_NAME["dropout"], tmp_path, workers=workers, kills=kills, shards=shards)


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_each_phase_of_each_step_changes_nothing(phase, tmp_path):
    """Worker r dies in step 2r: in the first step, in the middle, and in the last but one."""
    kills = [kill(rank, 2 * rank, phase) for rank in range(3)]
    run_and_check(BY_NAME["dropout"], tmp_path, workers=4, kills=kills)


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_the_last_step_changes_nothing(phase, tmp_path):
    scenario = BY_NAME["dropout"]
    run_and_check(scenario, tmp_path, workers=3, kills=[kill(1, scenario.steps - 1, phase)])


@pytest.mark.parametrize("phase", ["load", "backward", "publish", "take", "update"])
def test_all_but_one_killed_in_the_same_instant_change_nothing(phase, tmp_path):
    run_and_check(BY_NAME["dropout"], tmp_path, workers=4, kills=[kill(rank, 3, phase) for rank in (0, 1, 3)])


def test_a_second_kill_while_the_first_is_handled_changes_nothing(tmp_path):
    kills = [kill(0, 2, "backward"), kill(1, 2, "view"), kill(2, 3, "view"), kill(3, 3, "publish")]
    run_and_check(BY_NAME["dropout"], tmp_path, workers=5, kills=kills)


@pytest.mark.parametrize("name", ["fp16-grad-scaler", "batchnorm", "skipped-shards", "no-gradient-in-some-shards"])
def test_workers_without_a_shard_change_nothing(name, tmp_path):
    """Two shards for four workers, then for three."""
    run_and_check(BY_NAME[name], tmp_path, workers=4, kills=[kill(0, 2, "update")], shards=2)


@pytest.mark.parametrize("number", range(SCHEDULES))
def test_no_schedule_of_kills_changes_a_bit(number, seed, tmp_path):
    chance = random.Random(seed)
    heavy = {"augmentation-in-loaders"}  # loader processes cost a fleet half a second
    scenario = chance.choice([each for each in ALL if each.name not in heavy or chance.random() < 0.3])
    workers = chance.randint(2, 5)
    doomed = chance.sample(range(workers), chance.randint(1, workers - 1))
    together = chance.random() < 0.3
    step = chance.randrange(scenario.steps)
    kills = [
        kill(
            rank,
            step if together else chance.randrange(scenario.steps),
            chance.choice(PHASES),
            chance.choice((0, 0, 1)),
        )
        for rank in doomed
    ]
    print(f"{scenario.name}, {workers} workers, {kills}")
    run_and_check(scenario, tmp_path, workers=workers, kills=kills)
