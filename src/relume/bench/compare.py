"""Did both sides do the same work? Their weights at the end say so: close, though sums were made in another order.

How close is a matter of the model. Rounding in the last bit is all that differs at first, and training carries it on:
little in a linear model under SGD, much where Adam divides a gradient that is nothing but rounding (attention's key
biases) by its own size. So the difference is held against the way that training went.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

TOLERANCES = {"linear": 1e-3, "tiny-1000": 1e-3, "charlm": 0.05}
"""The difference may be so much of the way from the first weights to the last. Other work differs by all of it."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """`largest`: of any weight, relative to the larger of its size and the typical one (root mean square).

    `of_way`: the distance between the two ends, over that from the beginning to DDP's.
    """

    largest: float
    of_way: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """True if the sides are close. A number that is none is not."""
        return self.of_way <= self.tolerance


def compare(first: Path, ours: Path, theirs: Path, tolerance: float) -> Closeness:
    """Compare the weights in two files, float32; `first` has those that both began with."""
    began, mine, other = (np.fromfile(path, dtype=np.float32) for path in (first, ours, theirs))
    if not len(began) == len(mine) == len(other):
        return Closeness(float("inf"), float("inf"), tolerance)
    apart = np.abs(mine - other)
    typical = float(np.sqrt(np.mean(np.square(other, dtype=np.float64))))
    way = float(np.linalg.norm((other - began).astype(np.float64)))
    return Closeness(
        largest=float(np.max(apart / np.maximum(np.abs(other), typical))),
        of_way=float(np.linalg.norm(apart.astype(np.float64))) / way if way else float("inf"),
        tolerance=tolerance,
    )
