"""Laws about time: runs come to their end, nobody waits for those who come, recoveries take their few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relume.core.coordinator import State
from relume.core.events import AskPromise, Event, Fence, InstallView, Instruction, Lost, Pledged, StartWorker, Tick
from relume.simulate.checkers.base import Checker
from relume.simulate.checkers.books import Books, who_of
from relume.simulate.memory import Kind, Write

if TYPE_CHECKING:
    from relume.simulate.world import World

RUN_S, STEP_S = 40.0, 8.0
"""Once faults have stopped, a history is over within the first, and the second for each step. Nearly all of it is for
limits that are waited out, one after the other, and for bells that are lost; a step takes 0.1 s."""
ROUND_S = 1.5
"""A message there and back, a fence, a look at the arena, a tick: with the slowest channels."""
STILL_S = 3.5
"""Members to whom nothing is the matter seal something within this time; lost bells and stalls add to it."""
ADMIT_S = 2.0
"""Some proposals are made and answered within this time; slow paces, lost bells and a slow agent add to it."""


class Progress(Checker):
    """Within a bound once faults stop, the run ends."""

    name = "progress"

    def passed(self, now: float) -> None:
        """See the class."""
        world = self.world
        if now > world.faults.until_s + RUN_S + STEP_S * world.settings.steps:
            where = {worker.rank: (worker.phase, worker.step) for worker in world.newest if worker.process.alive}
            self.fail(f"the last fault was over at {world.faults.until_s:.1f} s, and it is {now:.1f} s: {where}")


class Unhindered(Checker):
    """Those who train wait for nobody who is in no view: members to whom nothing was done get on."""

    name = "unhindered"
    kinds = (Kind.SEAL, Kind.BLOCK, Kind.TAKEN, Kind.CHUNK)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self._moved_s = 0.0
        self._looked_s = 0.0
        settings = world.settings
        self._still_s = STILL_S + 3.0 * (settings.deaf > 0.0) + 100.0 * settings.stalls * settings.stall_s

    def wrote(self, write: Write) -> None:
        """Something got on."""
        if write.who in self.books.inside:
            self._moved_s = self.world.scheduler.now

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """A new view begins anew, and so does whoever is done."""
        self.books.told(event, answer)
        if any(not isinstance(each, Fence) for each in answer) and self.world.core.state is not State.STEADY:
            self._moved_s = self.world.scheduler.now
        if any(isinstance(each, InstallView) for each in answer):
            self._moved_s = self.world.scheduler.now

    def passed(self, now: float) -> None:
        """See the class."""
        if now < self._looked_s + 0.1:
            return
        self._looked_s = now
        world = self.world
        members = {worker for worker in world.newest if worker.who in self.books.inside}
        well = all(worker.process.alive and worker.who not in world.faults.harmed for worker in members)
        if world.core.state is not State.STEADY or not well or any(w.phase == "tail" for w in members):
            self._moved_s = now
        elif now > self._moved_s + self._still_s:
            where = {worker.rank: (worker.phase, worker.step) for worker in world.newest if worker.process.alive}
            self.fail(f"nothing is the matter with {sorted(w.rank for w in members)}, and they stand still: {where}")


class Whole(Checker):
    """Once faults have stopped, the fleet is whole again within a bound.

    Lost workers are replaced, whoever is on its way comes level, whoever is level is admitted, whoever is to go goes.
    """

    name = "whole again"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._looked_s = 0.0
        self._since: dict[str, float] = {}
        self._news_s = 0.0
        settings = world.settings
        paces = [settings.pace(rank, life) for rank in range(settings.seats_in_all) for life in range(3)]
        slow_s = 2.0 * (settings.deaf > 0.0) + 60.0 * settings.stalls * settings.stall_s + 20.0 * settings.lag_s
        self._admit_s = ADMIT_S + 0.15 * min(20.0, max(paces)) + slow_s
        self._level_s = 2.0 * self._admit_s

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """A loss, a wish and a new view are news: what follows from them takes its time again."""
        del event
        if any(isinstance(each, Fence | InstallView | StartWorker) for each in answer):
            self._news_s = self.world.scheduler.now

    def passed(self, now: float) -> None:
        """See the class."""
        if now < self._looked_s + 0.2:
            return
        self._looked_s = now
        missing = self._missing(now)
        self._since = {what: self._since.get(what, now) for what in missing}
        for what, limit_s in missing.items():
            since_s = max(self._since[what], self.world.faults.until_s, self._news_s)
            if now > since_s + limit_s:
                self.fail(f"since {since_s:.1f} s {what}, and it is {now:.1f} s")

    def _missing(self, now: float) -> dict[str, float]:
        """Say what is not as it should be, and within which time it has to be mended."""
        world, core, settings = self.world, self.world.core, self.world.settings
        done = max(worker.step for worker in world.newest) >= settings.steps - 3
        if core.state is not State.STEADY or core.view is None or not settings.every or done:
            return {}
        seats, missing = core._members, {}  # noqa: SLF001 - how long a seat waits, and who is to go, it knows best
        inside = set((core.following or core.view).members)
        goes = [rank for rank in core.alive() if seats[rank].leaving]
        if goes and (len(inside) > max(1, core.min_workers) or not inside.issuperset(goes)):
            missing[f"{goes} are to go and are there"] = self._admit_s
        if len(inside) >= core.workers:
            return missing
        newest = max(self.arena.taken[rank] for rank in inside)
        for rank in core.alive():
            worker = world.at(rank)
            if rank in inside or seats[rank].leaving or worker is None or worker.life != seats[rank].life:
                continue
            if worker.joiner.said and self.arena.taken[rank] >= newest - 1:
                missing[f"{worker.who} is level and no member"] = self._admit_s
            elif settings.late == 1.0 and worker.who not in world.faults.harmed:
                missing[f"{worker.who} is on its way and not level"] = self._level_s
        staffing = core._staffing  # noqa: SLF001 - as above
        for rank, seat in seats.items():
            if not seat.alive and not seat.vacant and staffing.may_return(seat) and now > seat.not_before_s:
                missing[f"nobody is in the seat {rank}"] = self._admit_s
        return missing


class Rounds(Checker):
    """A ballot follows from new evidence only, all that are silent are found in one wait, and then a view comes."""

    name = "rounds"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._evidence_s: float | None = None
        self._promised: set[int] = set()
        self.books = Books(world.settings.workers + world.settings.spares)
        self._waits = 0
        self._struck_before = 0

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        now = self.world.scheduler.now
        condemned = {each.rank for each in answer if isinstance(each, Fence)}
        asked = {each.rank for each in answer if isinstance(each, AskPromise)}
        state = self.world.core.state
        open_ended = state not in {State.CLOSED, State.ENDED}
        if isinstance(event, Lost) and self.books.here(who_of(event)) and open_ended and event.rank not in condemned:
            self.fail(f"{event} is known, and nothing is done about it")
        self.books.told(event, answer)
        if isinstance(event, Pledged) and event.ballot == self.world.core.ballot:
            self._promised.add(event.rank)
        if asked:
            if not condemned:
                self.fail(f"a new ballot is called upon {event}, which is no news")
            if isinstance(event, Tick) and not asked <= self._promised:
                self.fail(f"{condemned} were silent, and so were {asked - self._promised}, who are waited for again")
            self._waited(event)
            self._promised = set()
        if asked and state in {State.BALLOT, State.COUNTING}:
            self._evidence_s = now
        if any(isinstance(each, InstallView) for each in answer) or state in {State.PAUSED, State.CLOSED, State.ENDED}:
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
