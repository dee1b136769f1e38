"""The dead that the agent has to bury without having started them: it adopts orphans while a warm worker is born.

A warm worker is the child of a process that ends at once (`warm.py`), and the kernel gives it to the nearest ancestor
that adopts. Other orphans may come with it: what a dead worker had started, the rest of a birth that came to nothing.
In a container whose first process is the agent, all orphans come. Dead ones stay in the process table until their
parent waits for them.

Never waits for a child that somebody else of this process waits for: what the agent starts is in the agent's own
process group or leads one, and an orphan is in its worker's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_STATE, _PARENT, _GROUP = 0, 1, 2
"""Places in /proc/PID/stat, counted from the field after the command's closing bracket."""


def adopt_orphans(*, on: bool) -> None:
    """Have orphans among this process's descendants become its children, or not. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def reap_orphans() -> int:
    """Wait for dead orphans, and never block; return how many there were. One system call if nobody is dead."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return 0
    except ChildProcessError:
        return 0
    count = 0
    for pid in _children():
        if _is_dead_orphan(pid):
            with contextlib.suppress(ChildProcessError):
                count += os.waitpid(pid, os.WNOHANG)[0] == pid
    return count


def is_child(pid: int) -> bool:
    """True if `pid` is a child of this process, dead or alive."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return this process's children; where the kernel does not list them, every process there is."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        return [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found: list[int] = []
    for path in lists:
        with contextlib.suppress(OSError):  # that thread has just ended
            found += map(int, path.read_text().split())
    return found


def _is_dead_orphan(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    group = int(fields[_GROUP])
    return fields[_STATE] == "Z" and int(fields[_PARENT]) == os.getpid() and group not in {pid, os.getpgrp()}
