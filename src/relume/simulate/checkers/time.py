"""Laws about time: every run comes to its end, and a recovery takes no more rounds however many were lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relume.core.coordinator import State
from relume.core.events import AskPromise, Event, Exited, Fence, InstallView, Instruction, Lost, Pledged, Tick
from relume.simulate.checkers.base import Checker

if TYPE_CHECKING:
    from relume.simulate.world import World

RUN_S, STEP_S = 40.0, 8.0
"""Once faults have stopped, a history is over within the first, and the second for each step. Nearly all of it is for
limits that are waited out, one after the other, and for bells that are lost; a step takes 0.1 s."""
ROUND_S = 1.5
"""A message there and back, a fence, a look at the arena, a tick: with the slowest channels."""


class Progress(Checker):
    """Within a bound once faults stop, the run ends."""

    name = "progress"

    def passed(self, now: float) -> None:
        """See the class."""
        world = self.world
        if now > world.faults.until_s + RUN_S + STEP_S * world.settings.steps:
            where = {worker.rank: (worker.phase, worker.step) for worker in world.workers if worker.process.alive}
            self.fail(f"the last fault was over at {world.faults.until_s:.1f} s, and it is {now:.1f} s: {where}")


class Rounds(Checker):
    """A ballot follows from new evidence only, all that are silent are found in one wait, and then a view comes."""

    name = "rounds"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._evidence_s: float | None = None
        self._promised: set[int] = set()
        self._out: set[int] = set()
        self._waits = 0
        self._struck_before = 0

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        now = self.world.scheduler.now
        condemned = {each.rank for each in answer if isinstance(each, Fence)}
        asked = {each.rank for each in answer if isinstance(each, AskPromise)}
        state = self.world.core.state
        open_ended = state not in {State.CLOSED, State.ENDED}
        if isinstance(event, Lost) and open_ended and event.rank not in self._out | condemned:
            self.fail(f"{event} is known, and nothing is done about it")
        self._out |= condemned
        if isinstance(event, Exited):
            self._out.add(event.rank)
        if isinstance(event, Pledged) and event.ballot == self.world.core.ballot:
            self._promised.add(event.rank)
        if asked:
            if not condemned:
                self.fail(f"a new ballot is called upon {event}, which is no news")
            if isinstance(event, Tick) and not asked <= self._promised:
                self.fail(f"{condemned} were silent, and so were {asked - self._promised}, who are waited for again")
            self._waited(event)
            self._promised = set()
        if condemned and state in {State.BALLOT, State.COUNTING}:
            self._evidence_s = now
        if any(isinstance(each, InstallView) for each in answer) or state in {State.CLOSED, State.ENDED}:
            self._evidence_s, self._waits = None, 0

    def _waited(self, event: Event) -> None:
        struck = len(self.world.faults.harmed)
        if self._evidence_s is None:
            self._waits, self._struck_before = 0, struck
        elif isinstance(event, Tick):
            self._waits += 1
            if self._waits > 1 + struck - self._struck_before:
                self.fail(f"{self._waits} limits were waited out in one recovery")

    def passed(self, now: float) -> None:
        """A recovery ends a round after the last evidence, or somebody is silent and the limit is waited out."""
        limits = self.world.limits
        if self._evidence_s is not None and now > self._evidence_s + max(limits.promise_s, limits.fence_s) + ROUND_S:
            self.fail(f"nothing new is known since {self._evidence_s:.3f} s, and there is no view at {now:.3f} s")
