"""How eagerly the kernel runs a worker that catches up: less than those that train, and equal again when it is level.

To lower one's priority is anybody's right, to raise it again is not: without that right nothing is ever lowered here.
Values are relative to the agent's own, which may run under `nice` itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading


@functools.cache
def may_lower() -> bool:
    """True if a lowered priority could be restored. Tried, since capabilities in a container do not tell."""
    allowed = []

    def attempt() -> None:
        # Linux gives each thread a priority of its own: should it stay lowered, it ends with this thread.
        base = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, base + 1)
            os.setpriority(os.PRIO_PROCESS, 0, base)
            allowed.append(True)

    thread = threading.Thread(target=attempt, name="relume-priority")
    thread.start()
    thread.join()
    return bool(allowed)


def lower_priority(pid: int, by: int) -> None:
    """Set the priority of the process `pid`, which has one thread, `by` below this process's, if that can be undone."""
    if may_lower():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + by)


def restore_priority(pid: int) -> None:
    """Give every thread of the process group that `pid` leads (its data loaders too) this process's priority.

    A process that is being forked at this moment may be missed: calling it again does no harm.
    """
    if may_lower():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, pid, os.getpriority(os.PRIO_PROCESS, 0))
