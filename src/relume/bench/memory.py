"""What a side has in memory, by /proc.

PSS counts a page that several processes map in equal parts for each, so the sum over a side's processes is what the
side takes. What the agent holds for its workers and nobody has touched yet is in no PSS: the arena is told apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relume.arena import usage
from relume.arena.layout import PAGE, SLOTS_EAGER, round_up
from relume.wire.events import ArenaReserved, Line, Mirrored

_line = msgspec.json.Decoder(Line)


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of PSS. `workers`: the measured processes; `agent`; `helpers`: whatever else the agent has started."""

    workers: int
    agent: int = 0
    helpers: int = 0

    @property
    def total(self) -> int:
        """All of the side."""
        return self.workers + self.agent + self.helpers


def pss(pids: Iterable[int]) -> int:
    """Return the PSS of these processes, in bytes; who is gone has none."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/smaps_rollup").open() as lines:
            total += next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
    return total


def use_of(workers: Iterable[int], agent: int | None = None) -> Use:
    """Return what a side has: its `workers`, and if they have one their `agent` with all that descends from it."""
    measured = set(workers)
    if agent is None:
        return Use(pss(measured))
    return Use(pss(measured), pss([agent]), pss(descendants(agent) - measured))


def descendants(pid: int) -> set[int]:
    """Return all processes below `pid`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    pending = [pid]
    while pending:
        new = [child for child in children.get(pending.pop(), []) if child not in found]
        found.update(new)
        pending += new
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that these processes have used, all threads together."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Arena:
    """Bytes that relume's arena has allocated, touched or not; `other`: buffers, notes, progress, flight recorders."""

    results: int
    slots: int
    mirror: int
    other: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.results + self.slots + self.mirror + self.other


def arena_of(agent: int, run_dir: Path, workers: int) -> Arena:
    """Return what the arena of the run in `run_dir` takes: the kernel says how much, the run's events what for."""
    found = usage.allocated(agent)
    gradient = kept = 0
    for line in (run_dir / "events.jsonl").read_bytes().splitlines():
        event = _line.decode(line).event
        if isinstance(event, ArenaReserved):
            gradient = round_up(event.gradient_bytes, PAGE)
        elif isinstance(event, Mirrored):
            kept = event.kept_bytes
    slots = workers * SLOTS_EAGER * gradient
    mirror, everything = found[usage.MIRROR], sum(found.values())
    return Arena(kept, slots, mirror, everything - kept - slots - mirror)
