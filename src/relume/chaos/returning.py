"""A trial in which the lost come back: who did, in what time, and whether the others felt it.

The script runs up to three times: plainly (the *reference*), in a fleet whose lost are respawned (the *trial*), and
once more for the control, in which strangers run beside the fleet instead of joiners (see `beside`). There is no
checkpoint in any of them: what comes back comes from the arena, and no disk is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from relume.chaos.agenda import Errand, Respawn, plan_return
from relume.chaos.beside import Beside, compare
from relume.chaos.comeback import Comeback, Recovery, recoveries, scalings
from relume.chaos.driver import Fleet, Job, Kills, check_script, plain_environment, run_fleet, run_reference, verdict
from relume.chaos.effort import Effort
from relume.chaos.measure import Measured, Timeline, measure
from relume.chaos.schedule import Outside
from relume.chaos.stranger import Strangers
from relume.chaos.trial import Request, Result, check_kills, named, own_blocks, shards_of_reference

RESTARTS_MORE = 20
"""So many respawns may come on top of those that the kills ask for: a joiner may need a second try."""


def run_return(job: Job, request: Request, folder: Path, tell: Callable[[str], None]) -> Result:
    """Run a trial in `folder`; `tell` hears how it goes. Raises `ConfigError`, or `RunLost` if a run cannot be had."""
    respawn = request.respawn or Respawn()
    check_script(job.script)
    Errand(job.workers, job.steps, 1, request.kills, request.together, respawn=respawn).check()
    tell(f"reference: {job.script.name}, {job.steps} steps, plainly in one process")
    reference_s = run_reference(job, folder / "reference")
    shards = shards_of_reference(folder / "reference" / "record", job.steps)
    many = own_blocks(folder / "reference" / "record" / "final-0.pt", job.workers)
    errand = Errand(job.workers, job.steps, shards, request.kills, request.together, many, respawn)
    schedule = plan_return(errand, request.seed)

    tell(f"trial: {job.workers} workers that come back, {request.kills} kills, seed {request.seed}")
    traps = [kill.trap() for kill in schedule.exact]
    ours = replace(job, options=tuple(_options(errand, restarts=True)))
    fleet = run_fleet(ours, folder / "trial", Kills(traps, schedule.outside), reference_s)
    for loss in fleet.evidence.incidents:
        tell(f"  {named((loss.rank, loss.life))} (pid {loss.pid}) {loss.text}, in {loss.phase} of step {loss.step}")
    measured = measure(fleet.evidence, fleet.all_kill_times)
    comeback = _comeback(job, respawn, fleet)
    errors = [*fleet.errors, *check_kills(schedule, fleet)]
    errors += [f"{named(back.who)} was killed, and {back.missing}" for back in _all(comeback) if not back.recovered]
    errors += [f"no view had the {s.workers} workers asked for" for s in comeback.scalings if s.reached_ns is None]
    tell("verdict: tools/verify.py compares the records")
    said = verdict(job, folder / "reference", folder / "trial", fleet.evidence.survivors)

    if request.control and not errors and job.workers > 1 and schedule.kills:
        tell("control: as many members, beside which strangers run instead of joiners")
        beside = _control(job, errand, folder, (fleet, measured), reference_s)
        comeback = replace(comeback, beside=beside)
    individually = tuple(cost for cost in measured.costs if cost.who in fleet.kill_times)
    measured = replace(measured, costs=individually)
    return Result(job, request.seed, shards, schedule, fleet, measured, said, None, tuple(errors), comeback)


def _options(errand: Errand, *, restarts: bool) -> list[str]:
    """Return what `relume run` is told about coming back."""
    respawn = errand.respawn
    seats = max([errand.workers, *respawn.scale]) + respawn.spares
    dead = errand.kills + respawn.kill_all * seats
    options = ["--max-restarts", str(dead + RESTARTS_MORE if restarts else 0), "--spares", str(respawn.spares)]
    if respawn.mirror_every is not None:
        options += ["--mirror-every", str(respawn.mirror_every)]
    return [*options, *(["--max-workers", str(2 * seats)] if respawn.scale else [])]


def _comeback(job: Job, respawn: Respawn, fleet: Fleet) -> Comeback:
    found = recoveries(fleet.evidence, fleet.all_kill_times, job.workers, respawn.spares)
    one_by_one = tuple(back for back in found if back.who in fleet.kill_times)
    together = [tuple(back for back in found if back.who in killed) for killed in fleet.all_killed]
    return Comeback(one_by_one, tuple(together), scalings(fleet.evidence, fleet.scaled))


def _all(comeback: Comeback) -> list[Recovery]:
    return [*comeback.recoveries, *(back for group in comeback.all_killed for back in group)]


# --- the control ------------------------------------------------------------------------------------------------------


def _control(
    job: Job, errand: Errand, folder: Path, trial: tuple[Fleet, Measured], reference_s: float
) -> Beside | None:
    """Run the control: the first of the trial's losses, for good, and a stranger wherever a joiner was started.

    With spares, members are as many as before while somebody comes back, so that nobody is lost here.
    """
    fleet, measured = trial
    like, starts = _like(fleet), _starts(fleet)
    if like is None or not starts:
        return None
    first = min((cost.steps[0] for cost in measured.costs if cost.steps), default=1)
    losses = [] if errand.respawn.spares else [Outside((job.workers - 1,), max(1.0, first - 1.0))]
    strangers: list[Strangers] = []

    def company(record_dir: Path) -> Strangers:
        command = [sys.executable, "-u", *job.command]
        strangers.append(Strangers(command, plain_environment(job), record_dir, starts, like))
        return strangers[0]

    theirs = replace(job, options=tuple(_options(errand, restarts=False)))
    other = run_fleet(theirs, folder / "control", Kills((), losses), reference_s, company)
    return compare(
        (fleet.evidence, measured), (other.evidence, measure(other.evidence, other.kill_times), strangers[0].seen)
    )


def _like(fleet: Fleet) -> Effort | None:
    """Return what a joiner did in the median, at the priority of one of them."""
    level = [done for who, done in sorted(fleet.efforts.items()) if who in fleet.evidence.level]
    return replace(level[0], cpu_s=median(done.cpu_s for done in level)) if level else None


def _starts(fleet: Fleet) -> Sequence[float]:
    """Return how many steps old the trial was when each joiner was started."""
    timeline = Timeline(fleet.evidence.records.values())
    ends = {step: timeline.end(step) for step in timeline.by_step}
    joiners = [at_ns for at_ns in fleet.evidence.started_ns.values() if at_ns > fleet.evidence.began_ns]
    return sorted(sum(end <= at_ns for end in ends.values()) + 0.1 for at_ns in joiners)
