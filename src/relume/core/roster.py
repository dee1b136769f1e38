"""The fleet as it is and as it should be: seats, views, and who is to be started or sent away (Invariant 7).

The coordinator's foundation: it keeps the books and decides about staffing; what a loss means stands in `coordinator`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relume.core import view as views
from relume.core.events import Cause, Dismiss, Fence, Incident, Instruction, Joined, Left, Lost, StartWorker, Tell
from relume.core.limits import Limits
from relume.core.members import Loss, Member
from relume.core.plan import Moved
from relume.core.staffing import Staffing
from relume.core.words import plural
from relume.wire.messages import Ballot, Shape, View


@dataclass(slots=True)
class Roster:
    """See the module's docstring. `workers` is how many should be in the view; `spares` stand level beside them.

    `seats` bounds how many there can ever be at a time. `following` is a view that is decided and not yet begun.
    `resume_step`: the run goes on from a checkpoint of this step.
    """

    workers: int
    epoch: int
    limits: Limits
    min_workers: int = 1
    seats: int = 0
    spares: int = 0
    max_restarts: int = 0
    resume_step: int = 0
    view: View | None = None
    following: View | None = None
    ballot: Ballot = views.NONE
    _members: dict[int, Member] = field(default_factory=dict)
    _staffing: Staffing = field(default_factory=lambda: Staffing(0))
    _agreed: Joined | None = None
    _shape: Shape | None = None
    _open: list[Loss] = field(default_factory=list)
    _refused_at: int = -1
    _out: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seats = max(self.seats, self.workers + self.spares)
        self._members = {rank: Member() for rank in range(self.seats)}
        for rank in range(self.workers + self.spares):
            self._members[rank] = self._members[rank].successor(0.0)
        self._staffing = Staffing(self.max_restarts)
        self.ballot = (self.epoch, 0)

    # Who is there -------------------------------------------------------------------------------------------

    def alive(self) -> list[int]:
        """Return the ranks of all workers that nothing is held against, joiners and spares included."""
        return [rank for rank, member in self._members.items() if member.alive]

    def party(self) -> list[int]:
        """Return the ranks that may write: those in the view or in the one that follows, and alive."""
        return [rank for rank in self.alive() if self._members[rank].inside]

    def leaves(self, rank: int) -> bool:
        """Return True if the seat's newest process goes by plan."""
        return bool(self._members[rank].leaving)

    def life(self, rank: int) -> int:
        """Return which life the seat's newest process is."""
        return self._members[rank].life

    @property
    def terms(self) -> tuple[str, ...]:
        """What all workers agreed on before the first step; empty until then."""
        return () if self._agreed is None else self._agreed.terms

    @property
    def restarts(self) -> int:
        """How many lost workers were replaced."""
        return self._staffing.restarts

    def _level(self) -> list[int]:
        """Return the joiners that stand level."""
        members = self._members
        return [
            r for r in self.alive() if members[r].level is not None and not members[r].inside and not self.leaves(r)
        ]

    def _replaying(self) -> list[int]:
        """Return the joiners that are about to be level."""
        members = self._members
        return [r for r in self.alive() if members[r].joined and members[r].level is None and not members[r].inside]

    def _newest_begun(self) -> int:
        """Return the newest step that anybody is known to have begun."""
        return max(self._refused_at, self._newest_seen())

    def _newest_seen(self) -> int:
        """Return the newest step that anybody was at when all were last looked at: what a joiner is measured by."""
        members = [self._members[rank] for rank in self.alive()]
        known = (max(m.step, m.level or 0) for m in members)
        return max([0 if self.view is None else self.view.step, *known])

    # A loss, as far as it is one seat's affair --------------------------------------------------------------

    def _condemn(self, event: Lost, now: float) -> bool:
        """Note the evidence and have the worker fenced; False if that is already under way."""
        member = self._members[event.rank]
        if not member.alive:
            return False
        self._note_loss(member, Loss(event.rank, member.life, event.cause, now), now)
        self._out.append(Fence(event.rank))
        return True

    def _note_loss(self, member: Member, loss: Loss, now: float) -> None:
        member.loss = loss
        self._open.append(loss)
        why = self._staffing.judge(member, loss, now)
        if why:
            self._out.append(Tell("respawn", f"rank {loss.rank} is not started again: {why}", loss.rank))

    def _note_fence(self, rank: int, now: float) -> None:
        """Only who is out can be fenced, and only once: the first word of it is the time that counts."""
        loss = self._members[rank].loss
        if loss is not None and loss.fenced_s is None:
            loss.fenced_s = now

    def _unfenced(self) -> list[Loss]:
        """Return the losses of those that may still write, an earlier life's included."""
        return [loss for loss in self._open if loss.fenced_s is None]

    def _report(self, moved: Moved, *, promised_s: float, installed_s: float, rung: int = 2) -> None:
        """Tell of every loss since the last view; both times are 0.0 where no view followed."""
        for loss in self._open:
            self._out.append(
                Incident(
                    rank=loss.rank,
                    cause=loss.cause,
                    ballot=self.ballot,
                    step=self.view.step if self.view else -1,
                    moved=dict(moved.get(loss.rank, {})),
                    lost_s=loss.lost_s,
                    fenced_s=loss.fenced_s if loss.fenced_s is not None else loss.lost_s,
                    promised_s=promised_s,
                    installed_s=installed_s,
                    rung=rung,
                    life=loss.life,
                )
            )
        self._open = []

    # Staffing -----------------------------------------------------------------------------------------------

    def _enough_may_come(self) -> bool:
        """True if, with joiners on their way and processes for seats that lost theirs, the run has what it needs."""
        coming = sum(self._staffing.may_return(member) for member in self._members.values())
        coming = min(coming, self.max_restarts - self.restarts)
        return len(self.alive()) + coming >= max(1, self.min_workers)

    def _staff(self, now: float) -> None:
        """Start who is missing and send away who is too many."""
        wanted = self.workers + self.spares
        here = [rank for rank in self.alive() if not self.leaves(rank)]
        for rank in self._too_many(here):
            self._send_away(rank, f"the run goes on with {plural(self.workers, 'worker')}")
        for rank, member in self._members.items():
            if len(here) >= wanted:
                return
            if member.vacant or not member.free:
                continue
            if not self._staffing.may_return(member):
                self._give_up(rank)
            elif now >= member.not_before_s:
                self._staffing.restarts += 1
                here.append(rank)
                self._start(rank, now)
        expected = sum(not m.vacant and not m.leaving for m in self._members.values())
        for rank, member in self._members.items():
            if expected >= wanted:
                return
            if member.vacant and member.free:
                expected += 1
                self._start(rank, now)

    def _too_many(self, here: list[int]) -> list[int]:
        """Return who should go of those that are here: members beyond what is wanted, then spares, the least ready."""
        inside = [rank for rank in here if self._members[rank].inside]
        aside = sorted(set(here).difference(inside), key=lambda rank: (self._members[rank].level is None, rank))
        stay = inside[: self.workers]
        return inside[len(stay) :] + aside[max(0, self.workers + self.spares - len(stay)) :]

    def _give_up(self, rank: int) -> None:
        member = self._members[rank]
        if not member.given_up:
            member.given_up = True
            if why := self._staffing.refusal(member):
                self._out.append(Tell("respawn", f"rank {rank} is not started again: {why}", rank))

    def _start(self, rank: int, now: float) -> None:
        member = self._members[rank] = self._members[rank].successor(now)
        self._out.append(StartWorker(rank, member.life))

    def _send_away(self, rank: int, reason: str) -> None:
        """Have a worker go by plan: at once if it is in no view, else when a view without it begins."""
        member = self._members[rank]
        member.leaving = member.leaving or reason
        if not member.inside:
            self._dismiss(rank, reason)

    def _dismiss(self, rank: int, reason: str) -> None:
        member = self._members[rank]
        member.exited = member.vacant = True
        self._out.append(Dismiss(rank, reason))
        self._out.append(Left(rank, reason))

    def _note_left(self, rank: int) -> None:
        """A worker that was to go has ended."""
        member = self._members[rank]
        member.exited = member.vacant = True
        member.inside = False
        self._out.append(Left(rank, member.leaving))

    def _lost_aside(self, cause: Cause, rank: int, now: float) -> None:
        """A joiner is lost: it was in no view, so that nobody has to change anything."""
        before, self._open = self._open, []
        if self._condemn(Lost(rank, cause), now):
            self._report({}, promised_s=now, installed_s=now)
        self._open = before
