"""A worker's slots: where its leaves and partial sums stand until their step is complete.

Two slots are there from the start. When a worker has more shards than slots, siblings are merged to make room
(rule 8: unseal the destination, add, seal the wider range, unseal the source, so that a death in between leaves
the source to be read); when nothing can be merged, one more slot is taken into use. Leaves that fit stay
apart: they are summed with the blocks anyway, and a finished leaf of a dead worker counts as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from relume.core import ranges
from relume.core.ranges import Range
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Presence
from relume.reduce.seals import UNSEALED, Words, pack, unpack

Write = Callable[[Callable[[], None]], None]
"""Runs a function under the pen once no ballot is promised (rule 3)."""


class Slots:
    """The slots of one worker. `memory(i)` gives slot i as uint8; `seals` are its seal words."""

    def __init__(
        self, seals: Words, memory: Callable[[int], torch.Tensor], layout: GradientLayout, shards: int, count: int
    ) -> None:
        self._seals = seals
        self._memory = memory
        self._layout = layout
        self._shards = shards
        self._count = count
        self._views: dict[int, list[torch.Tensor]] = {}

    def views(self, slot: int) -> list[torch.Tensor]:
        """Return one view per parameter into `slot`."""
        if slot not in self._views:
            self._views[slot] = self._layout.views(self._memory(slot))
        return self._views[slot]

    def held(self, step: int) -> dict[Range, int]:
        """Return the nodes of `step` that stand sealed here, and in which slot."""
        held: dict[Range, int] = {}
        for slot, word in enumerate(self._seals.tolist()):
            if word != UNSEALED and unpack(word)[0] == step:
                held[unpack(word)[1]] = slot
        return held

    def acquire(self, step: int, presence: Callable[[Range], Presence], write: Write) -> int:
        """Return a slot that may be written for `step`, merging siblings if none is free.

        Slots that are sealed for an older step are free: this worker is past that step, so it is complete (rule 5).
        """
        held = self.held(step)
        eager = min(2, self._count)
        for slot in range(eager):
            if slot not in held.values():
                return self._freed(slot, write)
        merged = self._merge_one(held, step, presence, write)
        if merged is not None:
            return merged
        for slot in range(eager, self._count):
            if slot not in held.values():
                return self._freed(slot, write)
        raise AssertionError(f"{self._count} slots cannot hold {sorted(held)}")

    def _freed(self, slot: int, write: Write) -> int:
        def unseal() -> None:
            self._seals[slot] = UNSEALED

        write(unseal)
        return slot

    def _merge_one(
        self, held: dict[Range, int], step: int, presence: Callable[[Range], Presence], write: Write
    ) -> int | None:
        for left in sorted(held):
            right = ranges.sibling(left, self._shards)
            if right in held and right[0] == left[1]:
                self._merge(step, (left, held[left]), (right, held[right]), presence, write)
                return held[right]
        return None

    def _merge(
        self,
        step: int,
        left: tuple[Range, int],
        right: tuple[Range, int],
        presence: Callable[[Range], Presence],
        write: Write,
    ) -> None:
        (left_node, destination), (right_node, source) = left, right
        self._freed(destination, write)
        has_left, has_right = presence(left_node), presence(right_node)
        if bool(has_left.all()) and bool(has_right.all()):
            for into, other in self._flat(destination, source):
                torch.add(into, other, out=into)
        else:
            pairs = zip(self.views(destination), self.views(source), strict=True)
            for (into, other), in_left, in_right in zip(pairs, has_left, has_right, strict=True):
                if in_left and in_right:
                    torch.add(into, other, out=into)
                elif in_right:
                    into.copy_(other)

        def seal() -> None:
            self._seals[destination] = pack(step, (left_node[0], right_node[1]))
            self._seals[source] = UNSEALED

        write(seal)

    def seal(self, slot: int, step: int, shard: int) -> None:
        """Say that `slot` holds the whole leaf of `shard`. Call it under the pen."""
        self._seals[slot] = pack(step, (shard, shard + 1))

    def _flat(self, *slots: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for run in self._layout.spans():
            yield tuple(self._memory(slot)[run.start : run.end].view(run.dtype) for slot in slots)
