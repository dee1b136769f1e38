"""A measurement as one JSON object, for programs; `table` says the same to people."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from relume.bench.compare import Closeness
from relume.bench.memory import Arena, Use
from relume.bench.orders import ALONE, DDP, GLOO, MEMORY, RAW, RELUME
from relume.bench.sizes import MIB
from relume.bench.stats import RESAMPLES, Interval, bootstrap
from relume.bench.step import Measured
from relume.version import __version__

VERSION = 1
"""Of the JSON object. A field may be added within a version."""
OWN_TIME_US, OWN_TIME_PER_TENSOR_US = 300.0, 1.0
"""What the engine's own time per step may be."""
FORMULA = "relume - alone - raw, of each round; all in one run"
PARTS = ("copy_in", "sum", "copy_out")


def as_json(measured: Measured) -> dict[str, Any]:
    """Return the object that `relume bench step --json` prints. Times in ms per step unless a name says otherwise."""
    terms, plan = measured.terms, measured.plan
    return {
        "v": VERSION,
        "ok": _ok(measured),
        "terms": {
            "workers": terms.workers,
            "model": terms.model,
            "size_mb": terms.size_mb if terms.model == "linear" else None,
            "gradient_mib": round(4 * measured.numbers / MIB, 3),
            "parameter_tensors": measured.tensors,
            "batch_per_worker": terms.batch,
            "threads": 1,
            "seed": terms.seed,
            "single_backward": terms.single_backward,
            "pairs": plan.pairs,
            "steps_per_block": dict(plan.steps),
            "beside_every": plan.beside_every,
            "quick": measured.request.quick,
        },
        "machine": {
            **measured.machine,
            "relume": __version__,
            "python": platform.python_version(),
            "load_1m_after": round(os.getloadavg()[0], 2),
        },
        "relume_over_ddp": _interval(measured, (ours / theirs for ours, theirs in measured.paired(RELUME, DDP)), 4),
        "interval_ms": {work: _interval(measured, values, 4) for work, values in measured.ms.items()},
        "median_ms": {work: round(median(values), 4) for work, values in measured.ms.items()},
        "pairs": [[round(value, 4) for value in pair] for pair in measured.paired(RELUME, DDP)],
        "all_ms": {work: [round(value, 4) for value in values] for work, values in measured.ms.items()},
        "mirrors_per_block": fmean(measured.mirrors),
        "ddp_variants_ms": {name: round(median(values), 4) for name, values in measured.variants.items()},
        "ddp_variant": measured.variant,
        "calibration": {name: round(value, 4) for name, value in measured.calibration.items()},
        "all_reduce": _all_reduce(measured),
        "own_time_us": own_time(measured),
        "idle": {
            "relume_cpu_percent": round(100 * measured.idle_cpu_s / measured.idle_s, 2) if measured.idle_s else None
        },
        "memory": {side: _use(use) for side, use in measured.memory.items()},
        "arena_mib": _arena(measured.arena) if measured.arena else None,
        "parameters_close": _close(measured.close) if measured.close else None,
    }


def _ok(measured: Measured) -> bool:
    return measured.close is not None and measured.close.ok


def own_time(measured: Measured) -> dict[str, Any]:
    """Return the engine's own time per step: relume's step, less the user's own code, less the raw kernel's."""
    own = [1e3 * (ours - alone - raw) for ours, alone, raw in measured.paired(RELUME, ALONE, RAW)]
    return {
        **_interval(measured, own, 1),
        "budget": OWN_TIME_US + OWN_TIME_PER_TENSOR_US * measured.tensors,
        "formula": FORMULA,
    }


def _all_reduce(measured: Measured) -> dict[str, Any]:
    ours = list(measured.paired(RELUME, ALONE, GLOO, RAW, MEMORY))
    exchange = [relume - alone for relume, alone, *_ in ours]
    beside = {"gloo": 2, "raw": 3, "memory_pass": 4}
    ratios = {
        f"relume_over_{name}": _interval(measured, [e / r[i] for e, r in zip(exchange, ours, strict=True)], 3)
        for name, i in beside.items()
    }
    return {
        "relume_ms": _interval(measured, exchange, 4),
        "gloo_ms": round(median(measured.ms[GLOO]), 4),
        "raw_ms": round(median(measured.ms[RAW]), 4),
        "memory_pass_ms": round(median(measured.ms[MEMORY]), 4),
        **ratios,
        "raw_over_memory_pass": round(median([r[3] / r[4] for r in ours]), 3),
        "raw_parts_ms": {name: round(median(part[i] for part in measured.parts), 4) for i, name in enumerate(PARTS)},
    }


def _interval(measured: Measured, values: Iterable[float], digits: int) -> dict[str, float]:
    found: Interval = bootstrap(list(values), measured.terms.seed, RESAMPLES)
    return {name: round(value, digits) for name, value in asdict(found).items()}


def _close(close: Closeness) -> dict[str, Any]:
    """JSON has no word for what is no number."""
    found = {name: value if math.isfinite(value) else None for name, value in asdict(close).items()}
    return found | {"ok": close.ok}


def _use(use: Use) -> dict[str, float]:
    return {"pss_mib": _mib(use.total)} | {f"{name}_mib": _mib(value) for name, value in asdict(use).items()}


def _arena(arena: Arena) -> dict[str, float]:
    return {"total": _mib(arena.total)} | {name: _mib(value) for name, value in asdict(arena).items()}


def _mib(size: float) -> float:
    return round(size / MIB, 2)
