"""What a run's events say when put together: one run's story so far. Pure; it does not know where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from relume.wire.events import (
    ArenaReserved,
    CheckpointFailed,
    CheckpointWritten,
    Line,
    Mirrored,
    Remarked,
    RunEnded,
    RunStarted,
    Scaled,
    ScriptRaised,
    ViewInstalled,
    WorkerLeft,
    WorkerLevel,
    WorkerLost,
    WorkerStarted,
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Workers that a view takes in, the first view aside. Told by no event: it follows from two views."""

    view: tuple[int, int]
    step: int
    ranks: tuple[int, ...]


Told = (
    WorkerStarted
    | WorkerLevel
    | Admitted
    | WorkerLost
    | WorkerLeft
    | Scaled
    | Mirrored
    | CheckpointWritten
    | CheckpointFailed
    | Remarked
)
"""What people are told one by one, in order."""


@dataclass(slots=True)
class Story:
    """Give it the lines in order. Times are seconds since 1970 (`_s`) or monotonic nanoseconds (`_ns`).

    `pids` and `lives` are of the newest process in each rank; `tale` is what happened since training began, with the
    time of each; `whole_ns` says, by an incident's place in `incidents`, when the fleet was as large again.
    """

    started: RunStarted | None = None
    started_s: float = 0.0
    pids: dict[int, int] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    restarts: int = 0
    shards: int | None = None
    views: list[ViewInstalled] = field(default_factory=list)
    incidents: list[WorkerLost] = field(default_factory=list)
    whole_ns: dict[int, int] = field(default_factory=dict)
    levels: list[WorkerLevel] = field(default_factory=list)
    leavers: list[WorkerLeft] = field(default_factory=list)
    scalings: list[Scaled] = field(default_factory=list)
    mirrored: Mirrored | None = None
    checkpoint: CheckpointWritten | None = None
    checkpoints: int = 0
    checkpoint_failures: list[CheckpointFailed] = field(default_factory=list)
    raised: list[ScriptRaised] = field(default_factory=list)
    remarks: list[Remarked] = field(default_factory=list)
    tale: list[tuple[float, Told]] = field(default_factory=list)
    ended: RunEnded | None = None
    last_s: float = 0.0
    _view_ns: list[int] = field(default_factory=list)
    _inside: dict[int, int] = field(default_factory=dict)
    _short: dict[int, int] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        """Take the next line."""
        event = line.event
        self.last_s = line.time
        if isinstance(event, RunStarted):
            self.started, self.started_s = event, line.time
        elif isinstance(event, ArenaReserved):
            self.shards = event.shards
        elif isinstance(event, ViewInstalled):
            self._take_view(event, line)
        elif isinstance(event, ScriptRaised):
            self.raised.append(event)
        elif isinstance(event, RunEnded):
            self.ended = event
        else:
            self._take_told(event)
            if self.views or not isinstance(event, WorkerStarted):
                self.tale.append((line.time, event))

    def _take_told(self, event: Told) -> None:
        if isinstance(event, WorkerStarted):
            self.pids[event.rank], self.lives[event.rank] = event.pid, event.life
            self.restarts += event.life > 0
        elif isinstance(event, WorkerLost):
            self._take_loss(event)
        elif isinstance(event, WorkerLevel):
            self.levels.append(event)
        elif isinstance(event, WorkerLeft):
            self.leavers.append(event)
        elif isinstance(event, Scaled):
            self.scalings.append(event)
        elif isinstance(event, Mirrored):
            self.mirrored = event
        elif isinstance(event, CheckpointWritten):
            self.checkpoint, self.checkpoints = event, self.checkpoints + 1
        elif isinstance(event, CheckpointFailed):
            self.checkpoint_failures.append(event)
        elif isinstance(event, Remarked):
            self.remarks.append(event)

    def _take_loss(self, event: WorkerLost) -> None:
        """Note how large the fleet was before the view that the loss led to. The event may come after later views."""
        index = len(self.incidents)
        self.incidents.append(event)
        before = next((view for view in reversed(self.views) if view.view < event.view), None)
        if before is None or event.rank not in before.members:
            return
        since = [
            n for n, at_ns in enumerate(self._view_ns) if self.views[n].view >= event.view and at_ns > event.lost_ns
        ]
        whole = next((n for n in since if len(self.views[n].members) >= len(before.members)), None)
        if whole is None:
            self._short[index] = len(before.members)
        else:
            self.whole_ns[index] = self._view_ns[whole]

    def _take_view(self, view: ViewInstalled, line: Line) -> None:
        lives = {rank: self.lives.get(rank, 0) for rank in view.members}
        came = tuple(rank for rank, life in lives.items() if self._inside.get(rank) != life)
        if self.views and came:
            self.tale.append((line.time, Admitted(view.view, view.step, came)))
        self.views.append(view)
        self._view_ns.append(line.mono_ns)
        self._inside = lives
        for index, members in list(self._short.items()):
            if len(view.members) >= members:
                self.whole_ns[index] = line.mono_ns
                del self._short[index]

    @property
    def view(self) -> ViewInstalled | None:
        """The newest view."""
        return self.views[-1] if self.views else None

    @property
    def lost(self) -> dict[int, WorkerLost]:
        """By rank, the incident in which its newest process was lost."""
        return {one.rank: one for one in self.incidents if one.life >= self.lives.get(one.rank, 0)}

    @property
    def left(self) -> dict[int, WorkerLeft]:
        """By rank, how its newest process left by plan."""
        return {one.rank: one for one in self.leavers if one.life >= self.lives.get(one.rank, 0)}

    def whole_s(self, index: int) -> float | None:
        """Return the seconds from when a loss was noticed until there were as many members again; None: not so far."""
        whole = self.whole_ns.get(index)
        return None if whole is None else max(0, whole - self.incidents[index].lost_ns) / 1e9

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
