"""One history: a fleet of simulated workers, their agent and the real coordinator, from the first process to the end.

Several hosts would be several shells, each with an arena and workers of its own, and channels between them that can be
cut; a coordinator that dies would be a `decide` that moves to another shell. See docs/adr/0005.
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.core.coordinator import Coordinator
from relume.core.events import Event, Instruction
from relume.core.limits import Limits
from relume.simulate.checkers import ALL, Checker, Checks, Violation
from relume.simulate.coverage import Coverage
from relume.simulate.engine import Engine
from relume.simulate.faults import Faults
from relume.simulate.generations import PIECES
from relume.simulate.memory import Arena, Shape
from relume.simulate.mirroring import Mirroring
from relume.simulate.replay import Joiner
from relume.simulate.scheduler import Scheduler
from relume.simulate.settings import HANG_S, Settings
from relume.simulate.shell import Shell
from relume.simulate.slots import Slots
from relume.simulate.standing import Standing
from relume.simulate.trace import TAIL, Trace
from relume.simulate.worker import WAIT_S, Worker

ACTIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What a history is made of. A test plants a bug by putting its own class in the place of one."""

    coordinator: type[Coordinator] = Coordinator
    shell: type[Shell] = Shell
    standing: type[Standing] = Standing
    slots: type[Slots] = Slots
    engine: type[Engine] = Engine
    mirroring: type[Mirroring] = Mirroring
    joiner: type[Joiner] = Joiner
    checkers: tuple[type[Checker], ...] = ALL
    wait_s: float = WAIT_S


class World:
    """Everything of one history. `run` lives it; it raises `Violation`, or whatever the core raises."""

    def __init__(self, settings: Settings, parts: Parts | None = None, *, trace: int | None = TAIL) -> None:
        self.settings = settings
        self.parts = parts if parts is not None else Parts()
        self.scheduler = Scheduler(settings.seed)
        self.trace = Trace(self.scheduler, trace)
        self.coverage = Coverage()
        self.limits = Limits.derive(HANG_S)
        shape = (settings.shards, settings.blocks, settings.pieces, settings.kept, settings.chunks)
        self.arena = Arena(Shape(settings.seats_in_all, *shape), base=settings.resume_step)
        self.core = self.parts.coordinator(
            settings.workers,
            1,
            self.limits,
            settings.min_workers,
            seats=settings.seats_in_all,
            spares=settings.spares,
            max_restarts=settings.max_restarts,
            resume_step=settings.resume_step,
        )
        self._seats: dict[int, Worker] = {}
        self.newest: list[Worker] = []
        """The newest process of each rank that has had one."""
        self.everyone: list[Worker] = []
        """Every process that there ever was."""
        self.faults = Faults(self, settings.faults)
        self.shell = self.parts.shell(self)
        self.outcome: str | None = None
        self.reason = ""
        self.check = Checks(self, self.parts.checkers)
        if settings.resume_step:
            self._put_back(settings.resume_step)

    def _put_back(self, step: int) -> None:
        """The agent has read a checkpoint of `step` into the mirror."""
        mirror = self.arena.mirrors[0]
        for chunk in range(mirror.chunks):
            mirror.content[chunk] = [((step, ""), chunk)] * PIECES
            mirror.digests[chunk] = tuple(mirror.content[chunk])
            mirror.seals[chunk] = step

    # Who is there -------------------------------------------------------------------------------------------

    def sits(self, worker: Worker) -> None:
        """A process has its rank from now on."""
        self._seats[worker.rank] = worker
        self.newest = list(self._seats.values())
        self.everyone.append(worker)

    def at(self, rank: int) -> Worker | None:
        """Return the newest process of `rank`, None if it never had one."""
        return self._seats.get(rank)

    def now_at(self, rank: int) -> Worker:
        """Return the newest process of `rank`, which has had one."""
        return self._seats[rank]

    @property
    def over(self) -> bool:
        """True once the coordinator has ended the run."""
        return self.outcome is not None

    # Living -------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Live until the run has ended; return its outcome."""
        self.shell.start()
        for _ in range(ACTIONS_MAX):
            if self.outcome is not None:
                self.check.ended(self.outcome)
                self.coverage.outcomes[self.outcome] += 1
                return self.outcome
            if not self.scheduler.advance():
                break
            self.check.passed(self.scheduler.now)
        raise Violation("progress", f"no end after {ACTIONS_MAX} actions: {self.core.state}")

    def decide(self, event: Event) -> list[Instruction]:
        """Tell the coordinator."""
        if self.counts(event):
            self.coverage.row(self.core.state, event)
        answer = self.core.handle(event, self.scheduler.now)
        if answer:
            self.trace.note("agent", event, *(f"\n{'':17}-> {each}" for each in answer))
        self.check.told(event, answer)
        return answer

    def counts(self, event: Event) -> bool:
        """Return whether the coordinator listens: an event of an earlier life means nothing."""
        rank = getattr(event, "rank", None)
        return rank is None or getattr(event, "life", 0) == self.core.life(rank)

    def end(self, outcome: str, reason: str = "") -> None:
        """The run is over."""
        self.outcome, self.reason = outcome, reason
