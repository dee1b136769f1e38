"""The words of a transcript: how ranks, ballots, nodes, views and instructions are written and read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby

from relume.core.coordinator import Coordinator, State
from relume.core.events import (
    AskPromise,
    CloseRun,
    Count,
    EndRun,
    Fence,
    Incident,
    InstallView,
    Instruction,
    Reserve,
)
from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.wire.messages import Ballot

_UNITS = {"ms": 0.001, "s": 1.0}

CLOCK_S = 1000.0
"""What the clock shows when a fleet is born; times are written from there on."""


class Puzzled(ValueError):
    """A line that is no sentence of this language."""


# Reading ----------------------------------------------------------------------------------------------------------


def words(line: str) -> tuple[float, list[str], dict[str, str]]:
    """Return how far the clock moves first (`+3ms`), the plain words and the `name=value` words of `line`."""
    passed, plain, named = 0.0, [], {}
    for word in shlex.split(line):
        if match := re.fullmatch(r"\+([\d.]+)(ms|s)", word):
            passed += float(match[1]) * _UNITS[match[2]]
        elif match := re.fullmatch(r"([a-z]+)=(.*)", word):
            named[match[1]] = match[2]
        else:
            plain.append(word)
    return passed, plain, named


def numbers(text: str) -> list[int]:
    """Read `0,2-4`."""
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def ballot(text: str) -> Ballot:
    """Read `1.2`."""
    epoch, _, n = text.partition(".")
    return int(epoch), int(n)


def inventory(complete: str, parts: Iterable[str]) -> Inventory:
    """Read what the arena holds: `complete=4` and `0:[0,1) 1:[2,4)`."""
    sealed: dict[int, list[Range]] = {}
    for part in parts:
        match = re.fullmatch(r"(\d+):\[(\d+),(\d+)\)", part)
        if match is None:
            raise Puzzled(f"{part!r} is no sealed node: write RANK:[FIRST,END)")
        sealed.setdefault(int(match[1]), []).append((int(match[2]), int(match[3])))
    return Inventory(int(complete), sealed)


# Writing ----------------------------------------------------------------------------------------------------------


def listed(values: Iterable[int]) -> str:
    """Write `0,2-4`."""
    parts = []
    for _, group in groupby(enumerate(sorted(values)), key=lambda pair: pair[1] - pair[0]):
        run = [value for _, value in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts) or "none"


def dotted(number: Ballot) -> str:
    """Write `1.2`."""
    return f"{number[0]}.{number[1]}"


def told(instructions: Sequence[Instruction]) -> list[str]:
    """Write instructions, those that say the same to several workers as one line."""

    def same(instruction: Instruction) -> object:
        if isinstance(instruction, AskPromise):
            return "ask", instruction.ballot
        if isinstance(instruction, InstallView | CloseRun):
            return type(instruction), instruction.view.number
        return type(instruction), id(instruction)

    lines: list[str] = []
    for _, group in groupby(instructions, key=same):
        alike = list(group)
        lines += _lines(alike[0], listed(getattr(each, "rank", 0) for each in alike)).splitlines()
    return lines


def _lines(instruction: Instruction, ranks: str) -> str:
    match instruction:
        case Reserve(shape):
            line = f"reserve {shape.gradient_bytes} bytes per gradient, {shape.shards} shards"
        case Fence():
            line = f"fence {ranks}"
        case AskPromise(_, number):
            line = f"ask {ranks} to promise {dotted(number)}"
        case Count(number):
            line = f"count for {dotted(number)}"
        case InstallView(_, view):
            pairs = zip(view.members, view.assigned, strict=True)
            shares = " ".join(f"{rank}:{listed(shards)}" for rank, shards in pairs)
            line = f"install {dotted(view.number)} on {ranks} from step {view.step}, shards {shares}"
        case CloseRun(_, view):
            line = f"close on {ranks}, main is {view.main}"
        case Incident():
            line = _incident(instruction)
        case EndRun(outcome, reason):
            line = f"end {outcome}: {reason}"
    return line


def _incident(incident: Incident) -> str:
    what = f"incident {incident.rank} {incident.cause.kind}: {incident.cause.text}\n"
    what += f"    lost at {_time(incident.lost_s - CLOCK_S)}"
    if not incident.installed_s:
        return what + ", and no view follows"
    for name, instant in (
        ("fenced", incident.fenced_s),
        ("promised", incident.promised_s),
        ("installed", incident.installed_s),
    ):
        what += f", {name} +{_time(instant - incident.lost_s)}"
    heirs = sorted(set(incident.moved.values()))
    moved = [f"{listed(s for s, h in incident.moved.items() if h == heir)} to {heir}" for heir in heirs]
    return f"{what}; moved {', '.join(moved) or 'nothing'}"


def _time(seconds: float) -> str:
    return f"{seconds:.6g}s" if seconds >= 1 else f"{seconds * 1000:.4g}ms"


def standing(core: Coordinator) -> str:
    """Write where the coordinator stands, and for what it waits."""
    members = core._members
    unfenced = [rank for rank, m in members.items() if not m.alive and m.fenced_s is None]
    number = dotted(core.ballot)
    match core.state:
        case State.FORMING:
            joined = [rank for rank in core.alive() if members[rank].joined is not None]
            missing = [rank for rank in core.alive() if members[rank].joined is None]
            waits = [f"{listed(missing)} to join"] if missing else []
            waits += [f"{listed(unfenced)} to be fenced"] if unfenced else []
            waits += ["the arena"] if joined and not core._reserved else []
            return f"forming, waits for {' and '.join(waits)}"
        case State.STEADY:
            assert core.view is not None
            return f"steady in view {number} from step {core.view.step}"
        case State.BALLOT:
            silent = [rank for rank in core.alive() if members[rank].promised < core.ballot]
            waits = [f"{listed(silent)} to promise"] if silent else []
            waits += [f"{listed(unfenced)} to be fenced"] if unfenced else []
            return f"ballot {number}, waits for {' and '.join(waits)}"
        case State.COUNTING:
            return f"counting for {number}"
        case State.CLOSED:
            return f"closed, waits for {listed({*core.alive(), *unfenced})} to be gone"
        case State.ENDED:
            return "ended"
