"""A worker's hold on the arena's data part: results, buffers, notes and slots as tensors.

Under an agent this is shared memory; in a run of one worker it is private memory with the same layout, so that the
same code makes the same bits.
"""

from __future__ import annotations

import mmap

import torch

from relume.arena import memory
from relume.arena.layout import RESULTS, SLOTS_EAGER, ControlLayout, DataLayout, block_bounds, slots_max
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Notes
from relume.reduce.seals import Seals
from relume.wire.messages import Shape


class Store:
    """Never closed while a tensor may live: unmapping under one is a segmentation fault, not an exception."""

    def __init__(
        self, words: memoryview, control: ControlLayout, shape: Shape, gradient: GradientLayout, descriptor: int | None
    ) -> None:
        self.layout = DataLayout(shape, control.workers)
        self.gradient = gradient
        self.bounds = block_bounds(shape.gradient_bytes)
        self.seals = Seals(words, control, len(self.bounds))
        self._descriptor = descriptor
        self._map: mmap.mmap = (
            memory.private(self.layout.size) if descriptor is None else memory.attach(descriptor, self.layout.size)
        )
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.notes = Notes(memoryview(self._map), self.layout)
        self._grown: set[int] = set()

    def result(self, step: int) -> torch.Tensor:
        """Return the result of `step`: uint8, as long as one gradient."""
        return self._part(self.layout.result(step % RESULTS), self.gradient.size)

    def buffers(self, step: int) -> torch.Tensor:
        """Return where the buffers that shard 0 of `step` left stand: uint8."""
        return self._part(self.layout.buffers(step % RESULTS), self.layout.buffers_size)

    def slot(self, rank: int, index: int) -> torch.Tensor:
        """Return slot `index` of `rank`: uint8, as long as one gradient."""
        return self._part(self.layout.slot(rank, index), self.gradient.size)

    def own_slot(self, rank: int, index: int) -> torch.Tensor:
        """Return an own slot, with memory behind it even if it is not one of the eager ones."""
        if self._descriptor is not None and index >= SLOTS_EAGER and index not in self._grown:
            memory.grow(self._descriptor, self.layout.slot(rank, index), self.layout.gradient_size)
            self._grown.add(index)
        return self.slot(rank, index)

    @property
    def slots(self) -> int:
        """How many slots a worker has address space for."""
        return slots_max(self.layout.shape.shards)

    def _part(self, start: int, size: int) -> torch.Tensor:
        return self._bytes[start : start + size]
