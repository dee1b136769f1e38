"""What the simulator has found and what is not mended yet: docs/adr/0005 tells of each.

When one of these passes, take its mark away (and `Innocent.forgive` with the second).
"""

from __future__ import annotations

import pytest

from relume.core.verdict import Outcome
from relume.simulate.checkers import Innocent, Violation
from relume.simulate.faults import Fault, Plan
from relume.simulate.settings import Settings
from relume.simulate.world import World


def world(workers, *plans):
    paces = (1.0,) * workers
    return World(Settings(7, workers, shards=6, blocks=3, pieces=1, steps=3, paces=paces, faults=plans))


@pytest.mark.xfail(strict=True, raises=Violation, reason="whoever waits is never suspected, not even if it is stuck")
def test_a_worker_that_is_stuck_while_it_waits_is_found():
    """It is no more than that its main thread does not come back from the doorbell, with the interpreter held."""
    assert world(3, Plan(Fault.MUTE, "wait", None, 1, 0, 1e9)).run() == Outcome.COMPLETED


@pytest.mark.xfail(strict=True, raises=Violation, reason="waiting for a view within one's own work counts as standing")
def test_a_survivor_that_waits_long_for_a_view_is_not_taken_for_hung(monkeypatch):
    """Two that die slowly, one after the other: a survivor that has a leaf to seal stands still for too long."""
    monkeypatch.setattr(Innocent, "forgive", False)
    history = world(4, Plan(Fault.STUCK, "load", None, 1, 0, 2.5))

    def second():
        worker = next(worker for worker in history.workers if worker.rank not in history.faults.harmed)
        history.faults.strike(Plan(Fault.STUCK, None, None, 1, 0, 2.5), worker, None, "publish")

    history.scheduler.after(2.3, second)
    assert history.run() == Outcome.COMPLETED
