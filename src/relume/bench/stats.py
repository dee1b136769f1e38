"""Medians with their uncertainty: what twenty noisy pairs do say, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the limits between which it lies with 95 % confidence."""

    median: float
    low: float
    high: float


def bootstrap(values: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Interval:
    """Return the median of `values` and its percentile-bootstrap interval (Efron 1979), a function of the seed.

    So many samples as large as `values` are drawn from them with replacement; the interval leaves out 2.5 % of their
    medians on either side. Pairs are resampled whole: `values` are ratios or differences, one for each pair.
    """
    if not values:
        raise ValueError("there is no median of nothing")
    found = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(found), size=(resamples, len(found)))
    medians = np.sort(np.median(found[drawn], axis=1))
    outside = round(resamples * (1 - CONFIDENCE) / 2)
    return Interval(float(np.median(found)), float(medians[outside]), float(medians[resamples - 1 - outside]))
