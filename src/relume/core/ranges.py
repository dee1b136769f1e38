"""The shape of the tree: which ranges of shards are its nodes.

A range of n leaves splits at the largest power of two below n, so six shards are ((0 1)(2 3))(4 5). The shape
depends on the number of shards alone, never on who computes them (Invariant 1). This module knows ranges of
integers and nothing of what is summed.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
"""A node of the tree as (first shard, one past the last)."""

SHARDS_MAX = 4095
"""A seal packs both ends of a range into twelve bits each."""


def split(lo: int, hi: int) -> int:
    """Return where the node [lo, hi) splits: after the largest power of two below its size."""
    size = hi - lo
    return lo + (1 << ((size - 1).bit_length() - 1))


def parent(node: Range, shards: int) -> Range | None:
    """Return the parent of `node` in the tree over `shards` leaves; None for the root. Raises if it is no node."""
    lo, hi = 0, shards
    above: Range | None = None
    while (lo, hi) != node:
        if hi - lo < 2:
            raise ValueError(f"{node} is no node of the tree over {shards} shards")
        above = (lo, hi)
        middle = split(lo, hi)
        lo, hi = (lo, middle) if node[0] < middle else (middle, hi)
    return above


def sibling(node: Range, shards: int) -> Range | None:
    """Return the node that is summed with `node`; None for the root."""
    above = parent(node, shards)
    if above is None:
        return None
    middle = split(*above)
    return (middle, above[1]) if node[0] == above[0] else (above[0], middle)


def cover(seals: Iterable[Range], shards: int) -> list[Range] | None:
    """Return the widest sealed nodes that together are all shards, from left to right, or None if any is missing."""
    sealed = set(seals)
    found: list[Range] = []
    pending = [(0, shards)]
    while pending:
        node = pending.pop()
        if node in sealed:
            found.append(node)
        elif node[1] - node[0] < 2:
            return None
        else:
            middle = split(*node)
            pending += [(middle, node[1]), (node[0], middle)]
    return found


def leaves(nodes: Iterable[Range]) -> set[int]:
    """Return the shards under `nodes`."""
    return {shard for lo, hi in nodes for shard in range(lo, hi)}
