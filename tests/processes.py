"""What a test must not leave behind: processes.

A killed agent's workers have no parent of ours any more, so looking at children alone would miss just the ones that
matter. Every process that the tests start therefore carries a mark in its environment, and one that is new since the
test began counts as the test's if it descends from pytest or carries the mark. Zombies do not count: nothing of them
runs, and who has to reap them is not the test's business.

This module reads /proc and so knows nothing on systems without one: there, nothing is ever found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "RELUME_TESTS"
"""The environment variable by which a process is known as started by these tests."""

GRACE_S = 2.0
"""How long something killed at the end of a test may take to be gone."""

# They serve the whole interpreter once anything has asked for them, and end with it.
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

Identity = tuple[int, int]
"""(pid, start time in clock ticks): a pid alone comes back."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    started: int
    state: str

    @property
    def identity(self) -> Identity:
        """What stays different when the pid is used again."""
        return self.pid, self.started

    def __str__(self) -> str:
        return f"pid {self.pid} (parent {self.parent}, {self.state}): {command_line(self.pid) or '?'}"


def mark_environment() -> None:
    """Give everything that is started from here on the mark of this pytest."""
    os.environ[MARK] = f"pid-{os.getpid()}"


def table() -> dict[int, Process]:
    """Return every process of this machine, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            # The name in parentheses may hold spaces and parentheses itself: what is of use stands after the last one.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            process = Process(pid=int(folder.name), parent=int(fields[1]), started=int(fields[19]), state=fields[0])
            found[process.pid] = process
    return found


def command_line(pid: int) -> str:
    """Return what `pid` was started as, for people; empty if it is gone."""
    return _proc_file(pid, "cmdline").replace("\0", " ").strip()


def started_since(before: set[Identity]) -> list[Process]:
    """Return the running processes that these tests started and that `before` does not have."""
    processes = table()
    return [
        process
        for process in processes.values()
        if process.identity not in before
        and process.state not in {"Z", "X"}
        and (_descends_from_us(process, processes) or _is_marked(process.pid))
        and not any(name in command_line(process.pid) for name in _PYTHONS_OWN)
    ]


def leftovers(before: set[Identity], grace_s: float = GRACE_S) -> list[Process]:
    """Return what is still running after `grace_s` seconds, at once if nothing is."""
    deadline = time.monotonic() + grace_s
    while left := started_since(before):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def kill(processes: list[Process]) -> None:
    """Kill these very processes, and none that has got one of their pids since."""
    now = table()
    for process in processes:
        if process.pid in now and now[process.pid].identity == process.identity:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _descends_from_us(process: Process, processes: dict[int, Process]) -> bool:
    seen: set[int] = set()  # the table was not read in one instant, so it may hold a ring
    parent = process.parent
    while parent in processes and parent not in seen:
        if parent == os.getpid():
            return True
        seen.add(parent)
        parent = processes[parent].parent
    return False


def _is_marked(pid: int) -> bool:
    return f"{MARK}={os.environ.get(MARK)}" in _proc_file(pid, "environ").split("\0")


def _proc_file(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
