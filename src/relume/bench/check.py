"""Can this be measured here? Asked before anything is started, and answered with what to do instead."""

from __future__ import annotations

import math

from relume.arena.memory import available_bytes
from relume.bench.orders import Terms
from relume.bench.sizes import MIB, SIZE_MB_MIN, WORKERS_MAX, needed_bytes
from relume.core.words import plural
from relume.errors import ConfigError, MemoryShortage


def check(terms: Terms, pairs: int, batch: int | None) -> None:
    """Raise `ConfigError` for what makes no sense, `MemoryShortage` for what has no room."""
    if not 1 <= terms.workers <= WORKERS_MAX:
        raise ConfigError(f"--workers {terms.workers}: between 1 and {WORKERS_MAX}")
    if not (math.isfinite(terms.size_mb) and terms.size_mb >= SIZE_MB_MIN):
        raise ConfigError(f"--size-mb {terms.size_mb:g}: a number of MiB, at least {SIZE_MB_MIN:g}")
    if pairs < 1:
        raise ConfigError(f"--pairs {pairs}: at least 1")
    if batch is not None and batch < 1:
        raise ConfigError(f"--batch {batch}: at least 1")
    if terms.seed < 0:
        raise ConfigError(f"--seed {terms.seed}: a whole number from 0")
    needed, available = needed_bytes(terms.model, terms.size_mb, terms.workers), available_bytes()
    if sum(needed.values()) > available:
        parts = ", ".join(f"{side} {size / MIB:.0f}" for side, size in needed.items())
        raise MemoryShortage(
            f"measuring {terms.model} with {plural(terms.workers, 'worker')} needs about "
            f"{sum(needed.values()) / MIB:.0f} MiB, and {available / MIB:.0f} MiB are available here. All sides are in "
            f"memory at once ({parts} MiB). Use fewer --workers, or a smaller --size-mb"
        )
