"""What each kill cost, from the survivors' records and the agent's incidents. Pure: files in, numbers out.

All times are of the one monotonic clock of the host, and the clock of a kill starts at the kill itself: the instant
that the trap noted before it sprang, or that this harness noted before it sent the signal.

**Steps.** A step *ends* when the last of its members has taken its result. Its *period* runs from the end of the step
before to its own end, and so holds the update before it: periods add up to the run. A kill *falls* into the first step
that ends after it, and *disturbs* all steps from there to the first one of the view that followed, in which its lost
shards were recomputed (mostly the same step).

**Undisturbed** are the steps that no kill disturbed, that are not next to such a step, and that are not among the
first two, which warm things up. A kill is compared with the undisturbed steps of as many members as there were before
it (on few cores fewer workers are *faster*), or with all undisturbed ones if there are fewer than `ENOUGH` of those.

- `exposed wait`: the time that a survivor waited in the engine, from the kill until the last of the victim's lost
  shards was started by its heir (no shard lost: until the view was installed); the survivor that waited most counts.
  To it is added what the last part of the disturbed steps, from the last leaf's seal to the end, took more than its
  undisturbed median, as far as it came after the kill. Never negative. It is, if anything, too large: a wait for a live
  worker counts if it falls into that time, so does a survivor held up by a ballot with shards of its own still to do,
  and if an heir dies too, the next heir's start is what counts. A kill before the first view has no such shards: there
  it is the time from the kill, or from when all others were ready if that is later, until that view was installed.
- `redo`: the time that heirs spent on computing the victim's lost shards, summed.
- `raw excess`: the periods of the disturbed steps less as many undisturbed medians. Signed: a kill also frees a core.
  None for a kill before the end of step 0, which has no step before it, and for one after the end of the last step.
- `control excess`: the disturbed steps' time in a run with burners in the place of the dead, less the same in a run in
  which the same hand-overs were planned (DESIGN.md, (c)).

Where several kills fall into one step, its cost is counted in full for each. Whoever was no member when it was killed
(a joiner on its way, a spare) costs the members nothing here: `relume.chaos.beside` asks whether they felt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from relume.chaos.evidence import Evidence, Record, Who
from relume.core.view import shards_of
from relume.wire.events import WorkerLost

ENOUGH = 5
"""So many undisturbed steps make a median of their own."""
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kill cost; nanoseconds. `moved`: the victim's own lost shards and their heirs."""

    who: Who
    member: bool
    killed_ns: int
    detected_ns: int
    fenced_ns: int
    installed_ns: int
    steps: tuple[int, ...]
    moved: Mapping[int, int]
    exposed_wait_ns: int
    redo_ns: int
    span_ns: int | None
    """The periods of the disturbed steps."""
    raw_excess_ns: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A run in numbers. `baseline_ns` is the median period of the undisturbed steps, None if there are none."""

    baseline_ns: float | None
    undisturbed: tuple[int, ...]
    costs: tuple[Cost, ...]


def measure(evidence: Evidence, killed_ns: Mapping[Who, int]) -> Measured:
    """Measure a run in which each of `killed_ns` was killed then; those without an incident are left out."""
    timeline = Timeline(evidence.records.values())
    lost = evidence.lost
    victims = sorted((who for who in killed_ns if who in lost), key=lambda who: killed_ns[who])
    cases = [_Case(evidence, timeline, lost[who], killed_ns[who]) for who in victims]
    normal = Normal(timeline, [case.span for case in cases])
    return Measured(normal.period(None), normal.steps, tuple(case.cost(normal) for case in cases))


def control_excess(disturbed: Measured, control: Measured) -> dict[Who, float]:
    """Return, by victim, what an unplanned loss cost more than the planned one in its place; nanoseconds.

    Those are left out that one of the runs has no such number for. Where the two spread over different numbers of
    steps, their excess over the run's own undisturbed steps is compared, else the time itself.
    """
    planned = {cost.who: cost for cost in control.costs}
    result = {}
    for cost in disturbed.costs:
        other = planned.get(cost.who)
        if other is None or cost.span_ns is None or other.span_ns is None:
            continue
        if len(cost.steps) == len(other.steps):
            result[cost.who] = float(cost.span_ns - other.span_ns)
        elif cost.raw_excess_ns is not None and other.raw_excess_ns is not None:
            result[cost.who] = cost.raw_excess_ns - other.raw_excess_ns
    return result


class Timeline:
    """When the steps of a run ended, and when their last leaf was sealed, over all who recorded them."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.by_step: dict[int, list[Record]] = {}
        for record in records:
            self.by_step.setdefault(record.step, []).append(record)
        self.last = max(self.by_step, default=-1)

    def end(self, step: int) -> int:
        """Return when the last member had taken `step`."""
        return max(record.taken_ns for record in self.by_step[step])

    def sealed(self, step: int) -> int:
        """Return when the last recorded leaf of `step` was sealed; those of the dead are not recorded."""
        return max((shard[2] for record in self.by_step[step] for shard in record.shards), default=self.end(step))

    def period(self, step: int) -> int | None:
        """Return the period of `step`, None for a step without one before it."""
        return self.end(step) - self.end(step - 1) if step in self.by_step and step - 1 in self.by_step else None

    def tail(self, step: int) -> int:
        """Return how long `step` took from its last leaf's seal to its end."""
        return max(0, self.end(step) - self.sealed(step))

    def members(self, step: int) -> int:
        """Return how many members `step` ended with."""
        return min(len(record.members) for record in self.by_step[step])

    def falls(self, at_ns: int) -> int | None:
        """Return the first step that ended after `at_ns`, None if none did."""
        return next((step for step in sorted(self.by_step) if self.end(step) >= at_ns), None)


