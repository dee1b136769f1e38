"""What stands for gradients: a leaf is (step, shard), a sum is (left, right), a result cell is (root, weights).

`tree` is the oracle. It is written from the design's sentence (a range of n leaves splits at the largest power of two
below n) and does not use `core.ranges`, which it checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from relume.core.ranges import Range, split

Symbol = Any


@lru_cache(maxsize=4096)
def tree(step: int, lo: int, hi: int) -> Symbol:
    """Return the sum of the shards [lo, hi) of `step`, as it has to be."""
    if hi - lo == 1:
        return (step, lo)
    half = 1
    while half * 2 < hi - lo:
        half *= 2
    return (tree(step, lo, lo + half), tree(step, lo + half, hi))


@lru_cache(maxsize=1024)
def weights(step: int, shards: int) -> Symbol:
    """Return the notes of all shards of `step`, as they have to be."""
    return tuple((step, shard) for shard in range(shards))


@lru_cache(maxsize=1024)
def result(step: int, shards: int) -> Symbol:
    """Return what every cell of the result of `step` has to be."""
    return (tree(step, 0, shards), weights(step, shards))


def fold(sources: Mapping[Range, Symbol], lo: int, hi: int) -> Symbol:
    """Return the sum of [lo, hi) as a worker computes it from whatever nodes are sealed; as `reduce.tree.fold`."""
    if (lo, hi) in sources:
        return sources[lo, hi]
    if hi - lo < 2:
        return None
    middle = split(lo, hi)
    left, right = fold(sources, lo, middle), fold(sources, middle, hi)
    if left is None:
        return right
    return left if right is None else (left, right)
