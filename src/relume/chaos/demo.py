"""The demo in three acts: a run that nobody disturbs, the same run with workers killed, and the verdict.

Kills come from outside only, one by one, at random moments: nothing in the run knows of them. Who is killed comes back
by itself, if the run goes on for long enough. What it all costs and whether a bit differs is told by the same code as
in `relume chaos`.
"""

from __future__ import annotations

import random
from pathlib import Path

from rich.console import Console
from rich.text import Text

from relume.chaos.comeback import Comeback, recoveries
from relume.chaos.driver import Fleet, Job, Kills, run_fleet, run_reference, verdict
from relume.chaos.measure import measure
from relume.chaos.schedule import OUTSIDE_FROM, OUTSIDE_TO, Outside, Schedule, Terms
from relume.chaos.trial import Result, check_kills, shards_of_reference
from relume.errors import ConfigError
from relume.observe.live import Stop, beside, follow, wait_for_events
from relume.observe.observer import Observer
from relume.observe.solo import follow_records
from relume.observe.wording import duration


def random_moments(job: Job, kills: int, seed: int) -> Schedule:
    """Return who is killed when: the run's middle is shared out among the kills, and each is anywhere in its part."""
    if kills < 1:
        raise ConfigError(f"--kills {kills}: at least 1, or there is nothing to see")
    Terms(job.workers, job.steps, 1, kills).check()
    dice = random.Random(f"relume demo {seed}")
    ranks = dice.sample(range(job.workers), kills)
    part = (OUTSIDE_TO - OUTSIDE_FROM) / kills
    moments = [job.steps * (OUTSIDE_FROM + part * (i + dice.random())) for i in range(kills)]
    return Schedule((), tuple(Outside((rank,), at_step) for rank, at_step in zip(ranks, moments, strict=True)))


def play(job: Job, kills: int, seed: int, folder: Path, console: Console) -> Result:
    """Play the acts in `folder`, the last one's words excepted. Raises `ConfigError`, `RunLost` if a run fails."""
    schedule = random_moments(job, kills, seed)
    reference_s = _original(job, folder / "reference", console)
    fleet = _under_kills(job, schedule, reference_s, folder / "trial", console)
    _act(console, 3, "The verdict, by tools/verify.py, which shares no code with relume")
    return Result(
        job=job,
        seed=seed,
        shards=shards_of_reference(folder / "reference" / "record", job.steps),
        schedule=schedule,
        fleet=fleet,
        measured=measure(fleet.evidence, fleet.kill_times),
        verdict=verdict(job, folder / "reference", folder / "trial", fleet.evidence.survivors),
        control=None,
        errors=(*fleet.errors, *check_kills(schedule, fleet)),
        comeback=Comeback(recoveries(fleet.evidence, fleet.kill_times, job.workers)),
    )


def _original(job: Job, folder: Path, console: Console) -> float:
    _act(console, 1, f"The original: {job.script.name} for {job.steps} steps in one process, left in peace")
    with beside(lambda stop: follow_records(folder / "record", job.steps, console, stop)):
        seconds = run_reference(job, folder)
    console.print(f"Done in {duration(seconds)}; its final state is kept for the comparison.", highlight=False)
    return seconds


def _under_kills(job: Job, schedule: Schedule, reference_s: float, folder: Path, console: Console) -> Fleet:
    count = len(schedule.outside)
    who = "one gets a SIGKILL at a random moment" if count == 1 else f"{count} get a SIGKILL each, at random moments"
    _act(console, 2, f"The same with {job.workers} workers, of which {who}; whoever dies is started again")

    def watch(stop: Stop) -> None:
        if wait_for_events(folder / "run", stop):
            follow(Observer(folder / "run", folder / "record"), console, stop=stop)

    with beside(watch):
        return run_fleet(job, folder, Kills((), schedule.outside), reference_s)


def _act(console: Console, number: int, title: str) -> None:
    console.print()
    console.print(Text.assemble((f"{number}. ", "bold cyan"), (title, "bold")))
