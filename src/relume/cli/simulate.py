"""`relume simulate`: live seeded histories of the real core under faults, and hold them to its laws."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relume.errors import ConfigError
from relume.simulate.campaign import Finding, Summary, campaign, live
from relume.simulate.report import as_json, as_text
from relume.simulate.settings import draw

BATCH = 20
"""So many histories are given to a process at a time."""
EPILOG = """exit codes: 0 nothing was violated, 1 something was (or, with --require-coverage, was never met), 2 usage.
A history follows from its seed alone (and from --workers): `relume simulate --trace SEED` shows it from end to end."""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume simulate",
        description="Live histories of the coordinator and of workers that follow the rules of the step, under a fake "
        "clock, with workers that are killed, stopped, wrongly suspected and so on at every instruction.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--seeds", type=int, default=1000, metavar="N", help="how many histories (default 1000)")
    add("--first-seed", type=int, default=0, metavar="K", help="the first one's seed (default 0)")
    add("--workers", type=int, default=None, metavar="N", help="workers of each fleet (default: drawn, 1 to 6)")
    add("--processes", type=int, default=None, metavar="N", help="live them on so many processors (default: all)")
    add("--seconds", type=float, default=None, metavar="LIMIT", help="stop after so long, with what there is")
    add("--require-coverage", action="store_true", help="fail unless every row, fault and pair was met")
    add("--trace", type=int, default=None, metavar="SEED", help="live this one history and print all that happens")
    add("--json", action="store_true", help="print one JSON object")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume simulate`; return the exit code."""
    options = parser().parse_args(argv)
    _check(options)
    if options.trace is not None:
        return _trace(options.trace, options.workers)
    began_s = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with _bar(options.seeds) as advance:
        summary = _lived(seeds, options, lambda so_far: _proceed(so_far, began_s, options.seconds, advance))
    summary.seconds = time.monotonic() - began_s
    print(json.dumps(as_json(summary)) if options.json else as_text(summary))
    for finding in summary.findings[:3]:
        print(_told(finding, options.workers), file=sys.stderr)
    incomplete = options.require_coverage and not summary.coverage.whole
    return 1 if summary.findings or incomplete else 0


def _lived(seeds: range, options: argparse.Namespace, proceed: Callable[[Summary], bool]) -> Summary:
    """Live the histories on as many processors as there are; which one lives which changes nothing."""
    processes = min(options.processes or len(os.sched_getaffinity(0)), -(-len(seeds) // BATCH))
    if processes < 2:
        return campaign(seeds, workers=options.workers, proceed=proceed)
    summary = Summary(seeds.start)
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(processes) as pool:
        limit_s = math.inf if options.seconds is None else time.monotonic() + options.seconds
        proceeds = partial(_in_time, limit_s)
        waiting = [pool.submit(campaign, batch, workers=options.workers, proceed=proceeds) for batch in batches]
        for lived in waiting:
            summary.add(lived.result())
            if not proceed(summary) or summary.enough:
                pool.shutdown(cancel_futures=True)
                break
    return summary


def _in_time(limit_s: float, summary: Summary) -> bool:
    del summary
    return time.monotonic() < limit_s


def _proceed(summary: Summary, began_s: float, limit_s: float | None, advance: Callable[[Summary], None]) -> bool:
    advance(summary)
    return limit_s is None or time.monotonic() - began_s < limit_s


class _bar:  # noqa: N801 - reads as a function
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("histories", total=total)

    def __enter__(self) -> Callable[[Summary], None]:
        self._bar.start()
        return self._advance

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _advance(self, summary: Summary) -> None:
        found = f"histories, {len(summary.findings)} violations" if summary.findings else "histories"
        self._bar.update(self._task, completed=summary.histories, description=found)


def _told(finding: Finding, workers: int | None) -> str:
    again = f"relume simulate --trace {finding.seed}" + (f" --workers {workers}" if workers is not None else "")
    return f"\nseed {finding.seed}: {finding.text}\n  again: {again}\n" + "\n".join(finding.trace)


def _trace(seed: int, workers: int | None) -> int:
    world, finding = live(draw(seed, workers), trace=10**9)
    print(world.settings)
    print("\n".join(world.trace.lines()))
    print(f"seed {seed}: {world.outcome}" if finding is None else f"seed {seed}: {finding.text}")
    return 0 if finding is None else 1


def _check(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: at least 1")
    if options.processes is not None and options.processes < 1:
        raise ConfigError(f"--processes {options.processes}: at least 1")
    if options.first_seed < 0 or (options.trace or 0) < 0:
        raise ConfigError("a seed is a whole number from 0")
    if options.workers is not None and not 1 <= options.workers <= 64:
        raise ConfigError(f"--workers {options.workers}: between 1 and 64")
    if options.seconds is not None and not options.seconds > 0:
        raise ConfigError(f"--seconds {options.seconds:g}: more than 0")
