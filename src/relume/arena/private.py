"""Shared memory seen through a private map: read where it stands, copied page by page where it is written to.

A written page is this process's own from then on, and shows nothing new; so whoever lends such memory out has to know
whether a page was copied, also by code that leaves no other trace. The kernel tells (`/proc/self/pagemap`); where it
does not, there is no private map.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

import numpy as np

from relume.arena.memory import never_unmap

_NORESERVE = 0x4000
_ENTRY = 8
_SHARED, _SWAPPED, _PRESENT = (np.uint64(1 << bit) for bit in (61, 62, 63))


class PrivateMap:
    """The first `size` bytes of the memfd `descriptor`; never unmapped. Forked children have it too: it cannot harm."""

    def __init__(self, descriptor: int, size: int) -> None:
        flags, access = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        self.memory = mmap.mmap(descriptor, size, flags, access)
        never_unmap(self.memory)
        self._address = np.frombuffer(self.memory, dtype=np.uint8).ctypes.data
        self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.is_copied(0, size)
        except (OSError, ValueError):
            os.close(self._pages)
            raise

    @classmethod
    def make(cls, descriptor: int, size: int) -> PrivateMap | None:
        """Return a map; None if this system cannot make one, or cannot tell what was copied."""
        if sys.platform != "linux":
            return None
        with contextlib.suppress(OSError, ValueError):
            return cls(descriptor, size)
        return None

    def is_copied(self, start: int, size: int) -> bool:
        """True if a page of this range was written to, by whatever means."""
        first, last = start // mmap.PAGESIZE, -(-(start + size) // mmap.PAGESIZE)
        count = last - first
        read = os.pread(self._pages, count * _ENTRY, (self._address // mmap.PAGESIZE + first) * _ENTRY)
        entries = np.frombuffer(read, dtype=np.uint64)
        if len(entries) != count:
            raise ValueError(f"/proc/self/pagemap told of {len(entries)} pages of {count}")
        there = (entries & (_PRESENT | _SWAPPED)) != 0
        return bool((there & ((entries & _SHARED) == 0)).any())

    def discard(self, start: int, size: int) -> None:
        """Give back the copies of pages of this range: what is shared is seen again."""
        self.memory.madvise(mmap.MADV_DONTNEED, start, size)
