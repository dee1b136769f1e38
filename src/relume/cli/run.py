"""`relume run`: start a script on this host with N workers, any of which may die."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from relume.agent.output import Terminal
from relume.agent.rundir import new_run_id
from relume.agent.settings import EXIT_CODES, Settings
from relume.agent.spawn import FreshInterpreter, environment, free_port, python_command
from relume.agent.supervisor import Result, Supervisor
from relume.cli.torchrun import advice
from relume.core.ranges import SHARDS_MAX
from relume.core.words import plural
from relume.errors import ConfigError, RelumeError
from relume.state import folder
from relume.torch_check import check_torch

SEATS_MIN = 8
"""Room for so many workers at least: a seat that nobody takes costs 33 KB."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what to do about flags that people bring along from torchrun."""
        super().error(message + advice(message))


def parser() -> argparse.ArgumentParser:
    """Return the parser, with torchrun's names as aliases."""
    codes = ", ".join(f"{code} {name}" for name, code in EXIT_CODES.items())
    result = _Parser(
        prog="relume run",
        description="Start a script with N workers on this host, any of which may die.",
        epilog=f"exit codes: {codes}",
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--workers", "--nproc-per-node", "--nproc_per_node", type=_workers, default=None, metavar="N",
        help="worker processes (default: one per GPU, else the number of cores)")  # fmt: skip
    add("--shards", type=int, default=None, metavar="S", help="shards per step, unless the script says so itself")
    add(
        "--threads", type=int, default=1, metavar="T", help="intra-op threads per worker (default 1); bits depend on it"
    )
    add("--min-workers", type=int, default=1, metavar="N",
        help="wait for workers to come back, and in the end end the run, when fewer are left (default 1)")  # fmt: skip
    _add_coming_back(result)
    _add_checkpoints(result)
    add("--hang-timeout", type=float, default=300.0, metavar="S",
        help="seconds without progress after which a worker counts as hung (default 300)")  # fmt: skip
    add("--run-dir", type=Path, default=None, metavar="DIR", help="the run's folder (default ./relume-runs/ID)")
    add("--record", type=Path, default=None, metavar="DIR", help="write records for tools/verify.py into DIR")
    add(
        "--debug",
        action="store_true",
        help="one worker in this process, with the terminal's input, so that breakpoint() works",
    )
    add("--standalone", action="store_true", help="accepted as torchrun's; a run on one host always is")
    add("-m", "--module", action="store_true", help="script is the name of a module")
    add("script", metavar="script.py", help="the script, or with -m a module")
    add("arguments", nargs=argparse.REMAINDER, metavar="args...", help="its arguments")
    return result


def _add_coming_back(result: argparse.ArgumentParser) -> None:
    add = result.add_argument_group("coming back").add_argument
    add("--max-restarts", "--max_restarts", type=int, default=100, metavar="N",
        help="replace so many lost workers in the whole run (default 100; 0: none)")  # fmt: skip
    add("--spares", type=int, default=0, metavar="N",
        help="workers that stand by, level, and take the place of a lost one at once (default 0)")  # fmt: skip
    add("--max-workers", type=int, default=None, metavar="N",
        help="room for so many, spares included, for `relume scale` (default: twice the start's)")  # fmt: skip
    add("--mirror-every", type=int, default=8, metavar="K",
        help="steps between mirrors of the state for those who come back (default 8; at least 2; 0: none)")  # fmt: skip


def _add_checkpoints(result: argparse.ArgumentParser) -> None:
    add = result.add_argument_group("checkpoints").add_argument
    add(
        "--checkpoint-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="write checkpoints into DIR, off the training path",
    )
    add("--checkpoint-every", type=_interval, default=None, metavar="N|Ns",
        help="so many steps apart (100), or seconds (60s; default 300s)")  # fmt: skip
    add("--checkpoint-keep", type=int, default=3, metavar="N", help="keep the newest N (default 3)")
    add("--resume", action="store_true", help="go on from the newest checkpoint in DIR that verifies")
    add("--auto-resume", action="store_true", help="the same if DIR holds a checkpoint, else start anew")


def main(argv: Sequence[str]) -> int:
    """Run `relume run`; return the exit code."""
    options = parser().parse_args(argv)
    settings = settings_from(options)
    if options.debug:
        return _debug(settings)
    terminal = Terminal(sys.stdout.buffer, sys.stderr.buffer, colour=sys.stderr.isatty())
    terminal.say(f"run {settings.run_id}: {plural(settings.workers, 'worker')}, folder {settings.run_dir}")
    try:
        result = asyncio.run(_supervise(settings, terminal))
        terminal.settle()
        terminal.say(f"{result.reason} [{result.outcome}]; folder {settings.run_dir}")
    except KeyboardInterrupt:  # before the agent was there to see to it, or after
        return EXIT_CODES["interrupted"]
    except RelumeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is ours and nobody else's
        terminal.say("".join(traceback.format_exception(error)))
        terminal.say(f"the agent failed, which is a defect in relume: {error!r}")
        return EXIT_CODES["internal"]
    else:
        return result.exit_code
    finally:
        terminal.close()


async def _supervise(settings: Settings, terminal: Terminal) -> Result:
    return await Supervisor(settings, FreshInterpreter(), terminal).run()


