"""Who orders views: one state machine, no I/O (Invariant 7).

A loss goes through four stations, and each is an event: *lost* (there is evidence), *fenced* (it can no longer
write) while the survivors *promise*, *counted* (the arena is read, its seals now being final), *installed*. A new
loss on the way starts again with a higher ballot and fewer survivors (rule 9): view changes nest, and the newest
evidence wins. Nothing here ever waits for a worker that is known to be lost (scenario 1).

States::

    FORMING  --all joined, arena there-->  STEADY  --lost-->  BALLOT  --promised and fenced-->  COUNTING
                                             ^                   ^--lost--------------------------|
                                             '--------------------------installed-----------------'
    STEADY   --every member done-->  CLOSED  --last process gone-->  ENDED      (ENDED from anywhere, with a reason)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from relume.core import view as views
from relume.core.events import (
    AskPromise,
    Cause,
    CloseRun,
    Count,
    Counted,
    Diverged,
    Done,
    EndRun,
    Event,
    Exited,
    Fence,
    Fenced,
    Incident,
    InstallView,
    Instruction,
    Joined,
    Lost,
    NoMemory,
    Pledged,
    Progress,
    Reserve,
    Reserved,
    Tick,
)
from relume.core.limits import Limits
from relume.core.members import Member
from relume.core.plan import Moved, replan
from relume.core.verdict import Outcome, after_the_last_step, disagreement, divergence, listing, without_members
from relume.wire.messages import Ballot, Shape, View


class State(Enum):
    """Where the coordinator stands; see the module's drawing."""

    FORMING = "forming"
    STEADY = "steady"
    BALLOT = "ballot"
    COUNTING = "counting"
    CLOSED = "closed"
    ENDED = "ended"


