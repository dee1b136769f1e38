"""The sides of one measurement, and how to ask them for the time of a step.

All times are in milliseconds per step. A side's block lasts from when its slowest process had made the step that does
not count until its slowest had made the last one; so what is counted is whole steps of the whole side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from relume.agent.spawn import free_port
from relume.bench.memory import Use, cpu_s, descendants, use_of
from relume.bench.orders import BARE, DDP, HOST_OF, RELUME, Begin, Done, Save, Steps, Terms
from relume.bench.sides import Side, Stage
from relume.bench.variants import DEFAULTS

MS = 1e6
SETTLE_S, QUIET_S, QUIET_CPU_S = 30.0, 0.5, 0.05
"""After its start relume is waited for until it takes next to no CPU in such a span, for so long at most."""

Tell = Callable[[str], None]


class Bench:
    """The sides of one measurement, and how to ask them."""

    def __init__(self, stage: Stage, tell: Tell) -> None:
        self._stage = stage
        self.tell = tell
        self.variant = DEFAULTS

    def start_peers(self, mapping: int, bells: list[int]) -> None:
        """Start everybody but relume, which has to know the batch."""
        workers = self._stage.workers
        self.tell(f"starting {workers} processes of plain DDP, and {workers} that exchange nothing")
        self._stage.start_peers(DDP, free_port())
        words = (str(mapping), ",".join(map(str, bells)))
        self._stage.start_peers(BARE, free_port(), words, (mapping, *bells))

    def start_run(self, terms: Terms) -> None:
        """Start relume, and wait until its template has its imports behind it: they are no part of a step."""
        self.tell(f"starting `relume run --workers {terms.workers}`")
        self._stage.start_run(terms)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            before = self.relume_cpu_s()
            time.sleep(QUIET_S)
            if self.relume_cpu_s() - before < QUIET_CPU_S:
                break

    def relume_cpu_s(self) -> float:
        """Return the CPU seconds that relume's processes have used so far."""
        return cpu_s({self.agent, *descendants(self.agent)})

    def side(self, name: str) -> Side:
        """Return the side of that name."""
        return self._stage.sides[name]

    def begin(self, terms: Terms, *names: str) -> tuple[int, int]:
        """Have the sides make their tasks anew; return how many parameters those have: tensors, and numbers in them."""
        done = {name: self.side(name).order(Begin(terms))[0] for name in names}[names[0]]
        return done.tensors, done.numbers

    @property
    def agent(self) -> int:
        """The pid of relume's agent."""
        return self.side(RELUME).processes["run"].pid

    def use(self, name: str) -> Use:
        """Return what a side has in memory now."""
        return use_of(self.side(name).pids, self.agent if name == RELUME else None)

    def save(self, name: str, path: Path) -> Path:
        """Have rank 0 of a side write its parameters into `path`."""
        self.side(name).order(Save(str(path)))
        return path

    def ms(self, work: str, steps: int, warm: int = 1, variant: str = "") -> float:
        """Return the time of a step of `work`."""
        return self.block(work, steps, warm, variant)[0]

    def block(self, work: str, steps: int, warm: int = 1, variant: str = "") -> tuple[float, list[Done]]:
        """Measure a block; return the time of a step, and what the processes said."""
        answers = self.side(HOST_OF[work]).order(Steps(work, warm, steps, variant or self.variant))
        return block_ms(answers, steps), answers


def block_ms(answers: list[Done], steps: int) -> float:
    """Return the time per step: from when the slowest had begun to when the slowest was done."""
    begin_ns = max(answer.begin_ns for answer in answers)
    return (max(answer.end_ns for answer in answers) - begin_ns) / steps / MS


def raw_parts_ms(answers: list[Done]) -> tuple[float, float, float]:
    """Return copying in, summing and copying out of a raw round, each from the slowest process to the slowest."""
    rounds = list(zip(*(answer.parts for answer in answers), strict=True))
    stamps = [[max(times) for times in zip(*each, strict=True)] for each in rounds]
    copied, summed, taken = ([each[i + 1] - each[i] for each in stamps] for i in range(3))
    return fmean(copied) / MS, fmean(summed) / MS, fmean(taken) / MS