def settings_from(options: argparse.Namespace) -> Settings:
    """Check the options and turn them into settings. Raises `ConfigError`."""
    if sys.platform != "linux":
        text = "`relume run` needs Linux: memfd, eventfd, pidfd and /proc carry the arena and the fence."
        raise ConfigError(text + " On this system run the script with plain `python`: a run of one worker, same bits")
    check_torch()
    if options.shards is not None and not 1 <= options.shards <= SHARDS_MAX:
        raise ConfigError(f"--shards {options.shards}: between 1 and {SHARDS_MAX}")
    if options.threads < 1:
        raise ConfigError(f"--threads {options.threads}: at least 1")
    if not 0 < options.hang_timeout < float("inf"):
        raise ConfigError(f"--hang-timeout {options.hang_timeout}: a number of seconds above 0")
    workers = options.workers or _default_workers()
    if not 1 <= options.min_workers <= workers:
        raise ConfigError(f"--min-workers {options.min_workers}: between 1 and --workers, which is {workers}")
    _check_coming_back(options, workers)
    script = Path(options.script)
    if not options.module and not script.is_file():
        raise ConfigError(f"there is no script {script}. Give a path, or -m and a module's name")
    run_id = new_run_id()
    command = python_command([*(["-m"] if options.module else []), options.script, *options.arguments])
    steps, seconds = options.checkpoint_every or (None, 300.0)
    record = {"RELUME_RECORD": str(options.record.resolve())} if options.record else {}
    return Settings(
        command=tuple(command),
        workers=workers,
        run_dir=(options.run_dir or Path("relume-runs") / run_id).resolve(),
        run_id=run_id,
        shards=options.shards,
        threads=options.threads,
        min_workers=options.min_workers,
        max_restarts=options.max_restarts,
        spares=options.spares,
        seats=_seats(options, workers),
        mirror_every=options.mirror_every,
        warm=True,
        checkpoint_dir=options.checkpoint_dir.resolve() if options.checkpoint_dir else None,
        checkpoint_every_steps=steps,
        checkpoint_every_s=seconds,
        checkpoint_keep=options.checkpoint_keep,
        resume=options.resume or (options.auto_resume and _holds_checkpoints(options.checkpoint_dir)),
        hang_timeout_s=options.hang_timeout,
        environment=record,
        burner=bool(os.environ.get("RELUME_BURNER")),
        port=free_port(),
    )


def _check_coming_back(options: argparse.Namespace, workers: int) -> None:
    for name, count in (("--max-restarts", options.max_restarts), ("--spares", options.spares)):
        if count < 0:
            raise ConfigError(f"{name} {count}: 0 or more")
    if options.mirror_every < 0 or options.mirror_every == 1:
        raise ConfigError(f"--mirror-every {options.mirror_every}: at least 2, or 0 for none")
    for name, value in (("--spares", options.spares), ("--checkpoint-dir", options.checkpoint_dir)):
        if value and not options.mirror_every:
            raise ConfigError(f"{name} needs the mirror: leave out --mirror-every 0")
    if _seats(options, workers) < workers + options.spares:
        raise ConfigError(
            f"--max-workers {options.max_workers}: at least --workers and --spares, {workers + options.spares}"
        )
    if options.checkpoint_keep < 1:
        raise ConfigError(f"--checkpoint-keep {options.checkpoint_keep}: at least 1")
    given = {"--resume": options.resume, "--auto-resume": options.auto_resume}
    for name, value in {**given, "--checkpoint-every": options.checkpoint_every}.items():
        if value and options.checkpoint_dir is None:
            raise ConfigError(f"{name} needs --checkpoint-dir")


def _holds_checkpoints(where: Path) -> bool:
    try:
        return bool(folder.steps(where))
    except OSError:
        return False  # the keeper says what is wrong with it


def _seats(options: argparse.Namespace, workers: int) -> int:
    start = workers + options.spares
    seats: int = options.max_workers if options.max_workers is not None else max(2 * start, SEATS_MIN)
    return seats if options.mirror_every else start


def _interval(text: str) -> tuple[int | None, float | None]:
    """Read `100` (steps) or `60s` (seconds)."""
    try:
        value = float(text[:-1]) if text.endswith("s") else int(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no interval: write 100 for steps, or 60s for seconds")
    return (None, float(value)) if text.endswith("s") else (int(value), None)


def _debug(settings: Settings) -> int:
    run = dict(settings.environment)
    if settings.shards is not None:
        run["RELUME_SHARDS"] = str(settings.shards)
    variables = environment(0, 1, threads=settings.threads, port=settings.port, run=run)
    os.execve(settings.command[0], settings.command, variables)  # noqa: S606 - what the person typed


def _workers(text: str) -> int | None:
    """Accept torchrun's words too: `auto`, `gpu`, `cpu`."""
    if text in {"auto", "gpu"}:
        return None
    if text == "cpu":
        return os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of workers: a whole number from 1, or auto, gpu, cpu"
        )
    return int(text)


def _default_workers() -> int:
    gpus = [name for name in _listdir("/dev") if name.startswith("nvidia") and name[6:].isdecimal()]
    return len(gpus) or os.cpu_count() or 1


def _listdir(path: str) -> list[str]:
    try:
        return [entry.name for entry in Path(path).iterdir()]
    except OSError:
        return []
