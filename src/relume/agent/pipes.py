"""What workers print: read from their pipes as it comes, into the run's folder and onto the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from relume.agent.worker import Worker

_READ_BYTES = 1 << 16


class Pipes:
    """`take(worker, stream, data)` gets what a worker wrote to `out` or `err`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Worker, str, bytes], None]) -> None:
        self._loop = loop
        self._take = take

    def watch(self, worker: Worker) -> None:
        """Read what `worker` says from now on."""
        for descriptor in worker.pipes:
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._on_output, worker, descriptor)

    def catch_up(self, worker: Worker) -> None:
        """Read once what is there: its last words are part of the evidence."""
        for descriptor in list(worker.pipes):
            self._on_output(worker, descriptor)

    def close(self, worker: Worker) -> None:
        """Read all that is left, and close the pipes and everything else of a worker that has ended."""
        for descriptor, stream in worker.pipes.items():
            self._loop.remove_reader(descriptor)
            with contextlib.suppress(OSError):
                while data := os.read(descriptor, _READ_BYTES):
                    self._take(worker, stream, data)
        worker.close()

    def _on_output(self, worker: Worker, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(descriptor)
            worker.pipes.pop(descriptor, None)
            os.close(descriptor)
            return
        self._take(worker, worker.pipes[descriptor], data)
