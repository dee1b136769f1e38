"""What a loss costs more than a planned hand-over at the same point: the control of DESIGN.md, (c).

Two fleets lose the same workers at the very points at which the trial lost them; from outside or not, they are traps
here. In one they are killed, in the other they leave: they say so, hand their shards over by plan, and go on burning
CPU. The agent starts such a burner in the place of the killed too, so that both have as much CPU as before the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relume.chaos.driver import Job, Kills, run_fleet
from relume.chaos.evidence import Evidence, Record, Who, read_records
from relume.chaos.measure import Measured, control_excess, measure
from relume.chaos.schedule import SHARD_PHASES, Exact, Schedule
from relume.core.view import shards_of
from relume.wire.events import WorkerLost

UNEQUAL = 1.25
"""If undisturbed steps of the two fleets differ by this factor, something else kept the machine busy."""


@dataclass(slots=True)
class Control:
    """The excess by victim; `errors`: something differs; `remarks`: what makes the comparison weaker than it should be.

    `step_ns` is the undisturbed step of each of the two fleets, which should be about the same.
    """

    excess_ns: dict[Who, float] = field(default_factory=dict)
    step_ns: dict[str, float | None] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def run_control(job: Job, folder: Path, schedule: Schedule, trial: Evidence, reference_s: float) -> Control:
    """Run the two fleets in `folder`, which holds the reference, and compare. Raises `RunLost` if one does not end."""
    result = Control()
    runs: dict[str, Measured] = {}
    reference = {record.step: record for record in read_records(folder / "reference" / "record")}
    for action, name in (("kill", "disturbed"), ("leave", "control")):
        # Before the first step there is nothing to hand over: there it is a kill in both.
        traps = [kill.trap("kill" if kill.phase == "joining" else action) for kill in replay(schedule, trial)]
        fleet = run_fleet(job, folder / name, Kills(traps, burner=True), reference_s)
        times = fleet.kill_times
        for rank in sorted(set(schedule.victims) - {rank for rank, _ in times}):
            result.remarks.append(f"{name}: the loss of worker {rank} could not be replayed")
        if fleet.exit_code != 0:
            result.errors.append(f"{name}: `relume run` ended with exit code {fleet.exit_code}")
        differing = sorted(key for key, record in fleet.evidence.records.items() if not _agrees(record, reference))
        if differing:
            rank, step = differing[0]
            text = f"{name}: {len(differing)} digests differ, the first of worker {rank} in step {step}"
            result.errors.append(text)
        runs[name] = measure(fleet.evidence, times)
    result.excess_ns = control_excess(runs["disturbed"], runs["control"])
    result.step_ns = {name: run.baseline_ns for name, run in runs.items()}
    known = [step_ns for step_ns in result.step_ns.values() if step_ns]
    if known and max(known) > UNEQUAL * min(known):
        spans = " and ".join(f"{step_ns / 1e6:.0f} ms" for step_ns in known)
        result.remarks.append(f"control: undisturbed steps took {spans}, so the machine was not equally busy in both")
    return result


def _agrees(record: Record, reference: Mapping[int, Record]) -> bool:
    original = reference.get(record.step)
    return original is not None and original.digest == record.digest


def replay(schedule: Schedule, trial: Evidence) -> list[Exact]:
    """Return where `trial` lost its victims, as exact kills; those from outside as near as a trap gets."""
    planned = {kill.rank: kill for kill in schedule.exact}
    return [planned.get(loss.rank) or _nearest(loss, trial) for loss in trial.incidents]


def _nearest(loss: WorkerLost, trial: Evidence) -> Exact:
    """Return the trap that is nearest to where a kill from outside found its victim."""
    before = trial.view_before(loss.view)
    mine = shards_of(before, loss.rank, loss.step) if loss.rank in before.members else ()
    phase, nth = loss.phase, 0
    entry = mine.index(loss.shard) if loss.shard in mine else 0
    if phase == "wait" and mine:
        phase, entry, nth = "publish", len(mine) - 1, 2  # it waits from the seal of its last shard on
    elif phase in {"wait", "view", "aside", "tail"}:
        phase = "update"
    return Exact(loss.rank, phase, loss.step, entry if phase in SHARD_PHASES else 0, nth, "outside")
