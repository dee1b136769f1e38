"""The words of a transcript: how ranks, ballots, nodes, views and instructions are written and read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from relume.core.coordinator import Coordinator, State
from relume.core.events import (
    AskPromise,
    CloseRun,
    Count,
    Dismiss,
    EndRun,
    Fence,
    Incident,
    InstallView,
    Instruction,
    Left,
    ProposeView,
    Reserve,
    StartReplay,
    StartWorker,
    Tell,
    WithdrawView,
)
from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.wire.messages import Ballot, View

_UNITS = {"ms": 0.001, "s": 1.0}

CLOCK_S = 1000.0
"""What the clock shows when a fleet is born; times are written from there on."""

Lives = Mapping[int, int]
"""By rank: which life of the seat is meant; 0 where nothing is said."""


RUNG_SURVIVORS = 2
"""The rung on which survivors take over what was lost: it goes without saying."""


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


def seats(text: str) -> list[tuple[int, int]]:
    """Read `0,2-4,5.1` as ranks and lives: a plain rank is the first life of its seat."""
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        rank, dot, life = part.partition(".")
        found += [(int(rank), int(life))] if dot else [(rank, 0) for rank in numbers(part)]
    return found


def pairs(text: str) -> dict[int, int]:
    """Read `2:16,3:15`."""
    return {int(rank): int(value) for rank, _, value in (part.partition(":") for part in text.split(",") if part)}


def ballot(text: str) -> Ballot:
    """Read `1.2`."""
    epoch, _, n = text.partition(".")
    return int(epoch), int(n)


def inventory(complete: str, parts: Iterable[str], taken: str) -> Inventory:
    """Read what the arena holds: `complete=4`, `0:[0,1) 1:[2,4)` and `taken=2:3`."""
    sealed: dict[int, list[Range]] = {}
    for part in parts:
        match = re.fullmatch(r"(\d+):\[(\d+),(\d+)\)", part)
        if match is None:
            raise Puzzled(f"{part!r} is no sealed node: write RANK:[FIRST,END)")
        sealed.setdefault(int(match[1]), []).append((int(match[2]), int(match[3])))
    return Inventory(int(complete), sealed, pairs(taken))


# Writing ----------------------------------------------------------------------------------------------------------


def listed(values: Iterable[int], lives: Lives | None = None) -> str:
    """Write `0,2-4,5.1`: ranks in later lives stand for themselves."""
    lives = lives or {}

    def key(pair: tuple[int, int]) -> object:
        place, value = pair
        return seat(value, lives) if lives.get(value) else value - place

    parts = []
    for _, group in groupby(enumerate(sorted(values)), key=key):
        run = [value for _, value in group]
        parts.append(seat(run[0], lives) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts) or "none"


def seat(rank: int, lives: Lives) -> str:
    """Write `2`, or `2.1`."""
    return f"{rank}.{lives[rank]}" if lives.get(rank) else str(rank)


def dotted(number: Ballot) -> str:
    """Write `1.2`."""
    return f"{number[0]}.{number[1]}"


def told(instructions: Sequence[Instruction], lives: Lives) -> list[str]:
    """Write instructions, those that say the same to several workers as one line."""

    def same(instruction: Instruction) -> object:
        if isinstance(instruction, AskPromise):
            return "ask", instruction.ballot
        if isinstance(instruction, InstallView | ProposeView | CloseRun):
            return type(instruction), instruction.view.number
        if isinstance(instruction, WithdrawView):
            return "withdraw", instruction.number
        return type(instruction), id(instruction)

    lines: list[str] = []
    for _, group in groupby(instructions, key=same):
        alike = list(group)
        lines += _lines(alike[0], listed((getattr(each, "rank", 0) for each in alike), lives)).splitlines()
    return lines


def _lines(instruction: Instruction, ranks: str) -> str:  # noqa: C901, PLR0912 - one flat case per instruction
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
            line = f"install {dotted(view.number)} on {ranks} {_view(view)}"
        case ProposeView(_, view):
            line = f"propose {dotted(view.number)} to {ranks} {_view(view)}"
        case WithdrawView(_, number):
            line = f"withdraw {dotted(number)} from {ranks}"
        case StartWorker(rank, life):
            line = f"start {seat(rank, {rank: life})}"
        case StartReplay(_, end):
            line = f"replay {ranks}" + (f" to the end before step {end}" if end >= 0 else "")
        case Dismiss(_, reason):
            line = f"dismiss {ranks}: {reason}"
        case Left(_, reason):
            line = f"left {ranks}: {reason}"
        case Tell(topic, text, rank):
            line = f"tell {topic} of {ranks}: {text}" if rank >= 0 else f"tell {topic}: {text}"
        case CloseRun(_, view):
            line = f"close on {ranks}, main is {view.main}"
        case Incident():
            line = _incident(instruction)
        case EndRun(outcome, reason):
            line = f"end {outcome}: {reason}"
    return line


def _view(view: View) -> str:
    shares = " ".join(f"{rank}:{listed(shards)}" for rank, shards in zip(view.members, view.assigned, strict=True))
    return f"from step {view.step}, shards {shares}"


def _incident(incident: Incident) -> str:
    who = seat(incident.rank, {incident.rank: incident.life})
    what = f"incident {who} {incident.cause.kind}: {incident.cause.text}\n"
    what += f"    lost at {_time(incident.lost_s - CLOCK_S)}"
    if not incident.installed_s:
        return what + (", and the run waits for others" if incident.rung > RUNG_SURVIVORS else ", and no view follows")
    for name, instant in (
        ("fenced", incident.fenced_s),
        ("promised", incident.promised_s),
        ("installed", incident.installed_s),
    ):
        what += f", {name} +{_time(instant - incident.lost_s)}"
    heirs = sorted(set(incident.moved.values()))
    moved = [f"{listed(s for s, h in incident.moved.items() if h == heir)} to {heir}" for heir in heirs]
    rung = f", rung {incident.rung}" if incident.rung != RUNG_SURVIVORS else ""
    return f"{what}; moved {', '.join(moved) or 'nothing'}{rung}"


def _time(seconds: float) -> str:
    return f"{seconds:.6g}s" if seconds >= 1 else f"{seconds * 1000:.4g}ms"


def standing(core: Coordinator) -> str:  # noqa: C901, PLR0911 - one flat case per state
    """Write where the coordinator stands, and for what it waits."""
    members = core._members
    lives = {rank: member.life for rank, member in members.items()}
    unfenced = [loss.rank for loss in core._unfenced()]
    match core.state:
        case State.FORMING:
            joined = [rank for rank in core.alive() if members[rank].joined is not None]
            missing = [rank for rank in core.alive() if members[rank].joined is None]
            waits = [f"{listed(missing, lives)} to join"] if missing else []
            if core.resume_step:
                replaying = [rank for rank in joined if members[rank].level is None]
                waits += [f"{listed(replaying, lives)} to be level"] if replaying else []
            waits += [f"{listed(unfenced, lives)} to be fenced"] if unfenced else []
            waits += ["the arena"] if joined and not core._reserved else []
            return f"forming, waits for {' and '.join(waits) or 'more workers'}"
        case State.STEADY:
            assert core.view is not None
            line = f"steady in view {dotted(core.view.number)} from step {core.view.step}"
            if core._proposal is not None:
                view = core._proposal.view
                line += f", {dotted(view.number)} is proposed from step {view.step}"
            if core.following is not None:
                line += f", {dotted(core.following.number)} follows from step {core.following.step}"
            return line
        case State.BALLOT:
            silent = [rank for rank in core.party() if members[rank].promised < core.ballot]
            waits = [f"{listed(silent, lives)} to promise"] if silent else []
            waits += [f"{listed(unfenced, lives)} to be fenced"] if unfenced else []
            return f"ballot {dotted(core.ballot)}, waits for {' and '.join(waits)}"
        case State.COUNTING:
            return f"counting for {dotted(core.ballot)}"
        case State.PAUSED:
            party = core.party()
            return f"paused after {dotted(core.ballot)}, has {listed(party, lives)} and needs {core.min_workers}"
        case State.CLOSED:
            gone = [rank for rank, m in members.items() if m.loss is not None and m.loss.fenced_s is None]
            there = {*core.alive(), *gone}
            return f"closed, waits for {listed(there, lives)} to be gone" if there else "closed, main is to come back"
        case State.ENDED:
            return "ended"
