"""Who orders views: one state machine, no I/O (Invariant 7).

A loss goes through four stations, and each is an event: *lost* (there is evidence), *fenced* (it can no longer
write) while the survivors *promise*, *counted* (the arena is read, its seals now being final), *installed*. A new
loss on the way starts again with a higher ballot and fewer survivors (rule 9): view changes nest, and the newest
evidence wins. Nothing here ever waits for a worker that is known to be lost (scenario 1).

Whoever comes back joins beside: it replays until it is level, and is in the next view that is needed anyway, or in one
that is proposed for it (`admitting`). Only when too few are left does the run wait for them, with all that is sealed.

States::

    FORMING  --all joined, arena there-->  STEADY  --lost-->  BALLOT  --promised and fenced-->  COUNTING
                                            ^  ^                 ^--lost--------------------------|  |
                                            |  '--------------------------installed---------------'  | too few
                                            '------------enough are level------------  PAUSED  <-----'
    STEADY   --every member done-->  CLOSED  --last process gone-->  ENDED      (ENDED from anywhere, with a reason)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relume.core import view as views
from relume.core.admission import GATHER_S
from relume.core.closing import Closing
from relume.core.events import (
    Accepted,
    AskPromise,
    Cause,
    Count,
    Counted,
    Diverged,
    Done,
    Event,
    Exited,
    Fenced,
    InstallView,
    Instruction,
    Joined,
    Leaving,
    Level,
    Lost,
    NoMemory,
    Pledged,
    Progress,
    Refused,
    Reserve,
    Reserved,
    Scale,
    StartReplay,
    Tell,
    Tick,
)
from relume.core.members import Loss
from relume.core.plan import Inventory, Plan, replan
from relume.core.states import State
from relume.core.verdict import Outcome, disagreement
from relume.wire.messages import View

__all__ = ["TRANSITIONS", "Coordinator", "State"]


@dataclass(slots=True)
class Coordinator(Closing):
    """Feed it events through `handle`; do what it answers, in order."""

    _reserved: bool = False
    _ballot_s: float = 0.0
    _promised_s: float = 0.0
    _paused_s: float = 0.0
    _enough_s: float = 0.0
    _inventory: Inventory | None = None

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Return what to do about `event`, in order. `now` is in seconds of any monotonic clock."""
        self._out = []
        row = TRANSITIONS.get((self.state, type(event)))
        rank = getattr(event, "rank", None)
        if row is not None and (rank is None or getattr(event, "life", 0) == self._members[rank].life):
            row(self, event, now)
        return self._out

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
        if self.resume_step:
            self._out.append(StartReplay(event.rank))
        self._form(now)

    def _room(self, event: Reserved, now: float) -> None:
        del event
        self._reserved = True
        self._form(now)

    def _no_room(self, event: NoMemory, now: float) -> None:
        del now
        self._end(Outcome.NO_MEMORY, event.reason)

    def _level_forming(self, event: Level, now: float) -> None:
        self._members[event.rank].level = event.step
        self._form(now)

    def _crew(self) -> list[int]:
        """Return those that the first view waits for in any case: the ones that were started for it."""
        return [rank for rank in self.alive() if rank < self.workers and not self._members[rank].life]

    def _form(self, now: float) -> None:
        alive = self.alive()
        if self._end_if_too_few(alive):
            return
        crew = self._crew()
        ready = {r: j for r in alive if (j := self._members[r].joined) is not None and self._is_ready(r)}
        enough = (
            len(ready) >= max(1, min(self.workers, len(alive))) if not crew else all(rank in ready for rank in crew)
        )
        if self._unfenced() or not enough or not self._reserved:
            return
        assert self._shape is not None
        difference = disagreement(ready, self._shape)
        if difference:
            self._end(Outcome.DIVERGED, difference)
            return
        others = [rank for rank in ready if rank not in crew]
        members = sorted([*crew, *others[: max(0, self.workers - len(crew))]])
        if len(members) < max(1, self.min_workers):
            return  # more are on their way
        self._agreed = ready[members[0]]
        for rank in alive:
            self._members[rank].started_s = max(self._members[rank].started_s, now)  # a late one's time begins
        self.view = views.first(self.epoch, members, self._shape.shards, self.resume_step)
        self.ballot = self.view.number
        self.state = State.STEADY
        self._install(self.view)
        self._report({}, promised_s=now, installed_s=now)
        if not self.resume_step:  # those who are not in it may follow
            self._out += [StartReplay(rank) for rank in ready if rank not in members]
        self._staff(now)

    def _is_ready(self, rank: int) -> bool:
        return not self.resume_step or self._members[rank].level is not None

    def _lost_forming(self, event: Lost, now: float) -> None:
        if self._condemn(event, now):
            self._form(now)

    def _fenced_forming(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._form(now)
        if self.state is State.FORMING:
            self._staff(now)

    def _exited_forming(self, event: Exited, now: float) -> None:
        member = self._members[event.rank]
        if not member.alive:
            return
        cause = Cause("left_early", "its script ended without calling run.steps()")
        self._note_loss(member, Loss(event.rank, member.life, cause, now, now), now)
        self._form(now)

    # Joiners ------------------------------------------------------------------------------------------------

    def _joined_later(self, event: Joined, now: float) -> None:
        """Somebody comes to a run that is under way: with the same terms, or not at all."""
        member = self._members[event.rank]
        if not member.alive or member.inside or member.joined is not None:
            return
        assert self._agreed is not None
        assert self._shape is not None
        difference = disagreement({-1: self._agreed, event.rank: event}, self._shape)
        if difference:
            text = difference.replace("worker -1", "the run")
            self._lost_aside(Cause("profile", f"it was refused, {text}"), event.rank, now)
            return
        member.joined, member.joined_s = event, now
        self._out.append(StartReplay(event.rank, self.ended_before))

    def _level_steady(self, event: Level, now: float) -> None:
        self._note_level(event, now)
        self._withdraw_if_outdated()
        self._admit(now)

    def _note_level(self, event: Level, now: float) -> None:
        del now
        member = self._members[event.rank]
        if member.alive and member.joined is not None:
            member.level = max(event.step, member.level or 0)

    def _level_paused(self, event: Level, now: float) -> None:
        self._note_level(event, now)
        self._resume(now)

    def _leaving(self, event: Leaving, now: float) -> None:
        """A worker was told to go: the run goes on with one less, and nobody comes in its place."""
        member = self._members[event.rank]
        if not member.alive or member.leaving:
            return
        here = len([rank for rank in self.alive() if not self.leaves(rank)])
        self._withdraw()
        if here > self.workers + self.spares:
            pass  # as many as are wanted stay
        elif here > self.workers:
            self.spares -= 1
        elif self.workers > self.min_workers:
            self.workers -= 1
        else:
            text = f"worker {event.rank} was told to go ({event.reason}), and the run needs {self.min_workers}: "
            self._out.append(Tell("leaving", text + "so many work on until others take over", event.rank))
        self._send_away(event.rank, event.reason)
        if self.state in {State.STEADY, State.PAUSED}:
            self._staff(now)
            self._admit(now)

    def _leaving_forming(self, event: Leaving, now: float) -> None:
        self._lost_forming(Lost(event.rank, Cause("planned", f"it was told to go ({event.reason})"), event.life), now)

    def _scale(self, event: Scale, now: float) -> None:
        self.workers = event.workers
        self._withdraw()
        for member in self._members.values():
            if member.loss is not None and member.free and not self._staffing.may_return(member):
                member.vacant = True  # whoever asks for so many wants another try
        self._staff(now)
        self._admit(now)

    def _scale_later(self, event: Scale, now: float) -> None:
        del now
        self.workers = event.workers

    # A loss ---------------------------------------------------------------------------------------------------

    def _lost(self, event: Lost, now: float) -> None:
        member = self._members[event.rank]
        if member.alive and not member.inside:
            self._lost_aside(event.cause, event.rank, now)
            self._withdraw_without(event.rank, now)
        elif self._condemn(event, now):
            self._call_ballot(now)

    def _call_ballot(self, now: float) -> None:
        self._proposal = None  # the ballot cancels it (rule 10)
        survivors = self.party()
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

    def _fenced_aside(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)

    def _fenced_steady(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._staff(now)

    def _pledged(self, event: Pledged, now: float) -> None:
        member = self._members[event.rank]
        member.promised = max(member.promised, event.ballot)
        self._count(now)

    def _count(self, now: float) -> None:
        """Have the arena read once nobody can write: survivors promised, the rest fenced (Invariant 4)."""
        if any(self._members[rank].promised < self.ballot for rank in self.party()):
            return
        if self._unfenced():
            return
        self.state = State.COUNTING
        self._promised_s = now
        self._out.append(Count(self.ballot))

    def _counted(self, event: Counted, now: float) -> None:
        if event.ballot != self.ballot or self.view is None:
            return
        inventory = event.inventory
        following, self.following = self.following, None
        if following is not None and inventory.complete + 1 >= following.step:
            self.view, following = following, None  # its first step may have begun
        for rank, member in self._members.items():
            if member.inside and rank not in self.view.members:
                member.inside = False
                if following is not None:
                    member.leaving = ""  # a joiner again: sent away if it is not needed, taken in if it is
        self._inventory, self._paused_s = inventory, now
        survivors = self.party()
        joiners = [rank for rank in self._level() if inventory.taken.get(rank, -1) >= inventory.complete - 1]
        members = [*survivors, *joiners[: max(0, self.workers - len(survivors))]]
        if len(members) >= max(1, self.min_workers):
            self._go_on(replan(self.view, self.ballot, members, inventory), now, came=len(members) > len(survivors))
        else:
            self._pause(now)

    def _go_on(self, plan: Plan, now: float, *, came: bool) -> None:
        self.view = plan.view
        self.state = State.STEADY
        self._install(self.view)
        self._report(plan.moved, promised_s=self._promised_s, installed_s=now, rung=3 if came else 2)
        self._close_if_done(now)
        if self.state is State.STEADY:
            self._staff(now)
            self._admit(now)

    def _install(self, view: View) -> None:
        for rank in view.members:
            member = self._members[rank]
            if not member.inside or member.steady_from is None:
                member.steady_from = view.step
            member.inside = True
            self._out.append(InstallView(rank, view))
        for rank in self.alive():  # it may have promised in its last step: it goes once it hears of a view without it
            if self.leaves(rank) and not self._members[rank].inside:
                self._out.append(InstallView(rank, view))

    # Too few are left -------------------------------------------------------------------------------------------

    def _pause(self, now: float) -> None:
        """Wait for workers to come back: what is sealed stands, and those that are left have promised (scenario 17)."""
        self.state = State.PAUSED
        self._report({}, promised_s=self._promised_s, installed_s=0.0, rung=3)
        left = len(self.party())
        are = "is" if left == 1 else "are"
        text = f"{left} of the {self.min_workers} workers that it needs {are} left" if left else "no worker is left"
        self._enough_s = 0.0
        limit = f"the run waits up to {self.limits.pause_s:.0f} s for others to come back"
        self._out.append(Tell("paused", f"{text}: {limit}"))
        self._staff(now)
        self._resume(now)

    def _resume(self, now: float) -> None:
        assert self.view is not None
        assert self._inventory is not None
        survivors = self.party()
        members = [*survivors, *self._level()][: max(self.workers, len(survivors))]
        enough = len(members) >= max(1, self.min_workers)
        self._enough_s = (self._enough_s or now) if enough else 0.0
        if not enough:
            return
        if len(members) >= self.workers or not self._replaying() or now - self._enough_s >= GATHER_S:
            self._promised_s = now
            self._go_on(replan(self.view, self.ballot, members, self._inventory), now, came=True)

    def _lost_paused(self, event: Lost, now: float) -> None:
        member = self._members[event.rank]
        if member.alive and member.inside:
            self._lost(event, now)
            return
        self._lost_aside(event.cause, event.rank, now)
        self._end_if_too_few(self.party())

    def _tick_paused(self, event: Tick, now: float) -> None:
        self._tick_fence(event, now)
        if self.state is not State.PAUSED:
            return
        self._look_for_late(now)
        if self._end_if_too_few(self.party()):
            return
        if now - self._paused_s >= self.limits.pause_s:
            self._end_short(f"too few came back within {self.limits.pause_s:.0f} s")
            return
        self._staff(now)
        self._resume(now)

    # While there is peace -------------------------------------------------------------------------------------

    def _done(self, event: Done, now: float) -> None:
        self._note_done(event)
        self._close_if_done(now)

    def _done_in_ballot(self, event: Done, now: float) -> None:
        del now
        self._note_done(event)

    def _close_if_done(self, now: float) -> None:
        """Close when every member has left its loop at one step; a member that left alone is lost."""
        self._close_if_all_done()
        if self.state is State.STEADY and (alone := self._left_alone()) is not None:
            rank, text = alone
            self._lost(Lost(rank, Cause("left_early", text)), now)

    def _exited(self, event: Exited, now: float) -> None:
        """A clean exit before the end: by plan, or because the script left while the run goes on."""
        rank, member = event.rank, self._members[event.rank]
        if not member.alive:
            return
        following = self.following
        if following is not None and event.taken is not None and event.taken + 1 < following.step:
            following = None  # it goes when that view begins; before, it is a loss like any other
        if member.leaving and following is not None and rank not in following.members:
            self._begin_following()
        if member.leaving and not member.inside:
            self._note_left(rank)
            if self.state is State.BALLOT:
                self._count(now)
            elif self.state is State.STEADY:
                self._close_if_done(now)  # the others may have left their loops where it left
            return
        cause = Cause("left_early", "its script ended before the run's last step")
        self._lost(Lost(rank, cause), now)

    def _progress(self, event: Progress, now: float) -> None:
        self._members[event.rank].step = event.step
        self._settle_following()
        self._close_if_done(now)

    # Time ---------------------------------------------------------------------------------------------------

    def _tick_forming(self, event: Tick, now: float) -> None:
        """A worker that never reaches its first step does not hold the others for ever (Invariant 6)."""
        self._tick_fence(event, now)
        joined = [m.joined_s for m in self._members.values() if m.alive and m.joined is not None]
        if self.state is State.ENDED:
            return
        if joined and now - min(joined) >= self.limits.start_s:
            for rank in self.alive():
                member = self._members[rank]
                if member.joined is None and now - member.started_s >= self.limits.start_s:
                    text = f"it did not reach run.steps() within {self.limits.start_s:.0f} s while others stood there"
                    self._lost_forming(Lost(rank, Cause("silent", text)), now)
        if self.state is State.FORMING:
            self._staff(now)

    def _look_for_late(self, now: float) -> None:
        """Nobody waits for a joiner, but its seat shall not be taken for ever by one that does not come."""
        limit = 2 * self.limits.start_s
        for rank, member in list(self._members.items()):
            if member.alive and member.joined is None and now - member.started_s >= limit:
                self._lost_aside(Cause("silent", f"it did not reach run.steps() within {limit:.0f} s"), rank, now)

    def _tick_steady(self, event: Tick, now: float) -> None:
        self._tick_fence(event, now)
        if self.state is State.ENDED:
            return
        self._tick_proposal(now)
        self._look_for_late(now)
        self._staff(now)
        self._admit(now)

    def _tick_ballot(self, event: Tick, now: float) -> None:
        """Whoever does not promise in time is lost too."""
        self._tick_fence(event, now)
        if self.state is State.ENDED or now - self._ballot_s < self.limits.promise_s:
            return
        silent = [rank for rank in self.party() if self._members[rank].promised < self.ballot]
        text = f"it did not answer a ballot within {self.limits.promise_s:.1f} s"
        condemned = [rank for rank in silent if self._condemn(Lost(rank, Cause("silent", text)), now)]
        if condemned:
            self._call_ballot(now)


TRANSITIONS: dict[tuple[State, type[Event]], Callable[[Coordinator, Any, float], None]] = {
    (State.FORMING, Joined): Coordinator._joined,
    (State.FORMING, Reserved): Coordinator._room,
    (State.FORMING, NoMemory): Coordinator._no_room,
    (State.FORMING, Level): Coordinator._level_forming,
    (State.FORMING, Lost): Coordinator._lost_forming,
    (State.FORMING, Fenced): Coordinator._fenced_forming,
    (State.FORMING, Exited): Coordinator._exited_forming,
    (State.FORMING, Leaving): Coordinator._leaving_forming,
    (State.FORMING, Tick): Coordinator._tick_forming,
    (State.STEADY, Joined): Coordinator._joined_later,
    (State.STEADY, Level): Coordinator._level_steady,
    (State.STEADY, Accepted): Coordinator._accepted,
    (State.STEADY, Refused): Coordinator._refused,
    (State.STEADY, Leaving): Coordinator._leaving,
    (State.STEADY, Scale): Coordinator._scale,
    (State.STEADY, Lost): Coordinator._lost,
    (State.STEADY, Fenced): Coordinator._fenced_steady,
    (State.STEADY, Done): Coordinator._done,
    (State.STEADY, Progress): Coordinator._progress,
    (State.STEADY, Diverged): Coordinator._diverged,
    (State.STEADY, Exited): Coordinator._exited,
    (State.STEADY, Tick): Coordinator._tick_steady,
    (State.BALLOT, Joined): Coordinator._joined_later,
    (State.BALLOT, Level): Coordinator._note_level,
    (State.BALLOT, Leaving): Coordinator._leaving,
    (State.BALLOT, Scale): Coordinator._scale_later,
    (State.BALLOT, Lost): Coordinator._lost,
    (State.BALLOT, Fenced): Coordinator._fenced,
    (State.BALLOT, Pledged): Coordinator._pledged,
    (State.BALLOT, Done): Coordinator._done_in_ballot,
    (State.BALLOT, Diverged): Coordinator._diverged,
    (State.BALLOT, Exited): Coordinator._exited,
    (State.BALLOT, Tick): Coordinator._tick_ballot,
    (State.COUNTING, Joined): Coordinator._joined_later,
    (State.COUNTING, Level): Coordinator._note_level,
    (State.COUNTING, Leaving): Coordinator._leaving,
    (State.COUNTING, Scale): Coordinator._scale_later,
    (State.COUNTING, Lost): Coordinator._lost,
    (State.COUNTING, Fenced): Coordinator._fenced_aside,
    (State.COUNTING, Counted): Coordinator._counted,
    (State.COUNTING, Done): Coordinator._done_in_ballot,
    (State.COUNTING, Diverged): Coordinator._diverged,
    (State.COUNTING, Exited): Coordinator._exited,
    (State.PAUSED, Joined): Coordinator._joined_later,
    (State.PAUSED, Level): Coordinator._level_paused,
    (State.PAUSED, Leaving): Coordinator._leaving,
    (State.PAUSED, Scale): Coordinator._scale,
    (State.PAUSED, Lost): Coordinator._lost_paused,
    (State.PAUSED, Fenced): Coordinator._fenced_steady,
    (State.PAUSED, Done): Coordinator._done_in_ballot,
    (State.PAUSED, Exited): Coordinator._exited,
    (State.PAUSED, Tick): Coordinator._tick_paused,
    (State.CLOSED, Joined): Coordinator._joined_later,
    (State.CLOSED, Done): Coordinator._done_closed,
    (State.CLOSED, Lost): Coordinator._lost_closed,
    (State.CLOSED, Fenced): Coordinator._fenced_closed,
    (State.CLOSED, Exited): Coordinator._exited_closed,
    (State.CLOSED, Tick): Coordinator._tick_closed,
}
"""Which event means something in which state. A pair that is not here changes nothing."""
