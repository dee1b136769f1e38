"""Do the members feel that somebody is coming back? Pure: two runs in, the time of their steps out.

A joiner works beside the members: it imports, loads, replays. On few cores whatever runs beside them makes them slower;
the question is whether a joiner does so more than any other process. So the time of a step while a joiner is on its way
(from the start of its process until it is level) is compared with a *control*: the same script in a fleet of as many
members, beside which *strangers* run instead (`stranger`): as much CPU time, at the same priority, from the same steps
on, and with nothing in common with the run.

A step counts in either run if just one of them is there for at least half of its period (if there are too few such
steps, because a fork of the template is level within a step: for any part of it), if it is not among those that a
kill disturbed, and if no view began with it. Steps of as many members are compared; of the numbers that both runs have,
that of which there are the most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from relume.chaos.evidence import Evidence
from relume.chaos.measure import ENOUGH, WARM_UP, Measured, Timeline

Span = tuple[int, int]
"""From when to when somebody was there; nanoseconds."""
SHARE = 0.5
UNEQUAL = 1.25
"""If undisturbed steps of the two runs differ by this factor, something else kept the machine busy."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Medians of the periods of steps with `members` members; nanoseconds, None where there are no such steps.

    `undisturbed_ns` is of as many members too, if there are enough of them with nobody on its way; else of any number.
    """

    members: int | None
    joining_ns: float | None
    control_ns: float | None
    undisturbed_ns: float | None
    joining_steps: int
    control_steps: int
    control_undisturbed_ns: float | None = None

    @property
    def remarks(self) -> list[str]:
        """What makes the comparison weaker than it should be."""
        known = [time_ns for time_ns in (self.undisturbed_ns, self.control_undisturbed_ns) if time_ns]
        if len(known) < 2 or max(known) <= UNEQUAL * min(known):
            return []
        spans = " and ".join(f"{time_ns / 1e6:.0f} ms" for time_ns in known)
        return [f"control: undisturbed steps took {spans}, so the machine was not equally busy in both runs"]

    @property
    def ratio(self) -> float | None:
        """How much longer a step takes beside a joiner than beside a stranger."""
        return None if not self.joining_ns or not self.control_ns else self.joining_ns / self.control_ns


def joining(evidence: Evidence) -> list[Span]:
    """Return from when to when each joiner was on its way: until it was level, or lost."""
    over = max((record.taken_ns for record in evidence.records.values()), default=0)
    spans = []
    for who, began in sorted(evidence.started_ns.items()):
        if began <= evidence.began_ns:
            continue  # it was there from the start
        level = evidence.level.get(who)
        loss = evidence.lost.get(who)
        spans.append((began, level[0] if level else loss.lost_ns if loss else over))
    return spans


def compare(trial: tuple[Evidence, Measured], control: tuple[Evidence, Measured, Sequence[Span]]) -> Beside:
    """Compare the steps of `trial` beside its joiners with those of `control` beside its strangers."""
    ours = periods(*trial, joining(trial[0]))
    theirs = periods(*control)
    calm, calm_there = _calm(*trial, joining(trial[0])), _calm(*control)
    both = [members for members in ours if len(theirs.get(members, ())) >= ENOUGH and len(ours[members]) >= ENOUGH]
    members = max(both or [members for members in ours if members in theirs], key=lambda m: len(ours[m]), default=None)
    mine, others = (ours[members], theirs[members]) if members is not None else ([], [])
    medians = (_median(mine), _median(others), _usual(calm, members))
    return Beside(members, *medians, len(mine), len(others), _usual(calm_there, members))


def _usual(calm: Mapping[int, list[int]], members: int | None) -> float | None:
    """Return the median of as many members, or of any number where there are too few of those."""
    like = calm.get(members, []) if members is not None else []
    return _median(like if len(like) >= ENOUGH else [period for periods_ns in calm.values() for period in periods_ns])


def periods(evidence: Evidence, measured: Measured, spans: Sequence[Span]) -> dict[int, list[int]]:
    """Return the periods of the steps beside which one of `spans` is, by their number of members."""
    timeline = Timeline(evidence.records.values())
    left_out = _left_out(evidence, measured)
    mostly = _beside(timeline, spans, left_out, SHARE)
    return mostly if sum(map(len, mostly.values())) >= ENOUGH else _beside(timeline, spans, left_out, 0.0)


def _beside(timeline: Timeline, spans: Sequence[Span], left_out: Collection[int], share: float) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for step, period, (begin, end) in _steps(timeline, left_out):
        there = [max(0, min(end, to) - max(begin, since)) for since, to in spans]
        if sum(time > 0 for time in there) == 1 and max(there) >= share * period:
            found.setdefault(timeline.members(step), []).append(period)
    return found


def _calm(evidence: Evidence, measured: Measured, spans: Sequence[Span]) -> dict[int, list[int]]:
    """Return the periods of the steps beside which none of `spans` is, by their number of members."""
    timeline = Timeline(evidence.records.values())
    found: dict[int, list[int]] = {}
    for step, period, (begin, end) in _steps(timeline, _left_out(evidence, measured)):
        if not any(since < end and begin < to for since, to in spans):
            found.setdefault(timeline.members(step), []).append(period)
    return found


def _steps(timeline: Timeline, left_out: Collection[int]) -> Iterable[tuple[int, int, Span]]:
    for step in sorted(timeline.by_step):
        period = timeline.period(step)
        if period is not None and step >= WARM_UP and step not in left_out:
            yield step, period, (timeline.end(step - 1), timeline.end(step))


def _left_out(evidence: Evidence, measured: Measured) -> set[int]:
    return {step for cost in measured.costs for step in cost.steps} | {view.step for view in evidence.views}


def as_ms(beside: Beside) -> Mapping[str, float | None]:
    """Return the medians in milliseconds."""
    times = {
        "joining": beside.joining_ns,
        "control": beside.control_ns,
        "undisturbed": beside.undisturbed_ns,
        "control_undisturbed": beside.control_undisturbed_ns,
    }
    return {name: None if time_ns is None else round(time_ns / 1e6, 3) for name, time_ns in times.items()}


def _median(values: Sequence[int]) -> float | None:
    return float(median(values)) if values else None
