"""Summing a block: the fixed tree over whatever nodes are sealed, in pieces that fit the cache.

A block is a fixed byte range of the gradient. Its owner reads the same range of every sealed node, adds in tree
order, divides once by the sum of the weights, and writes the result. Gradients stand in their slots as backward made
them; what each has to be multiplied by to be a leaf is done here too, where it costs no pass over memory. Pieces are
at most 256 KiB so that the pen is never held for long (rule 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from relume.core.ranges import Range, split
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Presence

PIECE_BYTES = 256 << 10


class Scratch:
    """Room for intermediate sums, used again for every piece."""

    def __init__(self) -> None:
        self._room: dict[tuple[int, torch.dtype, int], torch.Tensor] = {}

    def like(self, piece: torch.Tensor, depth: int) -> torch.Tensor:
        """Return room as large as `piece`, another for each `depth`."""
        key = (depth, piece.dtype, piece.numel())
        if key not in self._room:
            if len(self._room) > 64:  # a piece at a stretch's end is of any size
                self._room.clear()
            self._room[key] = torch.empty_like(piece)
        return self._room[key]


@dataclass(frozen=True)
class Sources:
    """What a step's result is made of: sealed nodes with their memory, presence per node, and the divisor.

    `factors`: what a node is to be multiplied by before it is added; nothing stands for 1.
    """

    shards: int
    memory: Mapping[Range, torch.Tensor]
    presence: Mapping[Range, Presence]
    weight: float
    factors: Mapping[Range, float] = field(default_factory=dict)

    @cached_property
    def uniform(self) -> bool:
        """True if every parameter has a gradient in every node that is there."""
        return all(bool(present.all()) for present in self.presence.values())


def pieces(
    layout: GradientLayout,
    sources: Sources,
    block: tuple[int, int],
    result: torch.Tensor,
    scratch: Scratch | None = None,
) -> Iterator[Callable[[], None]]:
    """Yield functions that each compute one piece of `block` into `result`; together they are the block."""
    tree = _Tree(sources, scratch or Scratch())
    if sources.uniform:
        everything = frozenset(sources.memory)
        for run in layout.spans():
            yield from _stretch(tree, everything, run.dtype, _overlap(block, run.start, run.end), result)
        return
    for index, entry in enumerate(layout.entries):
        present = frozenset(node for node, bits in sources.presence.items() if bits[index])
        if present:
            yield from _stretch(tree, present, entry.dtype, _overlap(block, entry.offset, entry.end), result)


def _overlap(block: tuple[int, int], start: int, end: int) -> tuple[int, int]:
    return max(block[0], start), min(block[1], end)


def _stretch(
    tree: _Tree, nodes: frozenset[Range], dtype: torch.dtype, span: tuple[int, int], result: torch.Tensor
) -> Iterator[Callable[[], None]]:
    if span[0] >= span[1]:
        return

    def cut(memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = memory[span[0] : span[1]].view(dtype)
        if span[1] - span[0] <= PIECE_BYTES:
            return (whole,)
        pieces: tuple[torch.Tensor, ...] = whole.split(PIECE_BYTES // dtype.itemsize)
        return pieces

    inputs = {node: cut(tree.sources.memory[node]) for node in nodes}
    for index, out in enumerate(cut(result)):

        def compute(index: int = index, out: torch.Tensor = out) -> None:
            tree.mean({node: parts[index] for node, parts in inputs.items()}, out)

        yield compute


class _Tree:
    """Adds one piece of every node in the order of the tree."""

    def __init__(self, sources: Sources, scratch: Scratch) -> None:
        self.sources = sources
        self._scratch = scratch

    def mean(self, inputs: Mapping[Range, torch.Tensor], out: torch.Tensor) -> None:
        """Write the sum of `inputs`, divided by the weight, to `out`. Without inputs nothing is written."""
        root = self._sum(inputs, (0, self.sources.shards), out, 0)
        if root is not None:
            torch.div(root, self.sources.weight, out=out)

    def _sum(
        self, inputs: Mapping[Range, torch.Tensor], node: Range, out: torch.Tensor, depth: int
    ) -> torch.Tensor | None:
        """Return the sum of `node`: an input as it stands, or `out` after writing to it."""
        value = inputs.get(node)
        if value is not None:
            factor = self.sources.factors.get(node, 1.0)
            return value if factor == 1.0 else torch.mul(value, factor, out=out)
        if node[1] - node[0] < 2:
            return None
        middle = split(*node)
        left = self._sum(inputs, (node[0], middle), out, depth)
        # The right side must not overwrite a left sum that stands in `out`.
        room = self._scratch.like(out, depth) if left is out else out
        right = self._sum(inputs, (middle, node[1]), room, depth + 1)
        if left is None:
            return right
        if right is None:
            return left
        return torch.add(left, right, out=out)
