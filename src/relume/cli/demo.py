"""`relume demo`: an undisturbed run, the same run with workers killed under a live view, and the verdict."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from relume.errors import ConfigError, RelumeError
from relume.torch_check import check_torch

EPILOG = "exit codes: 0 every bit is the same, 1 something differs or went wrong, 2 usage, 130 interrupted"


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume demo",
        description="See it: train a small GPT undisturbed, then again with workers killed at random moments, who come "
        "back, and compare the results bit for bit. About two minutes on two cores.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--steps", type=int, default=120, metavar="N", help="steps of each of the two runs (default 120)")
    add("--workers", type=int, default=4, metavar="N", help="workers of the second run (default 4)")
    add("--kills", type=int, default=None, metavar="N", help="how many die (default 3, or all but one if fewer)")
    add("--seed", type=int, default=None, metavar="N", help="who dies when (default: other moments every time)")
    add("--json", action="store_true", help="print one JSON object, that of `relume chaos`; all else to standard error")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume demo`; return the exit code."""
    options = parser().parse_args(argv)
    if sys.platform != "linux":
        raise ConfigError("`relume demo` runs a fleet, which needs Linux. `relume.init()` works here, to the same bits")
    check_torch()
    console = Console(stderr=options.json)
    folder = Path(tempfile.mkdtemp(prefix="relume-demo-"))
    code = 1
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = _demo(options, folder, console)
    except KeyboardInterrupt:
        code = 130
        console.print("interrupted; nothing of it is left running")
    except RelumeError as error:
        if isinstance(error, ConfigError):
            code = 2
            raise
        print(f"relume demo: {error}", file=sys.stderr)
    finally:
        if code == 1:
            print(f"relume demo: records and output are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _demo(options: argparse.Namespace, folder: Path, console: Console) -> int:
    seed = secrets.randbelow(10_000) if options.seed is None else options.seed
    console.print(f"[bold]relume demo[/bold]: kill workers, compare every bit (again: --seed {seed})", highlight=False)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if load > cores:
        text = f"This machine is busy already (load {load:.1f} on {cores} cores): everything will take longer."
        console.print(text, style="yellow", highlight=False)
    from relume.chaos.demo import play  # noqa: PLC0415 - torch comes with it, and takes two seconds
    from relume.chaos.driver import Job  # noqa: PLC0415
    from relume.chaos.report import as_json  # noqa: PLC0415
    from relume.chaos.shipped import shipped  # noqa: PLC0415
    from relume.chaos.telling import tell  # noqa: PLC0415

    job = Job(shipped("charlm.py"), (), options.workers, options.steps, options=())
    kills = min(3, options.workers - 1) if options.kills is None else options.kills
    result = play(job, kills, seed, folder, console)
    tell(result, folder / "reference" / "record" / "final-0.pt", console)
    if options.json:
        print(json.dumps(as_json(result)))
    return 0 if result.ok else 1


def _terminated(_number: int, _frame: object) -> None:
    sys.exit(143)
