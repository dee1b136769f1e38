"""One history: a fleet of simulated workers, their agent and the real coordinator, from the first process to the end.

Several hosts would be several shells, each with an arena and workers of its own, and channels between them that can be
cut; a coordinator that dies would be a `decide` that moves to another shell. See docs/adr/0005.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from relume.core.coordinator import Coordinator
from relume.core.events import Event, Instruction
from relume.core.limits import Limits
from relume.simulate.checkers import ALL, Checker, Checks, Violation
from relume.simulate.coverage import Coverage
from relume.simulate.engine import Engine
from relume.simulate.faults import Faults
from relume.simulate.memory import Arena
from relume.simulate.scheduler import Scheduler
from relume.simulate.settings import HANG_S, Settings
from relume.simulate.shell import Shell
from relume.simulate.slots import Slots
from relume.simulate.standing import Standing
from relume.simulate.trace import TAIL, Trace
from relume.simulate.worker import WAIT_S, Worker

ACTIONS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What a history is made of. A test plants a bug by putting its own class in the place of one."""

    coordinator: type[Coordinator] = Coordinator
    shell: type[Shell] = Shell
    standing: type[Standing] = Standing
    slots: type[Slots] = Slots
    engine: type[Engine] = Engine
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
        self.arena = Arena(settings.workers, settings.shards, settings.blocks, settings.pieces)
        self.core = self.parts.coordinator(settings.workers, 1, self.limits, settings.min_workers)
        self.workers = [Worker(self, rank) for rank in range(settings.workers)]
        self.faults = Faults(self, settings.faults)
        self.shell = self.parts.shell(self)
        self.outcome: str | None = None
        self.check = Checks(self, self.parts.checkers)
        for worker in self.workers:
            worker.process.moment = partial(self.faults.moment, worker)

    @property
    def over(self) -> bool:
        """True once the coordinator has ended the run."""
        return self.outcome is not None

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
        self.coverage.row(self.core.state, event)
        answer = self.core.handle(event, self.scheduler.now)
        if answer:
            self.trace.note("agent", event, *(f"\n{'':17}-> {each}" for each in answer))
        self.check.told(event, answer)
        return answer

    def end(self, outcome: str) -> None:
        """The run is over."""
        self.outcome = outcome
