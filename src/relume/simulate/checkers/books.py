"""What a checker can know of the fleet by listening: lives, views, who is out and who is gone.

It trusts the coordinator in nothing but what it says, and keeps its books by life.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relume.core.events import (
    Accepted,
    Count,
    Counted,
    Dismiss,
    Event,
    Exited,
    Fence,
    Fenced,
    InstallView,
    Instruction,
    Left,
    Level,
    Pledged,
    StartWorker,
)
from relume.core.plan import Inventory
from relume.simulate.memory import Who
from relume.wire.messages import Ballot, View


class Books:
    """See the module's docstring. `out`: fenced, by order; `gone`: can write no more; `away`: went, or was sent away.

    `following` is a view that is decided and has not begun, as far as anybody knows. `before` are those that were in
    earlier views: the coordinator may not know yet that they are in no view any more.
    """

    def __init__(self, at_start: int) -> None:
        self.lives = dict.fromkeys(range(at_start), 0)
        self.out: set[Who] = set()
        self.gone: set[Who] = set()
        self.away: set[Who] = set()
        self.ended: set[Who] = set()
        self.level: dict[Who, int] = {}
        self.promised: dict[Who, Ballot] = {}
        self.accepted: dict[Ballot, set[Who]] = {}
        self.view: View | None = None
        self.following: View | None = None
        self.inside: set[Who] = set()
        self.before: set[Who] = set()
        self.counting: Ballot = (0, 0)
        self.inventory: Inventory | None = None

    def heard(self, event: Event) -> None:
        """Note a fact."""
        who = who_of(event)
        match event:
            case Fenced():
                self.gone.add(who)
            case Exited():
                self.gone.add(who)
                self.ended.add(who)
            case Pledged(_, ballot):
                self.promised[who] = max(ballot, self.promised.get(who, (0, 0)))
            case Accepted(_, number):
                self.accepted.setdefault(number, set()).add(who)
            case Level(_, step):
                self.level[who] = max(step, self.level.get(who, 0))
            case Counted(ballot, inventory) if ballot == self.counting:
                self._counted(inventory)
            case _:
                pass

    def _counted(self, inventory: Inventory) -> None:
        self.inventory = inventory
        if self.following is not None and inventory.complete + 1 >= self.following.step:
            self.begins(self.following)

    def said(self, event: Event, instruction: Instruction) -> None:
        """Note an instruction. Of a view that is installed on many it takes note with the first."""
        match instruction:
            case Fence(rank):
                self.out.add(self.now(rank))
            case Count(ballot):
                self.counting = ballot
            case Dismiss(rank) | Left(rank):
                self.away.add(self.now(rank))
            case StartWorker(rank, life):
                self.lives[rank] = life
            case InstallView(_, view):
                if isinstance(event, Accepted):
                    if self.following is not None and self.following != view:
                        self.begins(self.following)  # one is decided only when the one before has begun
                    self.following = view
                    self.inside |= self.of(view)
                elif self.view is None or view.number != self.view.number:
                    self.begins(view)
            case _:
                pass

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """Note both."""
        self.heard(event)
        for instruction in answer:
            self.said(event, instruction)

    def begins(self, view: View) -> None:
        """A view is in force."""
        self.before |= self.inside
        self.view = view
        self.following = None
        self.inside = self.of(view)

    def begun(self, view: View) -> None:
        """Somebody began a step under a view: should it be the following one, it is in force."""
        if self.following is not None and view.number == self.following.number:
            self.begins(view)

    # Questions ----------------------------------------------------------------------------------------------

    def now(self, rank: int) -> Who:
        """Return the newest life of a rank."""
        return Who(rank, self.lives.get(rank, 0))

    def of(self, view: View) -> set[Who]:
        """Return the members of a view, as the lives that they are now."""
        return {self.now(rank) for rank in view.members}

    def here(self, who: Who) -> bool:
        """Return whether that life is there and nothing is held against it."""
        return who.rank in self.lives and who == self.now(who.rank) and who not in self.out | self.away | self.ended

    def everyone(self) -> set[Who]:
        """Return all that are there."""
        return {who for rank in self.lives if self.here(who := self.now(rank))}

    def members(self) -> set[Who]:
        """Return who may write and is there."""
        return {who for who in self.inside if self.here(who)}

    def maybe(self) -> set[Who]:
        """Return who was inside once and is there: the coordinator may take them for members still."""
        return {who for who in self.before if self.here(who)}


def who_of(event: Any) -> Who:  # noqa: ANN401 - any event
    """Return whom an event is about."""
    return Who(getattr(event, "rank", -1), getattr(event, "life", 0))
