"""What a checker is, and how it gets to see a history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

from relume.core.events import Event, Instruction
from relume.simulate.memory import Kind, Write
from relume.wire.messages import View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World


class Violation(AssertionError):
    """A law does not hold. `checker` is the law's name."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


class Checker:
    """One law. Its docstring says it in a sentence. It overrides what it needs to see."""

    name: ClassVar[str]
    kinds: ClassVar[Collection[Kind]] = ()
    """The writes that it wants to see."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arena = world.arena

    def wrote(self, write: Write) -> None:
        """A shared word is written: it still holds what it held before (only the seal of a block is there already)."""

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """The coordinator was told `event` and said `answer`; nothing of it is done yet."""

    def passed(self, now: float) -> None:
        """Something happened, and it is `now`."""

    def starts(self, worker: Worker) -> None:
        """A process is about to start."""

    def begun(self, worker: Worker, step: int, view: View) -> None:
        """A worker begins `step` under `view`: it holds the pen."""

    def level(self, worker: Worker, step: int) -> None:
        """A joiner is about to say that it stands level before `step`."""

    def leaves(self, worker: Worker) -> None:
        """A worker is about to go by plan."""

    def ended(self, outcome: str) -> None:
        """The run is over."""

    def fail(self, text: str) -> None:
        """Raise `Violation`."""
        raise Violation(self.name, text)


class Checks:
    """All checkers of a history."""

    def __init__(self, world: World, checkers: Sequence[type[Checker]]) -> None:
        self.checkers = [checker(world) for checker in checkers]
        for checker in self.checkers:
            for kind in checker.kinds:
                world.arena.watchers[kind].append(checker.wrote)
        self._listening = self._that("told")
        self._ticking = self._that("passed")
        self._starting = self._that("starts")
        self._beginning = self._that("begun")
        self._levelling = self._that("level")
        self._leaving = self._that("leaves")

    def _that(self, method: str) -> list[Checker]:
        """Return the checkers that want to know."""
        return [c for c in self.checkers if getattr(type(c), method) is not getattr(Checker, method)]

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See `Checker`."""
        for checker in self._listening:
            checker.told(event, answer)

    def passed(self, now: float) -> None:
        """See `Checker`."""
        for checker in self._ticking:
            checker.passed(now)

    def starts(self, worker: Worker) -> None:
        """See `Checker`."""
        for checker in self._starting:
            checker.starts(worker)

    def begun(self, worker: Worker, step: int, view: View) -> None:
        """See `Checker`."""
        for checker in self._beginning:
            checker.begun(worker, step, view)

    def level(self, worker: Worker, step: int) -> None:
        """See `Checker`."""
        for checker in self._levelling:
            checker.level(worker, step)

    def leaves(self, worker: Worker) -> None:
        """See `Checker`."""
        for checker in self._leaving:
            checker.leaves(worker)

    def ended(self, outcome: str) -> None:
        """See `Checker`."""
        for checker in self.checkers:
            checker.ended(outcome)

    def own_note(self, rank: int, expected: object, found: object) -> None:
        """A worker reads the note of a leaf of its own, to merge it."""
        if found != expected:
            raise Violation("exactly once", f"worker {rank} merges under the note {found}, which should be {expected}")
