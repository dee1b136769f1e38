"""What happened in a run, event by event, in words: one line for each."""

from __future__ import annotations

from relume.core.words import plural
from relume.observe.story import Admitted, Told
from relume.observe.wording import duration, incident_line, named, size, who
from relume.wire.events import (
    CheckpointFailed,
    CheckpointWritten,
    Mirrored,
    Remarked,
    Scaled,
    WorkerLeft,
    WorkerLevel,
    WorkerLost,
    WorkerStarted,
)

DECIDED = frozenset({"respawn", "leaving", "paused"})
"""Topics of remarks that the coordinator makes of what it decided; others are workers' notes."""


def told(event: Told) -> str:
    """Return what happened, in a line."""
    match event:
        case WorkerStarted():
            how = "forked from the warm template" if event.warm else "started"
            text = f"{who(event.rank, event.life)} {how} (pid {event.pid})"
        case WorkerLevel():
            text = f"{who(event.rank, event.life)} is level before step {event.step}: {_way(event)}"
        case Admitted():
            verb = "is" if len(event.ranks) == 1 else "are"
            text = f"{named(list(event.ranks))} {verb} in from step {event.step} (view {event.view[0]}.{event.view[1]})"
        case WorkerLost():
            text = incident_line(event)
        case WorkerLeft():
            text = f"{who(event.rank, event.life)} left by plan: {event.reason}"
        case _:
            text = _told_of_the_run(event)
    return text


def _told_of_the_run(event: Scaled | Mirrored | CheckpointWritten | CheckpointFailed | Remarked) -> str:
    if isinstance(event, Scaled):
        return f"asked for {plural(event.workers, 'worker')} instead of {event.before}"
    if isinstance(event, Mirrored):
        return mirror_line(event)
    if isinstance(event, CheckpointWritten):
        return checkpoint_line(event)
    if isinstance(event, CheckpointFailed):
        return f"checkpoint of step {event.step} failed: {event.reason}; training goes on"
    if event.topic in DECIDED:
        return event.text
    where = f", step {event.step}" if event.step >= 0 else ""
    return f"note by worker {event.rank}{where}: {event.text} ({event.topic})"


def _way(event: WorkerLevel) -> str:
    source = f"the mirror of step {event.loaded}" if event.loaded else "the script's own start"
    way = f"from {source}, {plural(max(0, event.step - event.loaded), 'step')} replayed"
    return f"{way}, digest verified" if event.digest else way


def checkpoint_line(event: CheckpointWritten) -> str:
    """Return where a checkpoint is and what it took."""
    return f"checkpoint of step {event.step}: {event.path} ({size(event.bytes)}, {duration(event.seconds)})"


def mirror_line(event: Mirrored) -> str:
    """Return what the mirror takes, in memory and in time."""
    return (
        f"mirrored every {plural(event.every, 'step')}: two states of {size(event.state_bytes)}, "
        f"{plural(event.kept, 'result')} of {size(event.kept_bytes)} together; {duration(event.seconds)} to write one"
    )
