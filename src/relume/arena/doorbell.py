"""A doorbell per worker: an eventfd that anybody may ring and only its owner waits on, always with a bound.

The kernel adds rings atomically, so that none is lost and no lock is shared between processes (rule 1). A ring
says "look again", never what to see: whoever wakes reads the seals.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable


def create() -> int:
    """Return a new eventfd."""
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Doorbells:
    """All seats' doorbells, seen from the worker in one of them. `in_use(rank)`: somebody sits, or sat, there."""

    def __init__(self, descriptors: list[int], rank: int, in_use: Callable[[int], bool] = lambda _: True) -> None:
        self._descriptors = descriptors
        self._mine = descriptors[rank]
        self._others = [(other, fd) for other, fd in enumerate(descriptors) if other != rank]
        self._in_use = in_use
        self._poll = select.poll()
        self._poll.register(self._mine, select.POLLIN)

    def ring_others(self) -> None:
        """Wake every other worker, those that are still on their way in too."""
        for rank, descriptor in self._others:
            if self._in_use(rank):
                self._ring(descriptor)

    def ring_self(self) -> None:
        """Wake this worker's own main thread (called by its background thread)."""
        self._ring(self._mine)

    def wait(self, timeout_s: float) -> bool:
        """Wait until rung, at most `timeout_s`; True if rung."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        try:
            os.eventfd_read(self._mine)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in self._descriptors:
            os.close(descriptor)

    @staticmethod
    def _ring(descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full, so its owner will wake anyway
            os.eventfd_write(descriptor, 1)
