"""The sum: one fixed binary tree over the shards, whoever computed them (Invariant 1).

Floating-point addition is not associative, so the order *is* the result. The order is that of the tree in
`core.ranges`; absent is the identity and not zero, because -0.0 + 0.0 would lose its sign. This module adds
whatever `add` can add, and knows nothing of tensors or of where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from relume.core.ranges import Range, split

V = TypeVar("V")


def fold(sources: Mapping[Range, V], shards: int, add: Callable[[V, V], V]) -> V | None:
    """Return the sum of all `shards` leaves, given nodes that are already summed.

    `sources` maps nodes to values; a leaf that is under no source is absent. Recursion is as deep as the tree.
    """

    def value(lo: int, hi: int) -> V | None:
        if (lo, hi) in sources:
            return sources[lo, hi]
        if hi - lo < 2:
            return None
        middle = split(lo, hi)
        left, right = value(lo, middle), value(middle, hi)
        if left is None:
            return right
        if right is None:
            return left
        return add(left, right)

    return value(0, shards)


def fold_leaves(values: Mapping[int, float], shards: int) -> float | None:
    """Return the float64 sum of one number per shard, in tree order; None if no shard has one."""
    return fold({(shard, shard + 1): value for shard, value in values.items()}, shards, lambda a, b: a + b)
