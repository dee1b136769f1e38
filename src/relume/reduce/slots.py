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
from relume.reduce.blocks import PIECE_BYTES
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Presence
from relume.reduce.seals import UNSEALED, Words, pack, unpack

Write = Callable[[Callable[[], None]], None]
"""Runs a function under the pen once no ballot is promised (rule 3)."""

Content = Callable[[Range], tuple[Presence, float]]
"""Tells of a sealed node which parameters have a gradient there, and by what it is to be multiplied."""


class Place:
    """A slot as backward sees it: `views` per parameter; the small ones can be made blank, all that is in them -0.0."""

    def __init__(self, layout: GradientLayout, memory: torch.Tensor) -> None:
        self.views = layout.views(memory)
        self.is_small = [entry.small for entry in layout.entries]
        self._small = [view for view, small in zip(self.views, self.is_small, strict=True) if small]
        self._stretches = layout.small(memory)
        self._places = self._addresses()
        self._versions = 0

    def blank(self) -> None:
        """Make the small parameters' places blank; `written` counts from here."""
        for stretch in self._stretches:
            stretch.fill_(-0.0)
        self._versions = self._sum()

    def written(self, times: int) -> bool:
        """True if the small parameters' places were written to so many times, all in all, and are where they were."""
        return self._sum() - self._versions == times and self._addresses() == self._places

    def _addresses(self) -> list[int]:
        return [view.data_ptr() for view in self._small]

    def _sum(self) -> int:
        return sum([view._version for view in self._small])  # noqa: SLF001  (no public spelling)


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
        self._places: dict[int, Place] = {}

    def views(self, slot: int) -> list[torch.Tensor]:
        """Return one view per parameter into `slot`."""
        return self.place(slot).views

    def place(self, slot: int) -> Place:
        """Return `slot` for backward to write to."""
        if slot not in self._places:
            self._places[slot] = Place(self._layout, self._memory(slot))
        return self._places[slot]

    def held(self, step: int) -> dict[Range, int]:
        """Return the nodes of `step` that stand sealed here, and in which slot."""
        held: dict[Range, int] = {}
        for slot, word in enumerate(self._seals.tolist()):
            if word != UNSEALED and unpack(word)[0] == step:
                held[unpack(word)[1]] = slot
        return held

    def acquire(self, step: int, content: Content, write: Write) -> int:
        """Return a slot that may be written for `step`, merging siblings if none is free.

        Slots that are sealed for an older step are free: this worker is past that step, so it is complete (rule 5).
        """
        held = self.held(step)
        eager = min(2, self._count)
        for slot in range(eager):
            if slot not in held.values():
                return self._freed(slot, write)
        merged = self._merge_one(held, step, content, write)
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

    def _merge_one(self, held: dict[Range, int], step: int, content: Content, write: Write) -> int | None:
        for left in sorted(held):
            right = ranges.sibling(left, self._shards)
            if right in held and right[0] == left[1]:
                self._merge(step, (left, held[left]), (right, held[right]), content, write)
                return held[right]
        return None

    def _merge(
        self, step: int, left: tuple[Range, int], right: tuple[Range, int], content: Content, write: Write
    ) -> None:
        (left_node, destination), (right_node, source) = left, right
        self._freed(destination, write)
        (has_left, left_factor), (has_right, right_factor) = content(left_node), content(right_node)
        if bool(has_left.all()) and bool(has_right.all()):
            for into, other in self._flat(destination, source):
                self._add(into, left_factor, other, right_factor)
        else:
            pairs = zip(self.views(destination), self.views(source), strict=True)
            for (into, other), in_left, in_right in zip(pairs, has_left, has_right, strict=True):
                if in_left and in_right:
                    self._add(into, left_factor, other, right_factor)
                elif in_right:
                    torch.mul(other, right_factor, out=into)
                elif in_left:
                    into.mul_(left_factor)

        def seal() -> None:
            self._seals[destination] = pack(step, (left_node[0], right_node[1]))
            self._seals[source] = UNSEALED

        write(seal)

    def _add(self, into: torch.Tensor, factor: float, other: torch.Tensor, other_factor: float) -> None:
        if factor != 1.0:
            into.mul_(factor)
        if other_factor != 1.0:
            other = torch.mul(other, other_factor)
        torch.add(into, other, out=into)

    def seal(self, slot: int, step: int, shard: int) -> None:
        """Say that `slot` holds the whole leaf of `shard`. Call it under the pen."""
        self._seals[slot] = pack(step, (shard, shard + 1))

    def _flat(self, *slots: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for run in self._layout.spans():
            flats = [self._memory(slot)[run.start : run.end].view(run.dtype) for slot in slots]
            yield from zip(*(flat.split(PIECE_BYTES // run.dtype.itemsize) for flat in flats), strict=True)
