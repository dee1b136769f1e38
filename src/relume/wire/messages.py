"""The messages between an agent and its workers, and between a command line and a live agent.

Workers speak first (`Hello`), later tell what they protect (`Join`), answer ballots (`Promised`) and say when they
are done. The agent asks for promises (`Ask`), installs views (`Install`), and closes the run (`Close`).

This module knows nothing of sockets, of torch, or of what anybody does with a message.
"""

from __future__ import annotations

import msgspec

PROTOCOL = 2
"""Raised whenever a message changes so that an older peer would misread it."""

AGENT_VARIABLE = "RELUME_AGENT"
"""Set by the agent, `name=value` words: the descriptors that a worker inherits (`socket`, `control`, `data`, `mirrors`
and `bells` as lists), `kept` and `every` (results in the ring, steps between mirrors; 0: none), `life` (how many
processes had this rank before), and `began` (1: the run has had a view, so that this worker comes later)."""

Ballot = tuple[int, int]
"""(epoch, n): the coordinator's incarnation, then a counter. Never goes back (scenario 4)."""


class View(msgspec.Struct, frozen=True):
    """A numbered membership: who is in, from which step, and who computes what in that first step.

    `step` is the oldest step that was not complete when the view began. In it, `assigned[i]` are the shards of
    `members[i]`; what a dead worker had sealed stands in the arena and is nobody's. From the next step on, the
    shards are spread evenly (`core.view.spread`). Owners of blocks follow from `members` alone.
    """

    number: Ballot
    members: tuple[int, ...]
    step: int
    shards: int
    assigned: tuple[tuple[int, ...], ...]

    @property
    def main(self) -> int:
        """The rank that prints and saves: the lowest one alive."""
        return self.members[0]


class Shape(msgspec.Struct, frozen=True):
    """What decides the size of the arena's data part. All workers of a run have the same one."""

    gradient_bytes: int
    buffer_bytes: int
    parameters: int
    shards: int


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A worker has started `relume.init`: who it is and the numerics its bits depend on."""

    rank: int
    pid: int
    protocol: int
    profile: dict[str, str]


class Join(msgspec.Struct, frozen=True, tag=True):
    """A worker stands before its first step. `terms` are lines that must be equal on all workers."""

    terms: tuple[str, ...]
    shape: Shape
    total: int


class Promised(msgspec.Struct, frozen=True, tag=True):
    """Under its pen, the worker promised to write nothing until a view at least as new is installed."""

    ballot: Ballot


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The worker's loop over `run.steps` has ended, before step `step`, with a state of this digest ("": inexact)."""

    step: int
    digest: str


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The worker's script raised: it is about to die of it."""

    error: str
    where: str
    traceback: str


class Remark(msgspec.Struct, frozen=True, tag=True):
    """Something worth an event that changes nothing, such as a loss that is not finite."""

    topic: str
    text: str
    step: int


class Level(msgspec.Struct, frozen=True, tag=True):
    """A joiner has replayed all that is complete and stands before `step`.

    `loaded` is the step of the mirror that it began from (0: from the script's own start), `digest` the digest of all
    state that it held after loading, which was compared with the mirror's own.
    """

    step: int
    loaded: int
    digest: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """Under its pen, the worker promised not to start the proposed view's first step without it (rule 10)."""

    number: Ballot


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker is past the proposed view's first step: it is at `step`."""

    number: Ballot
    step: int


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The worker was told to go (SIGTERM, a preemption notice): it works on until a view without it begins."""

    reason: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The worker hands its shards over by plan: it writes nothing from here on (the control of `relume chaos`)."""

    reason: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """The coordinator asks for a promise."""

    ballot: Ballot


class Install(msgspec.Struct, frozen=True, tag=True):
    """A view is in force."""

    view: View


class Replay(msgspec.Struct, frozen=True, tag=True):
    """To a worker that has joined a run that is under way: load the mirror, replay what is kept, say `Level`.

    `end`: the run's loop has ended before this step (-1: it has not), for one that only repeats the script's tail.
    """

    end: int = -1


class Propose(msgspec.Struct, frozen=True, tag=True):
    """A view that shall begin with its `step`, if every member promises not to start that without it (rule 10)."""

    view: View


class Withdraw(msgspec.Struct, frozen=True, tag=True):
    """The proposal of this number, and any older one, comes to nothing."""

    number: Ballot


class Close(msgspec.Struct, frozen=True, tag=True):
    """Every member has left its loop; `view` says who is main for what the script does next."""

    view: View


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The run is over for this worker; `reason` is a sentence for people."""

    reason: str
    diverged: bool = False


class StatusRequest(msgspec.Struct, frozen=True, tag=True):
    """A command line asks how the run stands."""


class ScaleRequest(msgspec.Struct, frozen=True, tag=True):
    """A command line asks for so many workers."""

    workers: int


class ScaleReply(msgspec.Struct, frozen=True, tag=True):
    """What comes of it; `refused` says why nothing does ("": accepted)."""

    before: int
    workers: int
    refused: str


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker as `relume status` shows it. Times in seconds.

    `state`: starting, replaying, spare (level, and no member), in, leaving, ended, lost.
    """

    rank: int
    pid: int
    state: str
    phase: str
    step: int
    shard: int
    idle_s: float
    life: int = 0


class StatusReply(msgspec.Struct, frozen=True, tag=True):
    """A live run, as told by its agent."""

    run: str
    pid: int
    state: str
    uptime_s: float
    view: View | None
    total: int
    incidents: int
    workers: tuple[WorkerStatus, ...]
    target: int = 0
    spares: int = 0
    restarts: int = 0
    mirror_step: int = -1
    mirror_bytes: int = 0
    checkpoint_step: int = -1


FromWorker = Hello | Join | Promised | Finished | Raised | Remark | Level | Accepted | Refused | Leaving | Leave
ToWorker = Ask | Install | Replay | Propose | Withdraw | Close | Stop
ToAgent = StatusRequest | ScaleRequest
