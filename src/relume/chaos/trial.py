"""One trial, from schedule to verdict: is the run under kills the run that nothing happened to, and at what cost?

The script runs up to four times: plainly (the *reference*), in a fleet under kills (the *trial*), and twice for the
control (see `control`); where the lost come back, once (see `returning`). This module runs them one after the other and
says what is wrong with the kills themselves; numbers come from `measure`, and what the bits say from `tools/verify.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relume.arena.layout import block_bounds
from relume.chaos.agenda import ALONE, Respawn
from relume.chaos.comeback import Comeback
from relume.chaos.control import Control, run_control
from relume.chaos.driver import Fleet, Job, Kills, check_script, run_fleet, run_reference, verdict
from relume.chaos.evidence import Who, read_records
from relume.chaos.measure import Measured, measure
from relume.chaos.schedule import Schedule, Terms, plan
from relume.errors import RunLost
from relume.wire.events import WorkerLost

SIGKILL = 9
STATES_PER_PARAMETER = 8
"""A final state holds at most so many numbers per parameter (Adam: 3, with an average of the weights: 4, and some)."""


@dataclass(frozen=True, slots=True)
class Result:
    """A trial that is over. `errors` says what is wrong beside what the verdict says; `comeback`: with respawn only."""

    job: Job
    seed: int
    shards: int
    schedule: Schedule
    fleet: Fleet
    measured: Measured
    verdict: dict[str, Any]
    control: Control | None
    errors: tuple[str, ...]
    comeback: Comeback | None = None

    @property
    def remarks(self) -> list[str]:
        """What makes the comparison with a control weaker than it should be."""
        beside = self.comeback.beside if self.comeback else None
        return [*(self.control.remarks if self.control else ()), *(beside.remarks if beside else ())]

    @property
    def ok(self) -> bool:
        """True if every kill was carried out, nobody else was lost, and nothing differs."""
        return not self.errors and bool(self.verdict["ok"])


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a trial beside the job itself. `respawn`: the lost come back (see `returning`)."""

    kills: int
    together: int
    seed: int
    control: bool
    respawn: Respawn | None = None


def run_trial(job: Job, request: Request, folder: Path, tell: Callable[[str], None]) -> Result:
    """Run a trial in `folder`; `tell` hears how it goes. Raises `ConfigError`, or `RunLost` if a run cannot be had."""
    check_script(job.script)
    Terms(job.workers, job.steps, 1, request.kills, request.together).check()
    tell(f"reference: {job.script.name}, {job.steps} steps, plainly in one process")
    reference_s = run_reference(job, folder / "reference")
    shards = shards_of_reference(folder / "reference" / "record", job.steps)
    many = own_blocks(folder / "reference" / "record" / "final-0.pt", job.workers)
    schedule = plan(Terms(job.workers, job.steps, shards, request.kills, request.together, many), request.seed)

    tell(f"trial: {job.workers} workers, {request.kills} kills, seed {request.seed}")
    traps = [kill.trap() for kill in schedule.exact]
    fleet = run_fleet(job, folder / "trial", Kills(traps, schedule.outside), reference_s)
    for loss in fleet.evidence.incidents:
        tell(f"  worker {loss.rank} (pid {loss.pid}) {loss.text}, in {loss.phase} of step {loss.step}")
    errors = [*fleet.errors, *check_kills(schedule, fleet)]
    measured = measure(fleet.evidence, fleet.kill_times)
    tell("verdict: tools/verify.py compares the records")
    said = verdict(job, folder / "reference", folder / "trial", fleet.evidence.survivors)

    control = None
    if request.control and not errors:
        tell("control: the same losses with burners in the place of the dead, as kills and as planned hand-overs")
        control = run_control(job, folder, schedule, fleet.evidence, reference_s)
        errors += control.errors
    return Result(job, request.seed, shards, schedule, fleet, measured, said, control, tuple(errors))


# --- the reference --------------------------------------------------------------------------------------------------


def shards_of_reference(record_dir: Path, steps: int) -> int:
    """Return S as the script chose it. Raises `RunLost` if the plain run is not `steps` steps long."""
    records = [record for record in read_records(record_dir) if record.rank == 0]
    if len(records) != steps:
        text = f"the script, run plainly, recorded {len(records)} steps, not {steps}: "
        raise RunLost(text + "it has to take `--steps N` and make that many steps of run.steps()")
    return len(records[0].shards)


def own_blocks(final: Path, workers: int) -> bool:
    """True if the model is surely so large that every worker has a block of its own to sum.

    How large it is, is not told by a plain run: this counts with the most that may be beside it in its final state.
    """
    return len(block_bounds(final.stat().st_size // STATES_PER_PARAMETER)) >= workers


# --- the trial ------------------------------------------------------------------------------------------------------


def check_kills(schedule: Schedule, fleet: Fleet) -> list[str]:
    """Say what is wrong with the kills themselves: one that was not carried out, or a loss that nobody asked for."""
    losses, killed = fleet.evidence.lost, fleet.outside_times
    errors = ["a worker was lost twice"] if len(losses) < len(fleet.evidence.incidents) else []
    errors += _check_traps(schedule, losses)
    for who, killed_ns in killed.items():
        if who not in losses or losses[who].lost_ns < killed_ns:
            errors.append(f"{named(who)} was killed from outside, but no incident tells of it")
    trapped = {kill.who for kill in schedule.exact}
    for who, loss in losses.items():
        if who not in killed and who not in trapped:
            errors.append(f"{named(who)} was lost though nobody killed it: {loss.text}")
        elif not _was_killed(loss):
            errors.append(f"{named(who)} died of something else than the kill: {loss.text}")
    if fleet.exit_code != 0:
        reason = fleet.evidence.ended.reason if fleet.evidence.ended else "it gave no reason"
        errors.append(f"`relume run` ended with exit code {fleet.exit_code}: {reason}")
    return errors


def _check_traps(schedule: Schedule, losses: Mapping[Who, WorkerLost]) -> list[str]:
    errors = []
    for kill in schedule.exact:
        loss, anywhere = losses.get(kill.who), kill.phase in ALONE
        where = f"{kill.phase} of step {kill.step}{' or later' if kill.later else ''}"
        where = f"{kill.phase}, whenever that comes" if anywhere else where
        if loss is None or not loss.killed_ns:
            errors.append(f"the trap for {named(kill.who)} in {where} never sprang")
            continue
        in_time = loss.step >= kill.step if kill.later else loss.step == kill.step
        if loss.phase != kill.phase or not (anywhere or in_time):
            errors.append(f"the trap for {named(kill.who)} in {where} sprang in {loss.phase} of step {loss.step}")
    return errors


def named(who: Who) -> str:
    """Name a process for people."""
    rank, life = who
    return f"worker {rank} (life {life})" if life else f"worker {rank}"


def _was_killed(loss: WorkerLost) -> bool:
    status = loss.wait_status
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == SIGKILL
