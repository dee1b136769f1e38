"""SIGTERM to a worker is a notice that it has to go: it tells the agent, and works on until a view without it begins.

A script that handles SIGTERM itself keeps its handler, and is told nothing of this; `Stop`, with which the agent ends
a run, then reaches it as the signal that it waits for.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_ours: Callable[[int, FrameType | None], None] | None = None


def install(tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` on SIGTERM unless the script has its own handler; return what undoes this."""
    global _ours  # noqa: PLW0603  (a process has one handler of a signal)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return lambda: None
    owner = os.getpid()

    def notice(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != owner:  # a data loader, forked from here, that is told to end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        # Not here: this may be in the middle of another message. Nor with threading.Thread, whose start() takes a lock
        # that the code under this handler may hold.
        _thread.start_new_thread(tell, ())

    def undo() -> None:
        if signal.getsignal(signal.SIGTERM) is notice and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    _ours = notice
    signal.signal(signal.SIGTERM, notice)
    return undo


def has_own_handler() -> bool:
    """True if the script (or a library in it) handles SIGTERM itself, or ignores it."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler != signal.SIG_DFL and handler is not _ours
