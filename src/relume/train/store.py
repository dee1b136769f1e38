"""A worker's hold on the arena's data part: results, buffers, notes and slots as tensors.

Under an agent this is shared memory; in a run of one worker it is private memory with the same layout, so that the
same code makes the same bits. Results, buffers and notes stand in a ring; whoever reads an old one may be overtaken by
those who write a new one in its place, and is told.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from relume.arena import memory
from relume.arena.layout import ControlLayout, DataLayout, block_bounds, slots_max
from relume.arena.private import PrivateMap
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Note, Notes
from relume.reduce.opened import OpenLeaves
from relume.reduce.seals import Seals
from relume.wire.messages import Shape


@dataclass(frozen=True, slots=True)
class Kept:
    """A private copy of all that a step left: its result and buffers (uint8), and the note of every shard."""

    step: int
    gradient: torch.Tensor
    buffers: torch.Tensor
    notes: dict[int, Note]


class Store:
    """Never closed while a tensor may live: unmapping under one is a segmentation fault, not an exception."""

    def __init__(
        self, words: memoryview, control: ControlLayout, shape: Shape, gradient: GradientLayout, descriptor: int | None
    ) -> None:
        self.layout = DataLayout(shape, control.workers, control.kept)
        self.gradient = gradient
        self.bounds = block_bounds(shape.gradient_bytes)
        self.seals = Seals(words, control, len(self.bounds), self.slots)
        self.open_leaves = OpenLeaves(words, control)
        self._kept = control.kept
        self._descriptor = descriptor
        self._map: mmap.mmap = (
            memory.private(self.layout.size) if descriptor is None else memory.attach(descriptor, self.layout.size)
        )
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.private = None if descriptor is None else PrivateMap.make(descriptor, self.layout.buffers(0))
        self.notes = Notes(memoryview(self._map), self.layout)
        self._grown: set[int] = set()

    def result(self, step: int) -> torch.Tensor:
        """Return the result of `step`: uint8, as long as one gradient."""
        return self._part(self.layout.result(step % self._kept), self.gradient.size)

    def buffers(self, step: int) -> torch.Tensor:
        """Return where the buffers that shard 0 of `step` left stand: uint8."""
        return self._part(self.layout.buffers(step % self._kept), self.layout.buffers_size)

    def slot(self, rank: int, index: int) -> torch.Tensor:
        """Return slot `index` of `rank`: uint8, as long as one gradient."""
        return self._part(self.layout.slot(rank, index), self.gradient.size)

    def own_slot(self, rank: int, index: int) -> torch.Tensor:
        """Return an own slot, with memory behind it: a seat that is taken later has none, nor have slots beyond two."""
        if self._descriptor is not None and index not in self._grown:
            memory.grow(self._descriptor, self.layout.slot(rank, index), self.layout.gradient_size)
            self._grown.add(index)
        return self.slot(rank, index)

    @property
    def slots(self) -> int:
        """How many slots a worker has address space for."""
        return slots_max(self.layout.shape.shards)

    # For those who replay -----------------------------------------------------------------------------------

    def kept(self, step: int) -> Kept | None:
        """Return a copy of what `step` left; None if it is not complete yet, or not whole any more.

        Seals are read before and after (Invariant 8): what is overwritten is unsealed first.
        """
        if not self._whole(step):
            return None
        gradient, buffers = self.result(step).clone(), self.buffers(step).clone()
        notes = self.notes.copy(step)
        if not self._whole(step):
            return None
        return Kept(step, gradient, buffers, self.notes.decode(notes))

    def is_gone(self, step: int) -> bool:
        """True if what `step` left was there, and something newer is about to take its place or has."""
        return self.seals.overtaken(step) or (self.seals.complete(step) and not self.notes.sealed(step))

    def _whole(self, step: int) -> bool:
        return self.seals.complete(step) and self.notes.sealed(step)

    def _part(self, start: int, size: int) -> torch.Tensor:
        return self._bytes[start : start + size]
