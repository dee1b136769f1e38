"""The leaf that a worker is at: which of its blocks are whole before all of it is.

Where the script says that each shard has one backward, a gradient that has come will not change any more. So a worker
shows block by block what is whole, and the owners of the blocks may sum while backward goes on. One worker is at one
leaf at a time: four words of its own hold the leaf's seal (zero: none is open), its slot, its weight, and a bit for
each block. The seal is written last and taken away first (rule 1). When the whole leaf is sealed, that seal counts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from relume.arena.layout import ControlLayout
from relume.reduce.layout import GradientLayout
from relume.reduce.seals import UNSEALED, pack, unpack

_SEAL, _SLOT, _WEIGHT, _BLOCKS = range(4)
_AS_FLOAT, _AS_WORD = struct.Struct("<d"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Opened:
    """The leaf of `shard` in `slot`; bit b of `blocks` says that block b of it is whole."""

    shard: int
    slot: int
    weight: float
    blocks: int


class OpenLeaves:
    """The open leaves of all workers."""

    def __init__(self, words: memoryview, layout: ControlLayout) -> None:
        self._words = words
        self._layout = layout

    def read(self, rank: int, step: int) -> Opened | None:
        """Return the leaf that `rank` is at, if it is one of `step`."""
        words, base = self._words, self._layout.opened(rank)
        seal = words[base + _SEAL]
        slot, weight, blocks = words[base + _SLOT], words[base + _WEIGHT], words[base + _BLOCKS]
        if seal == UNSEALED or words[base + _SEAL] != seal:
            return None
        found, node = unpack(seal)
        return Opened(node[0], slot, _AS_FLOAT.unpack(_AS_WORD.pack(weight))[0], blocks) if found == step else None

    def close(self, rank: int) -> None:
        """`rank` is at no leaf any more."""
        self._words[self._layout.opened(rank) + _SEAL] = UNSEALED

    def open(self, rank: int, step: int, leaf: Opened) -> None:
        """`rank` is at `leaf` of `step`; there was none before."""
        words, base = self._words, self._layout.opened(rank)
        words[base + _SLOT], words[base + _BLOCKS] = leaf.slot, leaf.blocks
        words[base + _WEIGHT] = _AS_WORD.unpack(_AS_FLOAT.pack(leaf.weight))[0]
        words[base + _SEAL] = pack(step, (leaf.shard, leaf.shard + 1))

    def add(self, rank: int, blocks: int) -> None:
        """These blocks of the open leaf of `rank` are whole, too."""
        self._words[self._layout.opened(rank) + _BLOCKS] |= blocks


class Missing:
    """What a leaf still lacks, block by block."""

    def __init__(self, layout: GradientLayout, bounds: Sequence[tuple[int, int]]) -> None:
        size = bounds[0][1] - bounds[0][0]
        self._blocks = [range(e.offset // size, -(-e.end // size)) if e.size else range(0) for e in layout.entries]
        counts = [0] * len(bounds)
        for blocks in self._blocks:
            for block in blocks:
                counts[block] += 1
        self._all = counts
        self._left = list(counts)

    def begin(self) -> None:
        """A new leaf: everything is missing."""
        self._left = list(self._all)

    def came(self, index: int) -> int:
        """Parameter `index` has come; return the blocks that are whole with it, as bits."""
        whole = 0
        for block in self._blocks[index]:
            self._left[block] -= 1
            if not self._left[block]:
                whole |= 1 << block
        return whole
