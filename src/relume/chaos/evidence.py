"""What a run left behind, read into plain values: the records of its workers and the events of its agent.

Nothing is judged here. The last line of a file may be torn (its writer was killed in the middle) and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from relume.wire.events import (
    ArenaReserved,
    Event,
    Line,
    Mirrored,
    RunEnded,
    Scaled,
    ViewInstalled,
    WorkerLeft,
    WorkerLevel,
    WorkerLost,
    WorkerStarted,
)
from relume.wire.messages import Ballot, View

Who = tuple[int, int]
"""(rank, life): one process, however often its rank is taken."""


class Record(msgspec.Struct, frozen=True):
    """One worker's line about one step. Times are nanoseconds of the monotonic clock that all of a host share.

    `shards`: (shard, start, sealed). `waits`: (from, to) in the engine, in order; those of the first step hold the
    wait for all to join. `replay`: it was no member, and took a result that others had made.
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
    life: int = 0
    replay: bool = False

    @property
    def who(self) -> Who:
        """Who wrote it."""
        return self.rank, self.life


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run as it is told by its own files. `clock_s` is what to add to monotonic seconds to get seconds since 1970."""

    records: dict[tuple[int, int], Record]
    """By (rank, step), as members wrote them."""
    incidents: tuple[WorkerLost, ...]
    views: tuple[View, ...]
    pids: dict[Who, int]
    ended: RunEnded | None
    clock_s: float
    replays: tuple[Record, ...] = ()
    installed_ns: dict[Ballot, int] = field(default_factory=dict)
    """When each view was told, by its number."""
    started_ns: dict[Who, int] = field(default_factory=dict)
    warm: frozenset[Who] = frozenset()
    """Those forked from the template."""
    level: dict[Who, tuple[int, WorkerLevel]] = field(default_factory=dict)
    """When each joiner came level, its state's digest having been verified, and what the agent told of it."""
    left: dict[Who, int] = field(default_factory=dict)
    """When each that left by plan was gone."""
    scaled: tuple[tuple[int, int], ...] = ()
    """When somebody asked for how many workers."""
    mirrored: Mirrored | None = None

    @property
    def lost(self) -> dict[Who, WorkerLost]:
        """The incidents, by whom they are about."""
        return {(incident.rank, incident.life): incident for incident in self.incidents}

    @property
    def began_ns(self) -> int:
        """When the first view was told."""
        return self.installed_ns.get(self.views[0].number, 0) if self.views else 0

    @property
    def survivors(self) -> tuple[Who, ...]:
        """The members of the last view that nothing happened to."""
        gone = self.lost.keys() | self.left.keys()
        members = {rank for rank, _ in self.pids} if not self.views else set(self.views[-1].members)
        newest = dict(sorted(self.pids))
        return tuple(who for who in newest.items() if who not in gone and who[0] in members)

    def members(self, view: View) -> frozenset[Who]:
        """Return the processes that are `view`'s members: the newest of each rank when it was told."""
        at_ns = self.installed_ns.get(view.number, 0)
        return frozenset((rank, self._life(rank, at_ns)) for rank in view.members)

    def _life(self, rank: int, at_ns: int) -> int:
        return max(
            (life for (who, life), began in self.started_ns.items() if who == rank and began <= at_ns), default=0
        )

    def view_before(self, number: Ballot) -> View:
        """Return the view that the view `number` followed."""
        older = [view for view in self.views if view.number < number]
        return older[-1] if older else self.views[0]

    def view(self, number: Ballot) -> View | None:
        """Return the view `number` or, should that have come to nothing, the first one after it."""
        return next((view for view in self.views if view.number >= number), None)


def read_records(folder: Path) -> list[Record]:
    """Return what all workers recorded in `folder`, in the order of rank, life and step."""
    records = [record for path in folder.glob("record-*.jsonl") for record in _decoded(_lines(path), Record)]
    return sorted(records, key=lambda record: (*record.who, record.step))


def read_events(run_dir: Path) -> list[Line]:
    """Return what the agent has told so far."""
    return _decoded(_lines(run_dir / "events.jsonl"), Line)


def read_evidence(run_dir: Path, record_dir: Path) -> Evidence:
    """Read a run that is over."""
    lines = read_events(run_dir)
    records = read_records(record_dir)
    shards = next((line.event.shards for line in lines if isinstance(line.event, ArenaReserved)), 0)
    views = _all(lines, ViewInstalled)
    started = _all(lines, WorkerStarted)
    return Evidence(
        records={(record.rank, record.step): record for record in records if not record.replay},
        replays=tuple(record for record in records if record.replay),
        incidents=tuple(event for _, event in _all(lines, WorkerLost)),
        views=tuple(_view(event, shards) for _, event in views),
        installed_ns={event.view: at_ns for at_ns, event in views},
        pids={(event.rank, event.life): event.pid for _, event in started},
        started_ns={(event.rank, event.life): at_ns for at_ns, event in started},
        warm=frozenset((event.rank, event.life) for _, event in started if event.warm),
        level={(event.rank, event.life): (at_ns, event) for at_ns, event in _all(lines, WorkerLevel)},
        left={(event.rank, event.life): at_ns for at_ns, event in _all(lines, WorkerLeft)},
        scaled=tuple((at_ns, event.workers) for at_ns, event in _all(lines, Scaled)),
        mirrored=next((event for _, event in _all(lines, Mirrored)), None),
        ended=next((event for _, event in _all(lines, RunEnded)), None),
        clock_s=lines[0].time - lines[0].mono_ns / 1e9 if lines else 0.0,
    )


def _view(event: ViewInstalled, shards: int) -> View:
    return View(event.view, event.members, event.step, shards, event.assigned)


_E = TypeVar("_E", bound=Event)


def _all(lines: Iterable[Line], kind: type[_E]) -> list[tuple[int, _E]]:
    return [(line.mono_ns, line.event) for line in lines if isinstance(line.event, kind)]


_T = TypeVar("_T")


def _decoded(lines: Iterable[bytes], kind: type[_T]) -> list[_T]:
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(line) for line in lines]


def _lines(path: Path) -> list[bytes]:
    """Return the whole lines of `path`, none if it is not there."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
