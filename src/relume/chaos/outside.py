"""Kills from outside: this process sends SIGKILL to a worker at a random time that the worker knows nothing of.

How old the run is, in steps, is read from the records that the workers write; between two steps it is told by the clock
and the pace so far. The time of a kill is noted right before the signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from relume.chaos.evidence import read_pids
from relume.chaos.schedule import Outside

LOOK_S = 0.005
"""How often the records are looked at."""


class Killer:
    """Carries out `kills` on the fleet whose agent is the process `agent`."""

    def __init__(self, run_dir: Path, record_dir: Path, agent: int, kills: Sequence[Outside]) -> None:
        self._run_dir = run_dir
        self._pace = Pace(record_dir)
        self._agent = agent
        self._kills = sorted(kills, key=lambda kill: kill.at_step)
        self.killed_ns: dict[int, int] = {}
        self.errors: list[str] = []

    def work(self, alive: Callable[[], bool], deadline: float) -> None:
        """Return when all kills are done, the run is over (`alive` says so) or the monotonic time is `deadline`."""
        for kill in self._kills:
            while self._pace.age() < kill.at_step:
                if not alive() or time.monotonic() > deadline:
                    text = f"the run was over before the kill of {_named(kill.ranks)} at step {kill.at_step:.1f}"
                    self.errors.append(text)
                    break
                time.sleep(LOOK_S)
            else:
                self._kill(kill.ranks)

    def _kill(self, ranks: Sequence[int]) -> None:
        pids = read_pids(self._run_dir)
        for rank in ranks:
            pid = pids.get(rank, 0)
            if not _is_child(pid, self._agent):
                self.errors.append(f"worker {rank} (pid {pid}) was gone before it could be killed from outside")
                continue
            self.killed_ns[rank] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)


class Pace:
    """How many steps old a run is, from the records that grow in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._steps = 0
        self._first: tuple[int, float] | None = None
        self._since = 0.0

    def age(self) -> float:
        """Return the age in steps: those that somebody recorded, and as much of the next as the pace suggests."""
        now = time.monotonic()
        steps = max((self._lines(path) for path in self._folder.glob("record-*.jsonl")), default=0)
        if steps > self._steps:
            self._steps, self._since = steps, now
            self._first = self._first or (steps, now)
        if self._first is None or self._steps == self._first[0]:
            return float(self._steps)
        step_s = (self._since - self._first[1]) / (self._steps - self._first[0])
        return self._steps + min(0.999, (now - self._since) / step_s)

    def _lines(self, path: Path) -> int:
        size, lines = self._sizes.get(path, (0, 0))
        if path.stat().st_size > size:
            with path.open("rb") as file:
                file.seek(size)
                new = file.read()
            size, lines = size + len(new), lines + new.count(b"\n")
            self._sizes[path] = size, lines
        return lines


def _is_child(pid: int, agent: int) -> bool:
    """True if `pid` is a process of the agent's that still runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in {"Z", "X"} and int(fields[1]) == agent


def _named(ranks: Sequence[int]) -> str:
    return f"{'worker' if len(ranks) == 1 else 'workers'} {', '.join(map(str, ranks))}"
