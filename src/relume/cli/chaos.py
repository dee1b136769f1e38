"""`relume chaos`: kill workers of a run on a seeded schedule, and prove that nothing changed."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relume.cli.ended import code_of, terminate
from relume.core.ranges import SHARDS_MAX
from relume.errors import ConfigError, RelumeError
from relume.torch_check import check_torch

STEPS = 60
EPILOG = """exit codes: 0 every kill was carried out (with --respawn: and recovered) and nothing differs, 1 something
differs or went wrong, 2 usage, 130 Ctrl-C, 143 SIGTERM.
What the numbers mean stands in docs/adr/0004, "How recovery is measured", and in relume/chaos/measure.py,
for workers that come back in relume/chaos/comeback.py and beside.py."""


def parser() -> argparse.ArgumentParser:
    """Return the parser. What it does not know goes to the script."""
    result = argparse.ArgumentParser(
        prog="relume chaos",
        usage="relume chaos SCRIPT [SCRIPT'S ARGUMENTS] [OPTIONS] [-- MORE OF THE SCRIPT'S ARGUMENTS]",
        description="Run a script plainly, and in a fleet whose workers are killed; compare every bit; say what it "
        "cost. The script has to take `--steps N`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = result.add_argument
    add("script", type=Path, metavar="SCRIPT", help="the script; options that are not below are its own")
    add("--workers", type=int, default=4, metavar="N", help="workers of the fleet (default 4)")
    add("--steps", type=int, default=None, metavar="N",
        help="steps of each run, passed on to the script (default 60; 20 more per kill with --respawn)")  # fmt: skip
    add("--kills", type=int, default=None, metavar="N",
        help="how many workers die (default 3, or all but one if fewer; 0 with --kill-all, --scale)")  # fmt: skip
    add("--kill-together", type=int, default=1, metavar="N", help="so many die at the same instant (default 1)")
    add("--seed", type=int, default=0, metavar="N", help="decides who dies, where and when (default 0)")
    add("--shards", type=int, default=None, metavar="S", help="shards per step, unless the script says so itself")
    add("--threads", type=int, default=1, metavar="T", help="intra-op threads per worker (default 1)")
    add("--loss", default="loss", metavar="NAME", help="the logged value that has to fall (default loss)")
    add("--respawn", action="store_true",
        help="those who are killed come back, to be killed again: there may be more kills than workers")  # fmt: skip
    add("--spares", type=int, default=0, metavar="N", help="with --respawn: so many are level and wait (default 0)")
    add("--mirror-every", type=int, default=None, metavar="K", help="with --respawn: as in `relume run`")
    add("--kill-all", type=int, default=0, metavar="N", help="with --respawn: so often, all die at the same instant")
    add("--scale", type=_numbers, default=(), metavar="N,N",
        help="with --respawn: ask the run for N workers, in turn, at evenly spread steps")  # fmt: skip
    add("--no-control", action="store_true",
        help="leave out the runs that the cost is compared with: losses by plan, with --respawn strangers")  # fmt: skip
    add(
        "--keep",
        type=Path,
        default=None,
        metavar="DIR",
        help="keep all records and output in DIR, which is new or empty",
    )
    add("--json", action="store_true", help="print one JSON object")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume chaos`; return the exit code."""
    arguments, more = list(argv), []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, more = arguments[:place], arguments[place + 1 :]
    options, unknown = parser().parse_known_args(arguments)
    if sys.platform != "linux":
        raise ConfigError(
            "`relume chaos` runs fleets, which need Linux. `python script.py` works here, to the same bits"
        )
    check_torch()
    _check(options)
    folder = _folder(options.keep)
    code = 1
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        code = 0 if _trial(options, [*unknown, *more], folder) else 1
    except ConfigError:
        raise
    except RelumeError as error:
        print(f"relume chaos: {error}", file=sys.stderr)
    except KeyboardInterrupt as interrupt:
        code = code_of(interrupt)
        print("relume chaos: ended by a signal, and so is all that it had started", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
        if options.keep is None and (code == 0 or not any(folder.iterdir())):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"relume chaos: records and output are in {folder}", file=sys.stderr)
    return code


def _trial(options: argparse.Namespace, script_arguments: Sequence[str], folder: Path) -> bool:
    from relume.chaos.agenda import Respawn, steps_for  # noqa: PLC0415 - torch comes with these, and `--help` needs none
    from relume.chaos.driver import Job  # noqa: PLC0415
    from relume.chaos.report import as_json  # noqa: PLC0415
    from relume.chaos.returning import run_return  # noqa: PLC0415
    from relume.chaos.table import as_text  # noqa: PLC0415
    from relume.chaos.trial import Request, run_trial  # noqa: PLC0415

    kills = _kills(options)
    respawn = (
        Respawn(options.spares, options.mirror_every, options.kill_all, options.scale) if options.respawn else None
    )
    usual = steps_for(kills, respawn) if respawn else STEPS
    job = Job(
        script=options.script,
        arguments=tuple(script_arguments),
        workers=options.workers,
        steps=usual if options.steps is None else options.steps,
        shards=options.shards,
        threads=options.threads,
        loss=options.loss,
    )
    respawn = (
        Respawn(options.spares, options.mirror_every, options.kill_all, options.scale) if options.respawn else None
    )
    request = Request(kills, options.kill_together, options.seed, control=not options.no_control, respawn=respawn)
    run = run_return if options.respawn else run_trial
    result = run(job, request, folder, lambda text: print(f"relume chaos: {text}", file=sys.stderr, flush=True))
    print(json.dumps(as_json(result)) if options.json else as_text(result))
    return result.ok


def _kills(options: argparse.Namespace) -> int:
    if options.kills is not None:
        return int(options.kills)
    if options.kill_all or options.scale:
        return 0
    return 3 if options.respawn else min(3, options.workers - 1)


def _check(options: argparse.Namespace) -> None:
    if options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: at least 1")
    if options.threads < 1:
        raise ConfigError(f"--threads {options.threads}: at least 1")
    if options.shards is not None and not 1 <= options.shards <= SHARDS_MAX:
        raise ConfigError(f"--shards {options.shards}: between 1 and {SHARDS_MAX}")

    beside = {"--spares": options.spares, "--kill-all": options.kill_all, "--scale": options.scale}
    for name, value in {**beside, "--mirror-every": options.mirror_every}.items():
        if value and not options.respawn:
            raise ConfigError(f"{name} says something about workers that come back: it needs --respawn")


def _numbers(text: str) -> tuple[int, ...]:
    """Read `2,5,3`."""
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of workers, such as 2,5,3")
    return tuple(map(int, numbers))


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="relume-chaos-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ConfigError(f"--keep {keep}: the folder is not empty, and records of two trials must not mix")
    return keep.resolve()
