"""`relume run`: start a script on this host with N workers, any of which may die."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from relume.agent.output import Terminal
from relume.agent.rundir import new_run_id
from relume.agent.settings import EXIT_CODES, Settings
from relume.agent.spawn import FreshInterpreter, environment, python_command
from relume.agent.supervisor import Result, Supervisor
from relume.cli.torchrun import advice
from relume.core.ranges import SHARDS_MAX
from relume.errors import ConfigError, RelumeError
from relume.torch_check import check_torch


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
    add("--min-workers", type=int, default=1, metavar="N", help="end the run when fewer are left (default 1)")
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


def main(argv: Sequence[str]) -> int:
    """Run `relume run`; return the exit code."""
    options = parser().parse_args(argv)
    settings = settings_from(options)
    if options.debug:
        return _debug(settings)
    terminal = Terminal(sys.stdout.buffer, sys.stderr.buffer, colour=sys.stderr.isatty())
    terminal.say(f"run {settings.run_id}: {settings.workers} workers, folder {settings.run_dir}")
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
    script = Path(options.script)
    if not options.module and not script.is_file():
        raise ConfigError(f"there is no script {script}. Give a path, or -m and a module's name")
    run_id = new_run_id()
    command = python_command([*(["-m"] if options.module else []), options.script, *options.arguments])
    record = {"RELUME_RECORD": str(options.record.resolve())} if options.record else {}
    return Settings(
        command=tuple(command),
        workers=workers,
        run_dir=(options.run_dir or Path("relume-runs") / run_id).resolve(),
        run_id=run_id,
        shards=options.shards,
        threads=options.threads,
        min_workers=options.min_workers,
        hang_timeout_s=options.hang_timeout,
        environment=record,
        burner=bool(os.environ.get("RELUME_BURNER")),
        port=_free_port(),
    )


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
