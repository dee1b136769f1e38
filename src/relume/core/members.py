"""What the coordinator knows of each seat: which process sits there, in which of its lives, and how far it is.

A rank is a seat. When its worker is lost, another process may take the rank: its `life` is one higher, and whatever is
said about an earlier life means nothing any more (Invariant 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.core.events import Cause, Joined
from relume.core.view import NONE
from relume.wire.messages import Ballot


@dataclass(slots=True)
class Loss:
    """One life that ended: why, since when there is evidence, and since when it can no longer write."""

    rank: int
    life: int
    cause: Cause
    lost_s: float
    fenced_s: float | None = None


@dataclass(slots=True)
class Member:
    """A seat. `loss`: how its newest life was lost, None while nothing is held against it; `before`: an earlier one.

    `inside`: this life is in the view, or in the one that is to follow; only such a life may write. `level`: it stands
    before this step in its replay. `leaving`: why it goes by plan. `steady_from`: the step from which it is in a view.
    The last five are about the seat: `failures` and `refusals` in a row, over its lives, when the next life may start
    at the earliest, that none shall (`given_up`), and that nobody has to fill it (`vacant`: never used, left by plan).
    """

    life: int = 0
    started: bool = False
    joined: Joined | None = None
    joined_s: float = 0.0
    loss: Loss | None = None
    before: Loss | None = None
    promised: Ballot = NONE
    inside: bool = False
    level: int | None = None
    leaving: str = ""
    done: int | None = None
    digest: str = ""
    exited: bool = False
    step: int = -1
    steady_from: int | None = None
    started_s: float = 0.0
    failures: int = 0
    refusals: int = 0
    not_before_s: float = 0.0
    given_up: bool = False
    vacant: bool = True

    @property
    def last(self) -> Loss | None:
        """The newest loss of the seat, of this life or of the one before."""
        return self.loss or self.before

    @property
    def cause(self) -> Cause | None:
        """Why it is out."""
        return None if self.loss is None else self.loss.cause

    @property
    def alive(self) -> bool:
        """True while a process is there that nothing is held against."""
        return self.started and self.loss is None and not self.exited

    @property
    def free(self) -> bool:
        """True if another process may take the seat: the one before can write no more."""
        return not self.alive and (self.loss is None or self.loss.fenced_s is not None)

    def successor(self, now: float) -> Member:
        """Return the seat with its next life begun."""
        life = self.life + 1 if self.started else 0
        failures, refusals = self.failures, self.refusals
        return Member(
            life=life,
            started=True,
            started_s=now,
            before=self.last,
            failures=failures,
            refusals=refusals,
            vacant=False,
        )
