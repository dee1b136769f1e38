"""Laws about those who come and go: lives, agreements by promise (rule 10), and clean leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relume.core.events import (
    Accepted,
    Counted,
    Event,
    Fence,
    InstallView,
    Instruction,
    ProposeView,
    Scale,
    StartWorker,
)
from relume.simulate.checkers.base import Checker
from relume.simulate.checkers.books import Books
from relume.simulate.memory import Kind, Who, Write
from relume.wire.messages import View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World


class Lives(Checker):
    """A rank is one process at a time: another begins when the one before is gone, and no more than were allowed."""

    name = "lives"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self.restarts = 0

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        self.books.heard(event)
        if isinstance(event, Scale):  # whoever asks for so many wants another try of seats that were given up
            self.books.away |= self.books.out | self.books.ended
        for instruction in answer:
            if isinstance(instruction, StartWorker):
                self._started(instruction)
            self.books.said(event, instruction)

    def _started(self, start: StartWorker) -> None:
        books, settings = self.books, self.world.settings
        before = books.now(start.rank) if start.rank in books.lives else None
        if start.life != (0 if before is None else before.life + 1) or start.rank >= settings.seats_in_all:
            self.fail(f"{start} follows {before}, of {settings.seats_in_all} seats")
        if before is not None and before not in books.gone | books.away:
            self.fail(f"{start} comes while {before} may still write")
        lost = before is not None and before not in books.away
        self.restarts += lost
        if self.restarts > settings.max_restarts:
            self.fail(f"{start} is restart {self.restarts}, and {settings.max_restarts} are allowed")

    def starts(self, worker: Worker) -> None:
        """See the class."""
        for other in self.world.everyone:
            if other is not worker and other.rank == worker.rank and other.process.alive:
                self.fail(f"worker {tuple(worker.who)} starts, and {tuple(other.who)} is alive")


class Admission(Checker):
    """A view that was agreed on begins with its step: no member begins that step without it, and nobody before it."""

    name = "admission"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self._decided: list[View] = []
        self._ever: list[View] = []
        self._live: set[Who] = set()
        self._proposed: dict[tuple[int, int], View] = {}

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        if isinstance(event, Counted) and answer:  # what has not begun by now is dropped
            self._decided = [view for view in self._decided if view.step <= event.inventory.complete + 1]
        members = self.books.members()
        self.books.heard(event)
        for instruction in answer:
            if isinstance(instruction, ProposeView):
                self._proposed[instruction.view.number] = instruction.view
            elif isinstance(instruction, InstallView) and instruction.view not in self._decided:
                self._decided.append(instruction.view)
                self._ever.append(instruction.view)
                if isinstance(event, Accepted):
                    self._agreed(instruction.view, members)
            self.books.said(event, instruction)

    def _agreed(self, view: View, members: set[Who]) -> None:
        if self._proposed.get(view.number) != view:
            self.fail(f"{view} is installed, and {self._proposed.get(view.number)} was proposed")
        for who in members:
            worker = self.world.now_at(who.rank)
            if worker.standing.begun >= view.step and worker.process.alive:
                self.fail(f"view {view.number} is to begin with step {view.step}, and worker {who} has begun it")

    def begun(self, worker: Worker, step: int, view: View) -> None:
        """See the class."""
        self.books.begun(view)
        newest = max((each.number for each in self._decided if each.step <= step), default=(0, 0))
        if view.number < newest:
            self.fail(f"worker {worker.rank} begins step {step} under view {view.number}; that belongs to {newest}")
        if worker.who not in self._live:
            self._live.add(worker.who)
            if not any(each.step <= step and worker.rank in each.members for each in self._ever):
                self.fail(f"worker {tuple(worker.who)} is live from step {step} on, and no view in force has it")


class Leavers(Checker):
    """Whoever goes by plan finishes its leaf: all steps before it goes are complete, and it is no loss."""

    name = "leavers"
    kinds = (Kind.BLOCK,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._committed = world.settings.resume_step - 1
        self._left: set[Who] = set()

    def wrote(self, write: Write) -> None:
        """Note what is committed."""
        if self.arena.complete(write.step):
            self._committed = max(self._committed, write.step)

    def leaves(self, worker: Worker) -> None:
        """See the class."""
        view = worker.standing.view
        self._left.add(worker.who)
        if worker.joiner.gone:
            return
        if worker.phase == "take":  # too late for its last step
            view = max(worker.standing.planned.values(), key=lambda each: each.number, default=view)
        if view is None or worker.rank in view.members or self._committed < view.step - 1:
            self.fail(f"worker {worker.rank} goes under {view}, and {self._committed} is committed")

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        for instruction in answer:
            if isinstance(instruction, Fence):
                who = self.world.now_at(instruction.rank).who
                if who in self._left and who not in self.world.faults.harmed:
                    self.fail(f"worker {who.rank} left by plan, and is fenced upon {event}")
