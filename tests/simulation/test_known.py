"""What the simulator has found and what is mended since: docs/adr/0005 tells of each."""

from __future__ import annotations

from relume.core.verdict import Outcome
from relume.simulate.faults import Fault, Plan
from relume.simulate.memory import Who
from relume.simulate.settings import Settings
from relume.simulate.world import World


def world(workers, *plans, **more):
    usual = {"shards": 6, "blocks": 3, "pieces": 1, "steps": 3, "paces": (1.0,) * workers}
    return World(Settings(7, workers, **{**usual, **more}, faults=plans))


def test_a_worker_that_is_stuck_while_it_waits_is_found():
    """It is no more than that its main thread does not come back from the doorbell, with the interpreter held."""
    history = world(3, Plan(Fault.MUTE, "wait", None, 1, 0, 1e9))
    assert history.run() == Outcome.COMPLETED
    assert [loss.kind for loss in causes(history)] == ["hung"]


def test_a_survivor_that_waits_long_for_a_view_is_not_taken_for_hung():
    """Two that die slowly, one after the other: a survivor that has a leaf to seal stands still for long."""
    history = world(4, Plan(Fault.STUCK, "load", None, 1, 0, 2.5))

    def second():
        worker = next(worker for worker in history.newest if worker.who not in history.faults.harmed)
        history.faults.strike(Plan(Fault.STUCK, None, None, 1, 0, 2.5), worker, None, "publish")

    history.scheduler.after(2.3, second)
    assert history.run() == Outcome.COMPLETED
    assert len(history.faults.harmed) == 2


def test_the_first_step_after_a_checkpoint_is_counted_from_there():
    """The arena knows of no step before: a death in that step made the run begin anew at step 0 (seed 3)."""
    history = world(3, Plan(Fault.KILL, "backward", None, 5, 0, 0.0), steps=9, resume_step=5, every=2, chunks=2)
    assert history.run() == Outcome.COMPLETED
    assert set(history.faults.harmed) <= {Who(rank, 0) for rank in range(3)}
    assert history.core.view.step == 5


def causes(history):
    return [member.cause for member in history.core._members.values() if member.cause is not None]
