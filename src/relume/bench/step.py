"""One measurement, from processes to figures: find the batch, let DDP's variants compete, then pair by pair.

What is compared stands in one run on one machine: all sides are there from the first pair to the last, one works and
the others are blocked. Every figure is made of blocks of steps; a pair's ratio is that of two neighbouring blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from relume.arena import memory as arena_memory
from relume.bench import blocks
from relume.bench.ask import Bench, Tell, raw_parts_ms
from relume.bench.compare import TOLERANCES, Closeness, compare
from relume.bench.memory import Arena, Use, arena_of
from relume.bench.orders import BARE, DDP, HOST_OF, RAW, RELUME, WORK, Terms
from relume.bench.prepare import Request, calibrate, tournament
from relume.bench.raw import mapping_bytes
from relume.bench.sides import Stage
from relume.bench.sizes import MIRROR_EVERY, gradient_bytes


@dataclass
class Measured:
    """What came out. `ms[work]` has one value per block; `rounds[work]` says in which round it was.

    `parts`: of each block of the raw kernel, the time of copying in, of summing and of copying out. `mirrors`: how many
    were written in each of relume's blocks. `idle_cpu_s`: what relume's processes used while others were measured, in
    all of `idle_s`. `tensors`, `numbers`: parameters of the model, and the numbers in all of them.
    """

    request: Request
    terms: Terms
    plan: blocks.Plan
    variants: dict[str, list[float]]
    variant: str
    calibration: dict[str, float]
    machine: dict[str, object]
    tensors: int
    numbers: int
    ms: dict[str, list[float]] = field(default_factory=dict)
    rounds: dict[str, list[int]] = field(default_factory=dict)
    parts: list[tuple[float, float, float]] = field(default_factory=list)
    mirrors: list[int] = field(default_factory=list)
    memory: dict[str, Use] = field(default_factory=dict)
    arena: Arena | None = None
    idle_cpu_s: float = 0.0
    idle_s: float = 0.0
    close: Closeness | None = None

    def paired(self, *works: str) -> Iterator[tuple[float, ...]]:
        """Yield the values of `works` from each round that has all of them."""
        by_round = [dict(zip(self.rounds[work], self.ms[work], strict=True)) for work in works]
        for number in by_round[0]:
            if all(number in values for values in by_round):
                yield tuple(values[number] for values in by_round)


def measure(request: Request, folder: Path, tell: Tell) -> Measured:
    """Measure in `folder`. Raises `RunLost` if a side dies."""
    terms = request.terms
    size = gradient_bytes(terms.model, terms.size_mb)
    with _shared(size, terms.workers) as (mapping, bells), Stage(folder, terms.workers) as stage:
        bench = Bench(stage, tell)
        bench.start_peers(mapping, bells)
        terms, calibration = calibrate(bench, request)
        times = tournament(bench, request)
        bench.start_run(terms)
        parameters = bench.begin(terms, DDP, BARE)
        weights = bench.save(DDP, folder / "weights-first")
        step_s = _look(bench)
        plan = blocks.quick(request.pairs) if request.quick else blocks.plan(request.pairs, step_s)
        machine = {
            "torch": bench.side(DDP).torch,
            "cpus": len(os.sched_getaffinity(0)),
            "load_1m": round(os.getloadavg()[0], 2),
        }
        measured = Measured(request, terms, plan, times, bench.variant, calibration, machine, *parameters)
        for number in range(plan.pairs):
            _round(bench, measured, number)
            tell(_pair(measured))
        ours, theirs = (bench.save(name, folder / f"weights-{name}") for name in (RELUME, DDP))
        measured.close = compare(weights, ours, theirs, TOLERANCES[terms.model])
        measured.arena = arena_of(bench.agent, folder / RELUME / "run", terms.workers)
        bench.side(RELUME).finish()
    return measured


def _round(bench: Bench, measured: Measured, number: int) -> None:
    for work in measured.plan.round(number):
        steps = measured.plan.steps[work]
        before, began = bench.relume_cpu_s(), time.monotonic()
        ms, answers = bench.block(work, steps)
        measured.ms.setdefault(work, []).append(ms)
        measured.rounds.setdefault(work, []).append(number)
        if work == RAW:
            measured.parts.append(raw_parts_ms(answers))
        if work == RELUME:
            first = answers[0].steps - steps
            measured.mirrors.append(sum(step % MIRROR_EVERY == 0 for step in range(first, first + steps)))
        else:
            measured.idle_cpu_s += bench.relume_cpu_s() - before
            measured.idle_s += time.monotonic() - began
        side = HOST_OF[work]
        used, most = bench.use(side), measured.memory.get(side)
        measured.memory[side] = used if most is None or used.total > most.total else most


def _pair(measured: Measured) -> str:
    ratios = [ours / theirs for ours, theirs in measured.paired(RELUME, DDP)]
    ours, theirs = measured.ms[RELUME][-1], measured.ms[DDP][-1]
    return (
        f"pair {len(ratios)} of {measured.plan.pairs}: relume {ours:.2f} ms, DDP {theirs:.2f} ms, "
        f"ratio {ratios[-1]:.3f}; median so far {median(ratios):.3f}"
    )


@contextmanager
def _shared(size: int, workers: int) -> Iterator[tuple[int, list[int]]]:
    """Make what the bare processes share: memory for the raw kernel, and bells to wait for each other by."""
    with ExitStack() as stack:
        mapping = arena_memory.create("relume-bench", mapping_bytes(size, workers))
        stack.callback(os.close, mapping)
        bells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(workers)]
        for bell in bells:
            stack.callback(os.close, bell)
        yield mapping, bells


def _look(bench: Bench) -> dict[str, float]:
    """Return roughly how many seconds a step of each takes: one block of each, which does not count."""
    return {work: bench.ms(work, 8 if work in {RELUME, DDP} else 3) / 1e3 for work in WORK}
