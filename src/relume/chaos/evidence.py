"""What a run left behind, read into plain values: the records of its workers and the events of its agent.

Nothing is judged here. The last line of a file may be torn (its writer was killed in the middle) and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from relume.wire.events import ArenaReserved, Line, RunEnded, ViewInstalled, WorkerLost, WorkerStarted
from relume.wire.messages import Ballot, View


class Record(msgspec.Struct, frozen=True):
    """One worker's line about one step. Times are nanoseconds of the monotonic clock that all of a host share.

    `shards`: (shard, start, sealed). `waits`: (from, to) in the engine, in order; those of the first step hold the
    wait for all to join.
    """

    rank: int
    step: int
    epoch_view: Ballot
    members: tuple[int, ...]
    digest: str
    begin_ns: int
    shards: tuple[tuple[int, int, int], ...]
    waits: tuple[tuple[int, int], ...]
    taken_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run as it is told by its own files. `clock_s` is what to add to monotonic seconds to get seconds since 1970."""

    records: dict[tuple[int, int], Record]
    """By (rank, step)."""
    incidents: tuple[WorkerLost, ...]
    views: tuple[View, ...]
    pids: dict[int, int]
    ended: RunEnded | None
    clock_s: float

    @property
    def survivors(self) -> tuple[int, ...]:
        """The ranks that nothing happened to."""
        lost = {incident.rank for incident in self.incidents}
        return tuple(rank for rank in sorted(self.pids) if rank not in lost)

    def view_before(self, number: Ballot) -> View:
        """Return the view that the view `number` followed."""
        older = [view for view in self.views if view.number < number]
        return older[-1] if older else self.views[0]

    def view(self, number: Ballot) -> View:
        """Return the view `number`."""
        return next(view for view in self.views if view.number == number)


def read_records(folder: Path) -> dict[tuple[int, int], Record]:
    """Return what the workers recorded in `folder`, by (rank, step)."""
    records = (record for path in folder.glob("record-*.jsonl") for record in _decoded(_lines(path), Record))
    return {(record.rank, record.step): record for record in records}


def read_pids(run_dir: Path) -> dict[int, int]:
    """Return the process of each worker that the agent has started so far."""
    lines = _decoded(_lines(run_dir / "events.jsonl"), Line)
    return {line.event.rank: line.event.pid for line in lines if isinstance(line.event, WorkerStarted)}


def read_evidence(run_dir: Path, record_dir: Path) -> Evidence:
    """Read a run that is over."""
    lines = _decoded(_lines(run_dir / "events.jsonl"), Line)
    events = [line.event for line in lines]
    shards = next((event.shards for event in events if isinstance(event, ArenaReserved)), 0)
    return Evidence(
        records=read_records(record_dir),
        incidents=tuple(event for event in events if isinstance(event, WorkerLost)),
        views=tuple(_view(event, shards) for event in events if isinstance(event, ViewInstalled)),
        pids={event.rank: event.pid for event in events if isinstance(event, WorkerStarted)},
        ended=next((event for event in events if isinstance(event, RunEnded)), None),
        clock_s=lines[0].time - lines[0].mono_ns / 1e9 if lines else 0.0,
    )


def _view(event: ViewInstalled, shards: int) -> View:
    return View(event.view, event.members, event.step, shards, event.assigned)


_T = TypeVar("_T")


def _decoded(lines: Iterable[bytes], kind: type[_T]) -> list[_T]:
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(line) for line in lines]


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines of `path`, none if it is not there."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
