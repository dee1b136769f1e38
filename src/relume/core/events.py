"""What the coordinator is told, and what it answers.

Events are facts that a shell observed; instructions are things that a shell shall do. Both are plain data, so that
a transcript in `tests/scenarios/` and the simulator can speak them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relume.core.plan import Inventory
from relume.wire.messages import Ballot, Shape, View


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a worker is out: a stable `kind` for programs, `text` for people, and the `evidence` for both.

    Kinds: signal, out_of_memory, exit_code, raised, hung, stopped, silent, left_early, planned, profile, protocol,
    no_process, state.
    """

    kind: str
    text: str
    evidence: dict[str, str] = field(default_factory=dict)


# Events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker stands before its first step."""

    rank: int
    terms: tuple[str, ...]
    shape: Shape
    total: int = 0
    life: int = 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """The arena's data part is there."""


@dataclass(frozen=True, slots=True)
class NoMemory:
    """The arena's data part does not fit."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """There is evidence against a worker: it is dead, or it shall be."""

    rank: int
    cause: Cause
    life: int = 0


@dataclass(frozen=True, slots=True)
class Fenced:
    """A worker can no longer write (Invariant 4)."""

    rank: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class Pledged:
    """A worker has promised a ballot."""

    rank: int
    ballot: Ballot
    life: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """The arena was read after everybody promised `ballot`."""

    ballot: Ballot
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's loop over the steps has ended before `step`; `digest` is of its whole state then ("": not told)."""

    rank: int
    step: int
    digest: str = ""
    life: int = 0


@dataclass(frozen=True, slots=True)
class Diverged:
    """Workers that have done the same steps hold different state."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a worker's progress block: it is at `step`."""

    rank: int
    step: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker's process ended with code 0; `taken` is the newest step that it had copied out, if that is known."""

    rank: int
    life: int = 0
    taken: int | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A joiner has replayed all that is complete and stands before `step`."""

    rank: int
    step: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A member has promised not to start the first step of the view `number` without it (rule 10)."""

    rank: int
    number: Ballot
    life: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A member is past the first step of the view `number`: it has begun `step`."""

    rank: int
    number: Ballot
    step: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker was told to go, and works on until a view without it begins."""

    rank: int
    reason: str
    life: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """Somebody wants so many workers."""

    workers: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Joined
    | Reserved
    | NoMemory
    | Lost
    | Fenced
    | Pledged
    | Counted
    | Done
    | Diverged
    | Progress
    | Exited
    | Level
    | Accepted
    | Refused
    | Leaving
    | Scale
    | Tick
)


# Instructions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """Make room for the arena's data part."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Fence:
    """Kill this worker and everything it started; say `Fenced` when it can write no more."""

    rank: int


@dataclass(frozen=True, slots=True)
class AskPromise:
    """Ask this worker to promise."""

    rank: int
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Count:
    """Read the arena and say `Counted`."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class InstallView:
    """Tell this worker the view that is in force."""

    rank: int
    view: View


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a process in this seat, as this life of it, as soon as the one before is gone."""

    rank: int
    life: int


@dataclass(frozen=True, slots=True)
class StartReplay:
    """Tell this worker to load the mirror and to replay. `end`: the loop ended before this step (-1: it has not)."""

    rank: int
    end: int = -1


@dataclass(frozen=True, slots=True)
class ProposeView:
    """Ask this member to promise not to start the view's first step without it (rule 10)."""

    rank: int
    view: View


@dataclass(frozen=True, slots=True)
class WithdrawView:
    """Tell this member that the proposal comes to nothing."""

    rank: int
    number: Ballot


@dataclass(frozen=True, slots=True)
class Dismiss:
    """End this worker, which is in no view and not needed: no loss, and no incident."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """A worker has left by plan: its last leaf is finished, its process has ended."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Something that people should know and that is no loss. `topic` is for programs."""

    topic: str
    text: str
    rank: int = -1


@dataclass(frozen=True, slots=True)
class CloseRun:
    """Tell this worker that every member has left its loop."""

    rank: int
    view: View


@dataclass(frozen=True, slots=True)
class Incident:
    """One loss, once it is dealt with. Times are the core's `now`, in seconds.

    `moved` maps each of its shards that is computed again to its heir. `promised_s` and `installed_s` are 0.0 where
    no view followed, because the run ended instead, or because it waits for workers to come back (`rung` 3).
    """

    rank: int
    cause: Cause
    ballot: Ballot
    step: int
    moved: dict[int, int]
    lost_s: float
    fenced_s: float
    promised_s: float
    installed_s: float
    rung: int = 2
    life: int = 0


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over. `outcome` is one of the names in `core.coordinator.Outcome`."""

    outcome: str
    reason: str


Instruction = (
    Reserve
    | Fence
    | AskPromise
    | Count
    | InstallView
    | StartWorker
    | StartReplay
    | ProposeView
    | WithdrawView
    | Dismiss
    | Left
    | Tell
    | CloseRun
    | Incident
    | EndRun
)
