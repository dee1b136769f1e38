"""Seals: the eight-byte words that say that a leaf, a partial sum or a block is whole.

A seal names its content (step and node), never its view (Invariant 3). It is written last and read first. Zero
means unsealed. In a word: step + 1 in the upper forty bits, then twice twelve bits for the ends of the range.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from relume.arena.layout import BLOCKS_MAX, SLOT_WORDS, ControlLayout
from relume.core.ranges import Range

UNSEALED = 0
_BITS = 12
_MASK = (1 << _BITS) - 1

Words = npt.NDArray[np.uint64]


def pack(step: int, node: Range) -> int:
    """Return the seal of `node` of `step`."""
    return (step + 1) << (2 * _BITS) | node[0] << _BITS | node[1]


def unpack(word: int) -> tuple[int, Range]:
    """Return (step, node) of a seal that is not `UNSEALED`."""
    return (word >> (2 * _BITS)) - 1, (word >> _BITS & _MASK, word & _MASK)


class Seals:
    """All seals of the arena, as one process sees them: so many `blocks` of a result, so many `slots` of a worker."""

    def __init__(self, words: memoryview, layout: ControlLayout, blocks: int, slots: int = SLOT_WORDS) -> None:
        everything: Words = np.frombuffer(words, dtype=np.uint64)
        self._slots = [everything[layout.seals(r) :][:SLOT_WORDS][:slots] for r in range(layout.workers)]
        self._blocks = [everything[layout.blocks(i) :][:BLOCKS_MAX][:blocks] for i in range(layout.kept)]
        self._kept = layout.kept
        self.blocks = blocks

    def slot(self, rank: int) -> Words:
        """Return the seals of the slots of `rank` (written by `rank` alone)."""
        return self._slots[rank]

    def sealed(self, step: int) -> Iterator[tuple[int, int, Range]]:
        """Yield (rank, slot, node) for every sealed node of `step`, the dead's included."""
        for rank, words in enumerate(self._slots):
            for index, word in enumerate(words.tolist()):  # each is read once: its owner may unseal it meanwhile
                if word >> (2 * _BITS) == step + 1:
                    yield rank, index, unpack(word)[1]

    def unseal_blocks(self, step: int, blocks: range) -> None:
        """Say that `blocks` are about to be written for `step`: whoever reads the older result there can tell."""
        self._blocks[step % self._kept][blocks.start : blocks.stop] = UNSEALED

    def seal_blocks(self, step: int, blocks: range) -> None:
        """Say that `blocks` of the result of `step` are whole."""
        self._blocks[step % self._kept][blocks.start : blocks.stop] = step + 1

    def unsealed(self, step: int, blocks: list[int]) -> list[int]:
        """Return those of `blocks` that are not whole for `step`."""
        words = self._blocks[step % self._kept].tolist()
        return [block for block in blocks if words[block] != step + 1]

    def complete(self, step: int) -> bool:
        """True if every block of `step` is sealed."""
        return bool((self._blocks[step % self._kept] == step + 1).all())

    def overtaken(self, step: int) -> bool:
        """True if a block of a newer step stands where those of `step` would."""
        return bool((self._blocks[step % self._kept] > step + 1).any())

    def newest_complete(self) -> int:
        """Return the newest step whose blocks are all sealed, or -1."""
        newest = 0
        for words in self._blocks:
            first = int(words[0])
            if first > newest and bool((words == first).all()):
                newest = first
        return newest - 1
