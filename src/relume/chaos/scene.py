"""Who is there right now, by the events of a run that is under way. It knows no more than the agent has written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from relume.chaos.evidence import Who
from relume.observe.tail import Tail
from relume.wire.events import (
    Line,
    RunStarted,
    Scaled,
    ViewInstalled,
    WorkerLeft,
    WorkerLevel,
    WorkerLost,
    WorkerStarted,
)

_line = msgspec.json.Decoder(Line)


@dataclass(slots=True)
class Scene:
    """`pids`: every process started so far. `members`: those of the newest view. `gone`: lost, or left by plan.

    `late`: those started when the run had begun.
    """

    tail: Tail
    run: str = ""
    workers: int = 0
    pids: dict[Who, int] = field(default_factory=dict)
    members: frozenset[Who] = frozenset()
    gone: set[Who] = field(default_factory=set)
    level: set[Who] = field(default_factory=set)
    late: set[Who] = field(default_factory=set)

    @classmethod
    def of(cls, run_dir: Path) -> Scene:
        """Return the scene of the run in `run_dir`, which need not be there yet."""
        return cls(Tail(run_dir / "events.jsonl"))

    def look(self) -> None:
        """Take in what is new."""
        for text in self.tail.lines():
            event = _line.decode(text).event
            if isinstance(event, RunStarted):
                self.run, self.workers = event.run, event.workers
            elif isinstance(event, Scaled):
                self.workers = event.workers
            elif isinstance(event, WorkerStarted):
                self.pids[event.rank, event.life] = event.pid
                if self.members:
                    self.late.add((event.rank, event.life))
            elif isinstance(event, ViewInstalled):
                newest = self.newest
                self.members = frozenset((rank, newest.get(rank, 0)) for rank in event.members)
            elif isinstance(event, WorkerLevel):
                self.level.add((event.rank, event.life))
            elif isinstance(event, WorkerLost | WorkerLeft):
                self.gone.add((event.rank, event.life))

    @property
    def newest(self) -> dict[int, int]:
        """The life of each rank's newest process."""
        return dict(sorted(self.pids))

    @property
    def live(self) -> list[Who]:
        """The members that nothing has happened to."""
        return sorted(who for who in self.members if who not in self.gone and self.newest.get(who[0]) == who[1])

    @property
    def there(self) -> list[Who]:
        """Every process that should be running, member or not."""
        return sorted(who for who in self.newest.items() if who not in self.gone)

    @property
    def joiners(self) -> list[Who]:
        """Those on their way back."""
        return [who for who in self.there if who in self.late and who not in self.members and who not in self.level]

    @property
    def whole(self) -> bool:
        """True if there are just as many members as somebody asked for."""
        return bool(self.workers) and len(self.live) == self.workers
