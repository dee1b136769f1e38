"""`relume`: one command, several verbs, each in its own module and imported only when it is used."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from relume.errors import RelumeError
from relume.version import __version__

COMMANDS = {
    "run": "start a script with fault tolerance on this host",
    "status": "show a live run, or how a finished one ended",
    "scale": "ask a live run for more workers, or fewer",
    "checkpoint": "list, verify and export the checkpoints of a run",
    "chaos": "kill workers of a run on a seeded schedule, and prove that nothing changed",
    "bench": "what fault tolerance costs while nothing fails, measured beside plain DDP",
    "simulate": "live thousands of seeded histories of the decisions under faults, and hold them to their laws",
    "demo": "see it: an undisturbed run, the same run under kills, and the verdict",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    _open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="relume",
        description="Kill any worker, at any instant: training goes on, bit for bit.",
        epilog="`relume COMMAND --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"relume {__version__}")
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", help="; ".join(f"{k}: {v}" for k, v in COMMANDS.items())
    )
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments)
    try:
        code: int = import_module(f"relume.cli.{arguments[0]}").main(arguments[1:])
    except RelumeError as error:
        print(f"relume {arguments[0]}: {error}", file=sys.stderr)
        return 2
    return code


def _open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed (`>&-`): else the next file opened would take its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
