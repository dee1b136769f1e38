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

    Kinds: signal, out_of_memory, exit_code, raised, hung, stopped, silent, left_early, planned, profile, protocol.
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


@dataclass(frozen=True, slots=True)
class Fenced:
    """A worker can no longer write (Invariant 4)."""

    rank: int


@dataclass(frozen=True, slots=True)
class Pledged:
    """A worker has promised a ballot."""

    rank: int
    ballot: Ballot


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


@dataclass(frozen=True, slots=True)
class Diverged:
    """Workers that have done the same steps hold different state."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a worker's progress block: it is at `step`."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker's process ended with code 0."""

    rank: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Joined | Reserved | NoMemory | Lost | Fenced | Pledged | Counted | Done | Diverged | Progress | Exited | Tick


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
class CloseRun:
    """Tell this worker that every member has left its loop."""

    rank: int
    view: View


@dataclass(frozen=True, slots=True)
class Incident:
    """One loss, once it is dealt with. Times are the core's `now`, in seconds.

    `moved` maps each of its shards that is computed again to its heir. `promised_s` and `installed_s` are 0.0 where
    no view followed, because the run ended instead.
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


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over. `outcome` is one of the names in `core.coordinator.Outcome`."""

    outcome: str
    reason: str


Instruction = Reserve | Fence | AskPromise | Count | InstallView | CloseRun | Incident | EndRun