class Normal:
    """The undisturbed steps; see the module's docstring."""

    def __init__(self, timeline: Timeline, spans: Iterable[Sequence[int]]) -> None:
        near = {step + off for span in spans for step in span for off in (-1, 0, 1)}
        steps = [step for step in sorted(timeline.by_step) if timeline.period(step) is not None]
        self._timeline = timeline
        self.steps = tuple(step for step in steps if step not in near and step >= WARM_UP)

    def period(self, members: int | None) -> float | None:
        """Return the median period, for a step of so many members (None: of any number)."""
        return _median([period for step in self._like(members) if (period := self._timeline.period(step)) is not None])

    def tail(self, members: int | None) -> float | None:
        """Return the median time from the last leaf's seal to the end."""
        return _median([self._timeline.tail(step) for step in self._like(members)])

    def _like(self, members: int | None) -> Sequence[int]:
        like = [step for step in self.steps if self._timeline.members(step) == members]
        return like if len(like) >= ENOUGH else self.steps


def _median(values: Sequence[int]) -> float | None:
    return float(median(values)) if values else None


class _Case:
    """One kill and all that is told of it."""

    def __init__(self, evidence: Evidence, timeline: Timeline, loss: WorkerLost, killed_ns: int) -> None:
        self.loss, self.killed_ns, self.who = loss, killed_ns, (loss.rank, loss.life)
        self._evidence, self._timeline = evidence, timeline
        self._before, after = evidence.view_before(loss.view), evidence.view(loss.view)
        self.member = _was_member(evidence, loss)
        begin = timeline.falls(killed_ns)
        view_step = timeline.last if after is None else after.step
        end = min(view_step, timeline.last)
        self.span = () if begin is None or not self.member else tuple(range(begin, max(begin, end) + 1))
        own = shards_of(self._before, loss.rank, view_step) if loss.rank in self._before.members and self.member else ()
        needed = view_step <= timeline.last  # a view may begin after the last step
        self._moved = {shard: heir for shard, heir in loss.moved.items() if shard in own and needed}
        self._redone = self._find_redone(view_step)

    def cost(self, normal: Normal) -> Cost:
        """Return what it cost."""
        loss, killed = self.loss, self.killed_ns
        periods = [self._timeline.period(step) for step in self.span]
        usual = normal.period(len(self._before.members))
        known = [period for period in periods if period is not None]
        span = sum(known) if periods and len(known) == len(periods) else None
        return Cost(
            who=self.who,
            member=self.member,
            killed_ns=killed,
            detected_ns=loss.lost_ns - killed,
            fenced_ns=loss.fenced_ns - killed,
            installed_ns=loss.installed_ns - killed,
            steps=self.span,
            moved=self._moved,
            exposed_wait_ns=self._exposed_wait(normal),
            redo_ns=sum(sealed - start for start, sealed in self._redone),
            span_ns=span,
            raw_excess_ns=None if span is None or usual is None else span - usual * len(periods),
        )

    def _exposed_wait(self, normal: Normal) -> int:
        if not self.member:
            return 0
        if self._evidence.views and self.loss.view == self._evidence.views[0].number:
            return self._exposed_before_first_step()
        return self._exposed(normal)

    def _find_redone(self, step: int) -> list[tuple[int, int]]:
        """Return (start, sealed) of each lost shard, as recomputed by a survivor that lived to tell."""
        return [
            (start, sealed)
            for record in self._timeline.by_step.get(step, ())
            for shard, start, sealed in record.shards
            if record.who != self.who and shard in self._moved and start >= self.killed_ns
        ]

    def _exposed(self, normal: Normal) -> int:
        until = max((start for start, _ in self._redone), default=self.loss.installed_ns)
        usual = normal.tail(len(self._before.members)) or 0.0
        waited: dict[int, int] = {}
        late = 0
        for step in self.span:
            sealed, end = self._timeline.sealed(step), self._timeline.end(step)
            for record in self._timeline.by_step[step]:
                if record.who != self.who:
                    # What is waited after the last seal is told by the tail.
                    time = _overlap(record.waits, self.killed_ns, min(until, sealed))
                    waited[record.rank] = waited.get(record.rank, 0) + time
            late += max(0, min(int(self._timeline.tail(step) - usual), end - max(sealed, self.killed_ns)))
        return max(waited.values(), default=0) + late

    def _exposed_before_first_step(self) -> int:
        """Return the time for which only this loss kept the fleet from forming: from when all others were ready."""
        others = [record for record in self._timeline.by_step.get(0, ()) if record.who != self.who]
        ready = [record.waits[0][0] for record in others if record.waits]
        # Whoever was let in and died before its first step was ready just then: that is where its trap waits.
        let_in = (loss for loss in self._evidence.incidents if loss.phase == "joining" and loss.view > self.loss.view)
        ready += [loss.killed_ns for loss in let_in if loss.rank in self._evidence.views[0].members]
        return max(0, self.loss.installed_ns - max([self.killed_ns, *ready]))


def _was_member(evidence: Evidence, loss: WorkerLost) -> bool:
    """True if the loss ended a view that it was a member of, or if the run was to begin with it."""
    if not evidence.views or loss.view <= evidence.views[0].number:
        return not loss.life
    return (loss.rank, loss.life) in evidence.members(evidence.view_before(loss.view))


def _overlap(intervals: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(to, end) - max(since, begin)) for since, to in intervals)
