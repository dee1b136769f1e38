"""The bare kernel: what it takes to sum the same bytes with the same processes when nothing may ever fail.

Each process copies a gradient into its slot of one shared mapping; when all have, each sums its part of all slots, in
tree order, in pieces that fit the cache, and divides; when all have, each copies the whole result into private memory.
No framework, no faults, no checks: the time that is left when all of relume but the data's way is taken away.

`memory_pass` is less still: each process copies the same bytes once, from private memory to private memory.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from functools import partial

import torch

from relume.core.ranges import split
from relume.reduce.blocks import PIECE_BYTES

_ALIGNMENT = 64
_FLOAT = 4


class Barrier:
    """All processes wait for each other in the kernel: one eventfd each, which the others add to."""

    def __init__(self, bells: list[int], rank: int) -> None:
        self._mine = bells[rank]
        self._others = [bell for other, bell in enumerate(bells) if other != rank]
        self._come = 0

    def wait(self) -> None:
        """Return when all have called it as often as this process."""
        for bell in self._others:
            os.eventfd_write(bell, 1)
        # Who is already at the next barrier has passed this one, so everybody has come to it: counting is enough.
        while self._come < len(self._others):
            self._come += os.eventfd_read(self._mine)
        self._come -= len(self._others)


class Kernel:
    """One process's part. `descriptor`: of memory for `mapping_bytes(size, workers)`."""

    def __init__(self, descriptor: int, size: int, workers: int, rank: int, barrier: Barrier) -> None:
        memory = mmap.mmap(descriptor, mapping_bytes(size, workers), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        stretch = _stretch(size)
        views = [whole[stretch * i : stretch * i + size].view(torch.float32) for i in range(workers + 1)]
        self._slots, self._result = views[:workers], views[workers]
        self._slot, self._barrier = self._slots[rank], barrier
        self._gradient = torch.full_like(self._result, 1.0 + rank)
        self._taken = torch.zeros_like(self._result)
        self._pieces = self._plan(rank, workers)

    def rounds(self, count: int) -> list[tuple[int, ...]]:
        """Sum `count` times; return of each round when it began, and when copy in, sum and copy out were done."""
        now, barrier = time.monotonic_ns, self._barrier
        times: list[tuple[int, ...]] = []
        for _ in range(count):
            began = now()
            self._slot.copy_(self._gradient)
            copied = now()
            barrier.wait()
            for piece in self._pieces:
                piece()
            summed = now()
            barrier.wait()
            self._taken.copy_(self._result)
            times.append((began, copied, summed, now()))
        return times

    def passes(self, count: int) -> list[tuple[int, ...]]:
        """Copy the same bytes `count` times, all processes at once; return when each copy began and was done."""
        now = time.monotonic_ns
        times: list[tuple[int, ...]] = []
        for _ in range(count):
            began = now()
            self._taken.copy_(self._gradient)
            times.append((began, now()))
        return times

    def wait(self) -> None:
        """Wait for all processes."""
        self._barrier.wait()

    def check(self) -> None:
        """Raise unless the result that was taken is the mean."""
        workers = len(self._slots)
        if not torch.equal(self._taken, torch.full_like(self._taken, (workers + 1) / 2)):
            raise AssertionError("the raw kernel's result is not the mean of what went in")

    def _plan(self, rank: int, workers: int) -> list[Callable[[], object]]:
        """Return the operations of this process, in order: views are made once."""
        numbers, unit, step = len(self._result), _ALIGNMENT // _FLOAT, PIECE_BYTES // _FLOAT
        part = -(-numbers // (workers * unit)) * unit
        begin, end = min(rank * part, numbers), min((rank + 1) * part, numbers)
        operations: list[Callable[[], object]] = []
        for start in range(begin, end, step):
            piece = slice(start, min(start + step, end))
            out = self._result[piece]
            root = _sum([slot[piece] for slot in self._slots], 0, out, operations)
            operations.append(partial(torch.div, root, workers, out=out))
        return operations


def _sum(
    leaves: list[torch.Tensor], at: int, out: torch.Tensor, operations: list[Callable[[], object]]
) -> torch.Tensor:
    """Append what sums `leaves`, whose first is number `at` of all, into `out`; return where the sum will stand."""
    if len(leaves) == 1:
        return leaves[0]
    middle = split(at, at + len(leaves)) - at
    left = _sum(leaves[:middle], at, out, operations)
    scratch = torch.empty_like(out) if left is out else out
    right = _sum(leaves[middle:], at + middle, scratch, operations)
    operations.append(partial(torch.add, left, right, out=out))
    return out


def mapping_bytes(size: int, workers: int) -> int:
    """Return how much memory the slots and the result of gradients of `size` bytes take."""
    return _stretch(size) * (workers + 1)


def _stretch(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