@dataclass(slots=True)
class Coordinator:
    """Feed it events through `handle`; do what it answers, in order."""

    workers: int
    epoch: int
    limits: Limits
    min_workers: int = 1
    state: State = State.FORMING
    view: View | None = None
    ballot: Ballot = views.NONE
    _members: dict[int, Member] = field(default_factory=dict)
    _reserved: bool = False
    _shape: Shape | None = None
    _ballot_s: float = 0.0
    _promised_s: float = 0.0
    _open: list[int] = field(default_factory=list)
    _out: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._members = {rank: Member() for rank in range(self.workers)}
        self.ballot = (self.epoch, 0)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Return what to do about `event`, in order. `now` is in seconds of any monotonic clock."""
        self._out = []
        row = TRANSITIONS.get((self.state, type(event)))
        if row is not None:
            row(self, event, now)
        return self._out

    def alive(self) -> list[int]:
        """Return the ranks that nothing is held against and that have not left."""
        return [rank for rank, member in self._members.items() if member.alive and not member.exited]

    # Forming ------------------------------------------------------------------------------------------------

    def _joined(self, event: Joined, now: float) -> None:
        member = self._members[event.rank]
        if not member.alive:
            return
        if member.joined is None:
            member.joined_s = now
        member.joined = event
        if self._shape is None:
            self._shape = event.shape
            self._out.append(Reserve(event.shape))
        self._form(now)

    def _room(self, event: Reserved, now: float) -> None:
        del event
        self._reserved = True
        self._form(now)

    def _no_room(self, event: NoMemory, now: float) -> None:
        del now
        self._end(Outcome.NO_MEMORY, event.reason)

    def _form(self, now: float) -> None:
        alive = self.alive()
        fenced = all(m.fenced_s is not None for m in self._members.values() if not m.alive)
        joined = {rank: j for rank in alive if (j := self._members[rank].joined) is not None}
        if self._end_if_too_few(alive):
            return
        if not fenced or len(joined) < len(alive) or not self._reserved or self._shape is None:
            return
        difference = disagreement(joined, self._shape)
        if difference:
            self._end(Outcome.DIVERGED, difference)
            return
        self.view = views.first(self.epoch, alive, self._shape.shards)
        self.ballot = self.view.number
        self.state = State.STEADY
        for rank in alive:
            self._out.append(InstallView(rank, self.view))
        self._report({}, promised_s=now, installed_s=now)

    def _lost_forming(self, event: Lost, now: float) -> None:
        if self._condemn(event, now):
            self._form(now)

    def _fenced_forming(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._form(now)

    def _exited_forming(self, event: Exited, now: float) -> None:
        member = self._members[event.rank]
        if not member.alive:
            return
        member.exited = True
        member.cause = Cause("left_early", "its script ended without calling run.steps()")
        member.lost_s = member.fenced_s = now
        self._open.append(event.rank)
        self._form(now)

    # A loss ---------------------------------------------------------------------------------------------------

    def _lost(self, event: Lost, now: float) -> None:
        if self._condemn(event, now):
            self._call_ballot(now)

    def _condemn(self, event: Lost, now: float) -> bool:
        """Note the evidence and have the worker fenced; False if that is already under way."""
        member = self._members[event.rank]
        if not member.alive or member.exited:
            return False
        member.cause, member.lost_s = event.cause, now
        self._open.append(event.rank)
        self._out.append(Fence(event.rank))
        return True

    def _note_fence(self, rank: int, now: float) -> None:
        """Only who is out can be fenced, and only once: the first word of it is the time that counts."""
        member = self._members[rank]
        if not member.alive and member.fenced_s is None:
            member.fenced_s = now

    def _call_ballot(self, now: float) -> None:
        survivors = self.alive()
        if self._end_if_too_few(survivors):
            return
        self.state = State.BALLOT
        self.ballot = (self.epoch, self.ballot[1] + 1)
        self._ballot_s = now
        for rank in survivors:
            self._out.append(AskPromise(rank, self.ballot))

    def _fenced(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._count(now)

    def _pledged(self, event: Pledged, now: float) -> None:
        member = self._members[event.rank]
        member.promised = max(member.promised, event.ballot)
        self._count(now)

    def _count(self, now: float) -> None:
        """Have the arena read once nobody can write: survivors promised, the rest fenced (Invariant 4)."""
        if any(self._members[rank].promised < self.ballot for rank in self.alive()):
            return
        if any(self._members[rank].fenced_s is None for rank in self._open):
            return
        self.state = State.COUNTING
        self._promised_s = now
        self._out.append(Count(self.ballot))

    def _counted(self, event: Counted, now: float) -> None:
        if event.ballot != self.ballot or self.view is None:
            return
        plan = replan(self.view, self.ballot, self.alive(), event.inventory)
        self.view = plan.view
        self.state = State.STEADY
        for rank in self.view.members:
            self._out.append(InstallView(rank, self.view))
        self._report(plan.moved, promised_s=self._promised_s, installed_s=now)
        self._close_if_done(now)

    def _report(self, moved: Moved, *, promised_s: float, installed_s: float) -> None:
        """Tell of every loss since the last view; both times are 0.0 where no view followed."""
        for rank in self._open:
            member = self._members[rank]
            assert member.cause is not None
            self._out.append(
                Incident(
                    rank=rank,
                    cause=member.cause,
                    ballot=self.ballot,
                    step=self.view.step if self.view else -1,
                    moved=dict(moved.get(rank, {})),
                    lost_s=member.lost_s,
                    fenced_s=member.fenced_s if member.fenced_s is not None else member.lost_s,
                    promised_s=promised_s,
                    installed_s=installed_s,
                )
            )
        self._open = []

    # The end --------------------------------------------------------------------------------------------------

    def _done(self, event: Done, now: float) -> None:
        self._note_done(event)
        self._close_if_done(now)

    def _done_in_ballot(self, event: Done, now: float) -> None:
        del now
        self._note_done(event)

    def _note_done(self, event: Done) -> None:
        member = self._members[event.rank]
        member.done, member.digest = event.step, event.digest or member.digest

    def _diverged(self, event: Diverged, now: float) -> None:
        """Replicas that differ make every further step worthless, and nobody can say here who is right (scenario 5)."""
        del now
        self._end(Outcome.DIVERGED, event.text)

    def _close_if_done(self, now: float) -> None:
        """Close when every member has left its loop at one step; a member that left alone is lost."""
        if self.state is not State.STEADY or self.view is None:
            return
        ends = {rank: self._members[rank].done for rank in self.view.members}
        finished = {end for end in ends.values() if end is not None}
        if finished and None not in ends.values() and len(finished) == 1:
            digests = {rank: digest for rank in ends if (digest := self._members[rank].digest)}
            if len(set(digests.values())) > 1:
                self._end(Outcome.DIVERGED, divergence("after the last step", "state", digests))
                return
            self.state = State.CLOSED
            for rank in self.view.members:
                self._out.append(CloseRun(rank, self.view))
            return
        for rank, end in ends.items():
            beyond = any(self._members[other].step >= end for other in ends) if end is not None else False
            if end is not None and (beyond or end < max(finished)):
                text = (
                    f"it left run.steps before step {end} while others went on; a run ends where all workers end it, "
                )
                cause = Cause("left_early", text + "on a value that is equal on all (step.mean, run.vars)")
                self._lost(Lost(rank, cause), now)
                return

    def _progress(self, event: Progress, now: float) -> None:
        self._members[event.rank].step = event.step
        self._close_if_done(now)

    def _exited(self, event: Exited, now: float) -> None:
        """A clean exit before the end: the script left while the run goes on."""
        member = self._members[event.rank]
        if not member.alive:
            return
        cause = Cause("left_early", "its script ended before the run's last step")
        self._lost(Lost(event.rank, cause), now)

    def _exited_closed(self, event: Exited, now: float) -> None:
        del now
        member = self._members[event.rank]
        member.exited = member.exited or member.alive
        self._end_if_gone()

    def _lost_closed(self, event: Lost, now: float) -> None:
        member = self._members[event.rank]
        if not member.alive or member.exited:
            return
        self._condemn(event, now)
        self._report({}, promised_s=now, installed_s=now)

    def _fenced_closed(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._end_if_gone()

    def _end_if_gone(self) -> None:
        if self.alive() or any(not m.alive and m.fenced_s is None for m in self._members.values()):
            return
        assert self.view is not None
        self._end(*after_the_last_step(self.view.main, self._members[self.view.main]))

    def _end_if_too_few(self, survivors: list[int]) -> bool:
        """End the run if nobody is left, or fewer than it may go on with (scenario 17)."""
        if not survivors:
            self._end_without_members()
        elif len(survivors) < self.min_workers:
            left = "1 worker is" if len(survivors) == 1 else f"{len(survivors)} workers are"
            causes = [m.cause for m in self._members.values() if m.cause is not None]
            self._end(Outcome.TOO_FEW, f"{left} left and --min-workers is {self.min_workers}: {listing(causes)}")
        else:
            return False
        return True

    def _end_without_members(self) -> None:
        outcome, reason = without_members(list(self._members.values()), began=self.view is not None)
        if outcome is Outcome.NO_STEPS:
            self._open = []  # one mistake in a script, and no incident of any worker
        self._end(outcome, reason)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.state = State.ENDED
        self._report({}, promised_s=0.0, installed_s=0.0)
        self._out.append(EndRun(outcome.value, reason))

    # Time ---------------------------------------------------------------------------------------------------

    def _tick_forming(self, event: Tick, now: float) -> None:
        """A worker that never reaches its first step does not hold the others for ever (Invariant 6)."""
        self._tick_fence(event, now)
        joined = [m.joined_s for m in self._members.values() if m.alive and m.joined is not None]
        if self.state is State.ENDED or not joined or now - min(joined) < self.limits.start_s:
            return
        for rank in self.alive():
            if self._members[rank].joined is None:
                text = f"it did not reach run.steps() within {self.limits.start_s:.0f} s while others stood there"
                self._lost_forming(Lost(rank, Cause("silent", text)), now)

    def _tick_ballot(self, event: Tick, now: float) -> None:
        """Whoever does not promise in time is lost too."""
        self._tick_fence(event, now)
        if self.state is State.ENDED or now - self._ballot_s < self.limits.promise_s:
            return
        silent = [rank for rank in self.alive() if self._members[rank].promised < self.ballot]
        text = f"it did not answer a ballot within {self.limits.promise_s:.1f} s"
        condemned = [rank for rank in silent if self._condemn(Lost(rank, Cause("silent", text)), now)]
        if condemned:
            self._call_ballot(now)

    def _tick_fence(self, event: Tick, now: float) -> None:
        """A worker that the kernel does not let go of could still write: nobody goes on, nor waits for ever."""
        del event
        for rank, member in self._members.items():
            if not member.alive and member.fenced_s is None and now - member.lost_s >= self.limits.fence_s:
                text = f"worker {rank} was killed {now - member.lost_s:.0f} s ago and the kernel does not let go of it "
                self._end(Outcome.UNFENCED, text + "(a device or file system that hangs?), so it could still write")
                return


TRANSITIONS: dict[tuple[State, type[Event]], Callable[[Coordinator, Any, float], None]] = {
    (State.FORMING, Joined): Coordinator._joined,
    (State.FORMING, Reserved): Coordinator._room,
    (State.FORMING, NoMemory): Coordinator._no_room,
    (State.FORMING, Lost): Coordinator._lost_forming,
    (State.FORMING, Fenced): Coordinator._fenced_forming,
    (State.FORMING, Exited): Coordinator._exited_forming,
    (State.FORMING, Tick): Coordinator._tick_forming,
    (State.STEADY, Lost): Coordinator._lost,
    (State.STEADY, Done): Coordinator._done,
    (State.STEADY, Progress): Coordinator._progress,
    (State.STEADY, Diverged): Coordinator._diverged,
    (State.STEADY, Exited): Coordinator._exited,
    (State.BALLOT, Lost): Coordinator._lost,
    (State.BALLOT, Fenced): Coordinator._fenced,
    (State.BALLOT, Pledged): Coordinator._pledged,
    (State.BALLOT, Done): Coordinator._done_in_ballot,
    (State.BALLOT, Diverged): Coordinator._diverged,
    (State.BALLOT, Exited): Coordinator._exited,
    (State.BALLOT, Tick): Coordinator._tick_ballot,
    (State.COUNTING, Lost): Coordinator._lost,
    (State.COUNTING, Counted): Coordinator._counted,
    (State.COUNTING, Done): Coordinator._done_in_ballot,
    (State.COUNTING, Diverged): Coordinator._diverged,
    (State.COUNTING, Exited): Coordinator._exited,
    (State.CLOSED, Lost): Coordinator._lost_closed,
    (State.CLOSED, Fenced): Coordinator._fenced_closed,
    (State.CLOSED, Exited): Coordinator._exited_closed,
    (State.CLOSED, Tick): Coordinator._tick_fence,
}
"""Which event means something in which state. A pair that is not here changes nothing."""
