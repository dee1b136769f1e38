"""Summing a block: the fixed tree over whatever nodes are sealed, in pieces that fit the cache.

A block is a fixed byte range of the gradient. Its owner reads the same range of every sealed node, adds in tree
order, divides once by the sum of the weights, and writes the result. Pieces are at most 256 KiB so that the pen is
never held for long (rule 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from relume.core.ranges import Range, split
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Presence

PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Sources:
    """What a step's result is made of: sealed nodes with their memory, presence per node, and the divisor."""

    shards: int
    memory: Mapping[Range, torch.Tensor]
    presence: Mapping[Range, Presence]
    weight: float

    @property
    def uniform(self) -> bool:
        """True if every parameter has a gradient in every node that is there."""
        return all(bool(present.all()) for present in self.presence.values())


def pieces(
    layout: GradientLayout, sources: Sources, block: tuple[int, int], result: torch.Tensor
) -> Iterator[Callable[[], None]]:
    """Yield functions that each compute one piece of `block` into `result`; together they are the block."""
    if sources.uniform:
        everything = frozenset(sources.memory)
        for run in layout.spans():
            yield from _stretch(sources, everything, run.dtype, _overlap(block, run.start, run.end), result)
        return
    for index, entry in enumerate(layout.entries):
        present = frozenset(node for node, bits in sources.presence.items() if bits[index])
        if present:
            yield from _stretch(sources, present, entry.dtype, _overlap(block, entry.offset, entry.end), result)


def _overlap(block: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    return max(block[0], start), min(block[1], end)


def _stretch(
    sources: Sources, nodes: frozenset[Range], dtype: torch.dtype, span: tuple[int, int], result: torch.Tensor
) -> Iterator[Callable[[], None]]:
    for start in range(span[0], span[1], PIECE_BYTES):
        end = min(start + PIECE_BYTES, span[1])

        def compute(start: int = start, end: int = end) -> None:
            out = result[start:end].view(dtype)
            inputs = {node: sources.memory[node][start:end].view(dtype) for node in nodes}
            root = _sum(inputs, 0, sources.shards, out)
            if root is not None:
                torch.div(root, sources.weight, out=out)

        yield compute


def _sum(inputs: Mapping[Range, torch.Tensor], lo: int, hi: int, out: torch.Tensor) -> torch.Tensor | None:
    """Return the sum of the node [lo, hi): an input as it stands, or `out` (or scratch) after adding into it."""
    if (lo, hi) in inputs:
        return inputs[lo, hi]
    if hi - lo < 2:
        return None
    middle = split(lo, hi)
    left = _sum(inputs, lo, middle, out)
    # The right side must not overwrite a left sum that stands in `out`.
    right = _sum(inputs, middle, hi, torch.empty_like(out) if left is out else out)
    if left is None:
        return right
    if right is None:
        return left
    return torch.add(left, right, out=out)
