"""The lines of a run's `events.jsonl`: a versioned schema for people and programs.

Each line is one JSON object: `v` (schema version), `time` (seconds since 1970), `mono_ns` (the monotonic clock that
all processes of a host share), and `event`, whose `kind` says which struct below it is. A field may be added within a
version; nothing is renamed or removed without raising it.
"""

from __future__ import annotations

import msgspec

SCHEMA = 1


class RunStarted(msgspec.Struct, frozen=True, tag_field="kind", tag="run_started"):
    """The agent is up."""

    run: str
    agent_pid: int
    workers: int
    command: tuple[str, ...]


class WorkerStarted(msgspec.Struct, frozen=True, tag_field="kind", tag="worker_started"):
    """A worker's process exists. `life`: how many had its rank before; `warm`: forked from the template."""

    rank: int
    pid: int
    life: int = 0
    warm: bool = False


class WorkerLevel(msgspec.Struct, frozen=True, tag_field="kind", tag="worker_level"):
    """A joiner has come to the present: from the mirror of `loaded` by replay to `step`; its digest was verified."""

    rank: int
    pid: int
    life: int
    step: int
    loaded: int
    digest: str


class WorkerLeft(msgspec.Struct, frozen=True, tag_field="kind", tag="worker_left"):
    """A worker left by plan, its last leaf finished."""

    rank: int
    pid: int
    life: int
    reason: str


class Scaled(msgspec.Struct, frozen=True, tag_field="kind", tag="scaled"):
    """Somebody asked for another number of workers."""

    before: int
    workers: int


class Mirrored(msgspec.Struct, frozen=True, tag_field="kind", tag="mirrored"):
    """The first mirror is whole: what it takes on this host. `seconds`: how long one worker wrote at its part."""

    step: int
    every: int
    state_bytes: int
    kept: int
    kept_bytes: int
    seconds: float


class CheckpointWritten(msgspec.Struct, frozen=True, tag_field="kind", tag="checkpoint"):
    """A checkpoint is durable, and `latest` names it."""

    step: int
    path: str
    bytes: int
    seconds: float


class CheckpointFailed(msgspec.Struct, frozen=True, tag_field="kind", tag="checkpoint_failed"):
    """A checkpoint could not be written, or one that was there cannot be trusted; training goes on."""

    step: int
    path: str
    reason: str


class ArenaReserved(msgspec.Struct, frozen=True, tag_field="kind", tag="arena_reserved"):
    """The arena's data part is there; `shards` is S."""

    bytes: int
    gradient_bytes: int
    shards: int


class ViewInstalled(msgspec.Struct, frozen=True, tag_field="kind", tag="view_installed"):
    """A view is in force; `assigned` (shards by member) belongs to `step`."""

    view: tuple[int, int]
    step: int
    members: tuple[int, ...]
    assigned: tuple[tuple[int, ...], ...]


class WorkerLost(msgspec.Struct, frozen=True, tag_field="kind", tag="incident"):
    """One loss: culprit, cause, evidence, timeline and what it cost.

    Times are monotonic nanoseconds. `killed_ns` is 0 unless a trap noted its own instant. `phase`, `step` and `shard`
    are the culprit's last words in the arena. `moved` maps each shard that was recomputed to its heir.
    """

    rank: int
    pid: int
    cause: str
    text: str
    evidence: dict[str, str]
    wait_status: int | None
    phase: str
    step: int
    shard: int
    view: tuple[int, int]
    moved: dict[int, int]
    rung: int
    killed_ns: int
    lost_ns: int
    fenced_ns: int
    promised_ns: int
    installed_ns: int
    life: int = 0


class ScriptRaised(msgspec.Struct, frozen=True, tag_field="kind", tag="script_raised"):
    """A worker's script raised; the traceback is the user's."""

    rank: int
    error: str
    where: str
    traceback: str


class Remarked(msgspec.Struct, frozen=True, tag_field="kind", tag="remark"):
    """Something to know that changes nothing: a loss that is not finite, a disk that is full."""

    rank: int
    topic: str
    text: str
    step: int


class RunEnded(msgspec.Struct, frozen=True, tag_field="kind", tag="run_ended"):
    """The last line."""

    outcome: str
    reason: str
    exit_code: int


Event = (
    RunStarted
    | WorkerStarted
    | ArenaReserved
    | ViewInstalled
    | WorkerLevel
    | WorkerLost
    | WorkerLeft
    | Scaled
    | Mirrored
    | CheckpointWritten
    | CheckpointFailed
    | ScriptRaised
    | Remarked
    | RunEnded
)


class Line(msgspec.Struct, frozen=True):
    """One line of the file."""

    v: int
    time: float
    mono_ns: int
    event: Event
