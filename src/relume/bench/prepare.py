"""What comes before the pairs: the batch that makes the comparison a fair one, and the best that DDP can do."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import msgspec

from relume.bench import blocks, variants
from relume.bench.ask import Bench
from relume.bench.orders import ALONE, BARE, DDP, Terms
from relume.bench.sizes import CHARLM_BATCH, TINY_BATCH

BATCH_MAX = 4096
CALIBRATION_STEPS = 3
"""Steps that count of each look while the batch is sought."""
PROBES = (4, 64)
"""Batches at which the model's own time is looked at first."""
REFINEMENTS = 4
LOOKS = 2
CLOSE = 0.05
"""The batch is right if DDP communicates for half of its step, give or take this."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. `batch`: None where calibration shall find it; `quick`: only show that it works."""

    terms: Terms
    pairs: int
    batch: int | None = None
    quick: bool = False


def calibrate(bench: Bench, request: Request) -> tuple[Terms, dict[str, float]]:
    """Find the batch at which DDP spends about half of its step communicating, if it is not given.

    How much longer the model's own step gets per sample is measured first, with two batches. Then both are looked at
    with the batch that is thought right, and it is corrected so that the model's own step would be as long as what DDP
    adds, until it is so, or a few times. Where the own step is longer even with one sample, the batch is 1.
    """
    terms, workers = request.terms, request.terms.workers
    fixed = {"charlm": max(1, CHARLM_BATCH // workers), "tiny-1000": TINY_BATCH}.get(terms.model)
    batch = request.batch or fixed or (PROBES[0] if request.quick or workers == 1 else None)
    slope = _ms_per_sample(bench, terms) if batch is None else None
    terms = msgspec.structs.replace(terms, batch=batch or PROBES[0])
    ddp, alone = _both(bench, terms)
    for _ in range(REFINEMENTS if slope else 0):
        better = min(BATCH_MAX, max(1, round(terms.batch + (ddp - 2 * alone) / (slope or 1.0))))
        if better == terms.batch or abs(alone / ddp - 0.5) < CLOSE:
            break
        terms = msgspec.structs.replace(terms, batch=better)
        ddp, alone = _both(bench, terms)
    bench.tell(f"batch {terms.batch} per worker: a step of DDP takes {ddp:.1f} ms, without any exchange {alone:.1f}")
    return terms, {"ddp_ms": ddp, "alone_ms": alone, "communicating": 1 - alone / ddp}


def _ms_per_sample(bench: Bench, terms: Terms) -> float:
    times = []
    for batch in PROBES:
        bench.begin(msgspec.structs.replace(terms, batch=batch), BARE)
        times.append(_least(bench, ALONE))
    return max(1e-6, (times[1] - times[0]) / (PROBES[1] - PROBES[0]))


def _both(bench: Bench, terms: Terms) -> tuple[float, float]:
    bench.begin(terms, DDP, BARE)
    return _least(bench, DDP), _least(bench, ALONE)


def _least(bench: Bench, work: str) -> float:
    """Return the least of a few looks: whatever else runs here makes a step longer, never shorter."""
    return min(bench.ms(work, CALIBRATION_STEPS, variants.WARM) for _ in range(LOOKS))


def tournament(bench: Bench, request: Request) -> dict[str, list[float]]:
    """Return every variant's times, round by round, and leave the best one chosen."""
    rounds = 1 if request.quick else variants.ROUNDS_MIN
    times: dict[str, list[float]] = {}

    def compete(names: tuple[str, ...]) -> None:
        for turn in blocks.turns(names, rounds):
            for name in turn:
                times.setdefault(name, []).append(bench.ms(DDP, variants.STEPS, variants.WARM, name))

    compete(variants.FIRST[:1] if request.terms.workers == 1 or request.quick else variants.FIRST)
    medians = {name: median(values) for name, values in times.items()}
    if medians.get(variants.VIEW, float("inf")) < medians[variants.DEFAULTS]:
        compete(variants.SECOND)
    medians = {name: median(values) for name, values in times.items()}
    bench.variant = min(medians, key=lambda name: medians[name])
    bench.tell(f"the best DDP of {len(medians)}: {bench.variant}, {medians[bench.variant]:.1f} ms")
    return times
