"""The death of a loader process alone (the kernel's choice when memory runs out, as a rule), told where it matters.

torch tells it from a signal handler, which raises in whatever line the main thread is at: in the user's forward, or in
the engine while it holds the pen. Here it is held back until the next shard is asked for, and comes with advice.
DataLoaders that are not ours are told of as before.

This module does not know what the dead process was doing.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from types import FrameType

ADVICE = (
    "A loader process ended without being told to. Killed by signal 9, it was most likely the kernel's choice when "
    "memory ran out: use fewer num_workers, a smaller prefetch_factor, or keep the data in arrays or files rather than "
    "in many Python objects. A bus error means that /dev/shm is full (docker run --shm-size=...). Anything else is in "
    "what the process printed, and num_workers=0 shows it best."
)


class Watch:
    """The loader processes of one pool."""

    def __init__(self, processes: Sequence[BaseProcess]) -> None:
        """Watch `processes`, which have just been started through torch."""
        self.waiting = False
        """Whether the pool waits for these processes, so that there is no better moment to raise."""
        self._processes = processes
        _watches.add(self)
        _hold_back()

    def end(self) -> None:
        """Watch no longer: the processes are about to be told to end."""
        _watches.discard(self)

    def dead(self) -> BaseProcess | None:
        """Return a process that has ended, if there is one."""
        return next((process for process in self._processes if process.exitcode is not None), None)

    def check(self) -> None:
        """Raise RuntimeError, as torch does, if a process has ended."""
        process = self.dead()
        if process is None:
            return
        code = process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        error = RuntimeError(f"DataLoader worker (pid {process.pid}) {how}")
        error.add_note(ADVICE)
        raise error


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class _Handler:
    """torch's handler of SIGCHLD, silent about the processes that we look after ourselves."""

    def __init__(self, handler: object) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            if callable(self._handler):
                self._handler(number, frame)
        except RuntimeError:
            ours = [watch for watch in _watches if watch.dead()]
            if not ours or any(watch.waiting for watch in ours):
                raise


def _hold_back() -> None:
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return  # torch sets no handler there either
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler) and not isinstance(handler, _Handler):
        signal.signal(signal.SIGCHLD, _Handler(handler))
