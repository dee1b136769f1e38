"""Making sure that a worker can no longer write (Invariant 4), and seeing at once that one is doomed.

The whole process group is killed, data loaders included. A worker is fenced when every one of its tasks is gone or
on its way out of the kernel (PF_EXITING): that is milliseconds before a pidfd fires, which waits for memory to be
torn down.
"""

from __future__ import annotations

import contextlib
import os
import signal

_PF_EXITING = 0x4
_FLAGS, _EXIT_CODE = 6, 49
"""Places in /proc/PID/stat and /proc/PID/task/TID/stat, counted from the field after the command's closing bracket."""
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""A stopped process shows the signal that stopped it where a doomed one shows the one that kills it."""


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads; also `pid` itself, should it have left its group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def doom(stat: int) -> int:
    """Return the wait status that a deadly signal has in store for a process, 0 if none has.

    `stat` is a descriptor of its /proc/PID/stat, whose last field tells it from the moment the signal is sent. After
    that the process has to be scheduled to die of it (0.4 ms, on busy cores 10), and its memory to be torn down before
    the pidfd fires (26 ms for a small worker, on busy cores 155).
    """
    try:
        text = os.pread(stat, 1024, 0)
    except OSError:
        return 0  # it is gone and reaped
    if text.endswith(b" 0\n"):
        return 0  # nearly always
    status = int(text[text.rindex(b")") + 2 :].split()[_EXIT_CODE])
    number = status & 0x7F
    return status if number and number not in _STOPS else 0


def is_fenced(pid: int) -> bool:
    """True if no task of `pid` can run user code any more."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - looked at again and again while others wait
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(_is_exiting(pid, task) for task in tasks)


def is_stopped(pid: int) -> bool:
    """True if the kernel shows the process as stopped or traced."""
    fields = _stat(f"/proc/{pid}/stat")
    return fields is not None and fields[0] in {"T", "t"}


def _is_exiting(pid: int, task: str) -> bool:
    fields = _stat(f"/proc/{pid}/task/{task}/stat")
    return fields is None or fields[0] in {"Z", "X"} or bool(int(fields[_FLAGS]) & _PF_EXITING)


def _stat(path: str) -> list[str] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 1024)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(b")")[2].decode().split()
