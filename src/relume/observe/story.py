"""What a run's events say when put together: one run's story so far. Pure; it does not know where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from relume.wire.events import (
    ArenaReserved,
    Line,
    Remarked,
    RunEnded,
    RunStarted,
    ScriptRaised,
    ViewInstalled,
    WorkerLost,
    WorkerStarted,
)


@dataclass(slots=True)
class Story:
    """Give it the lines in order. Times are seconds since 1970 (`_s`) or monotonic nanoseconds (`_ns`)."""

    started: RunStarted | None = None
    started_s: float = 0.0
    pids: dict[int, int] = field(default_factory=dict)
    shards: int | None = None
    views: list[ViewInstalled] = field(default_factory=list)
    incidents: list[WorkerLost] = field(default_factory=list)
    raised: list[ScriptRaised] = field(default_factory=list)
    remarks: list[Remarked] = field(default_factory=list)
    ended: RunEnded | None = None
    last_s: float = 0.0

    def take(self, line: Line) -> None:
        """Take the next line."""
        event = line.event
        self.last_s = line.time
        if isinstance(event, RunStarted):
            self.started, self.started_s = event, line.time
        elif isinstance(event, WorkerStarted):
            self.pids[event.rank] = event.pid
        elif isinstance(event, ArenaReserved):
            self.shards = event.shards
        elif isinstance(event, ViewInstalled):
            self.views.append(event)
        elif isinstance(event, WorkerLost):
            self.incidents.append(event)
        elif isinstance(event, ScriptRaised):
            self.raised.append(event)
        elif isinstance(event, Remarked):
            self.remarks.append(event)
        else:
            self.ended = event

    @property
    def view(self) -> ViewInstalled | None:
        """The newest view."""
        return self.views[-1] if self.views else None

    @property
    def lost(self) -> dict[int, WorkerLost]:
        """The incidents by rank."""
        return {incident.rank: incident for incident in self.incidents}

    @property
    def script(self) -> str:
        """What was started, without the interpreter in front of it."""
        words = list(self.started.command) if self.started else []
        if words and "python" in words[0].rpartition("/")[2]:
            del words[0]
        if words and words[0] == "-u":
            del words[0]
        return " ".join(words)

    @property
    def title(self) -> str:
        """What was started, in short: without the folders that its script is in."""
        script, space, arguments = self.script.partition(" ")
        return PurePath(script).name + space + arguments
