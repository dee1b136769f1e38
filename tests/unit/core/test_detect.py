"""Progress is what is watched: the one that stands still in its own work is the culprit (scenario 2)."""

from __future__ import annotations

import pytest

from relume.arena.progress import PHASES
from relume.core.detect import EXEMPT, STOPPED_S, Sample, Watch


def sample(rank=0, counter=1, phase="forward", stopped=False):
    return Sample(rank, counter, phase, 3, 2, stopped)


def test_only_known_phases_are_exempt():
    assert set(PHASES) > EXEMPT


@pytest.mark.parametrize("phase", sorted(set(PHASES) - EXEMPT))
def test_standing_still_in_its_own_work_for_the_limit_is_a_hang(phase):
    watch = Watch(10.0)
    assert watch.look([sample(phase=phase)], 100.0) == []
    assert watch.look([sample(phase=phase)], 109.9) == []
    [(rank, cause)] = watch.look([sample(phase=phase)], 110.0)
    assert (rank, cause.kind) == (0, "hung")
    assert cause.evidence == {"phase": phase, "step": "3", "shard": "2"}
    assert "10.0 s" in cause.text


@pytest.mark.parametrize("phase", sorted(EXEMPT))
def test_the_users_own_time_is_no_hang(phase):
    watch = Watch(10.0)
    for now in (0.0, 1e3, 1e6):
        assert watch.look([sample(phase=phase)], now) == []


def test_whoever_waits_looks_again_and_so_moves_and_one_that_does_not_is_stuck_there():
    watch = Watch(10.0)
    for look in range(30):
        assert (
            watch.look([sample(phase="wait", counter=look), sample(1, phase="publish", counter=look)], 1.0 * look) == []
        )
    stuck = [sample(phase="wait", counter=29), sample(1, phase="publish", counter=77)]
    assert [rank for rank, _ in watch.look(stuck, 39.0)] == [0]


def test_any_progress_starts_the_limit_anew():
    watch = Watch(10.0)
    for counter in range(20):
        assert watch.look([sample(counter=counter)], 9.0 * counter) == []
    assert watch.idle_s(0, 9.0 * 19 + 4.0) == 4.0
    assert watch.idle_s(7, 1e9) == 0.0, "nothing is known of a worker that was never seen"


def test_victims_wait_and_are_not_accused_with_the_culprit():
    watch = Watch(10.0)
    watch.look([sample(0, phase="wait"), sample(1, phase="backward"), sample(2, phase="wait")], 0.0)
    later = [sample(0, 60, phase="wait"), sample(1, phase="backward"), sample(2, 59, phase="wait")]
    assert [rank for rank, _ in watch.look(later, 60.0)] == [1]


def test_a_stopped_process_is_found_within_seconds_in_any_phase():
    for phase in PHASES:
        watch = Watch(300.0)
        assert watch.look([sample(phase=phase, stopped=True)], 0.0) == []
        assert watch.look([sample(phase=phase, stopped=True)], STOPPED_S - 0.1) == []
        [(_, cause)] = watch.look([sample(phase=phase, stopped=True)], STOPPED_S)
        assert cause.kind == "stopped"


def test_a_debugger_that_stops_it_for_a_moment_does_no_harm():
    watch = Watch(300.0)
    for now in range(0, 100, 4):
        assert watch.look([sample(phase="wait", stopped=True)], now) == []
        assert watch.look([sample(phase="wait")], now + 2) == []


def test_a_stop_counts_as_soon_as_a_hang_would():
    watch = Watch(2.0)
    watch.look([sample(phase="wait", stopped=True)], 0.0)
    [(_, cause)] = watch.look([sample(phase="wait", stopped=True)], 2.0)
    assert cause.kind == "stopped"
