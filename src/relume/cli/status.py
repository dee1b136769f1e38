"""`relume status`: how a live run stands, or how a finished one ended."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from relume.cli.which import add_run
from relume.observe.facts import as_json
from relume.observe.find import find_run
from relume.observe.live import OVER, follow
from relume.observe.observer import Observer
from relume.observe.report import as_text


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume status",
        description="Show a live run, or how a finished one ended.",
        epilog="exit codes: 0 the run is told, however it stands; 2 there is no such run",
        allow_abbrev=False,
    )
    add_run(result)
    how = result.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument("--watch", action="store_true", help="go on showing it until it ends (Ctrl-C leaves it running)")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume status`; return the exit code."""
    options = parser().parse_args(argv)
    observer = Observer(find_run(options.run, options.run_dir_root))
    console = Console()
    try:
        snapshot = observer.look()
        if options.json:
            print(json.dumps(as_json(snapshot)))
            return 0
        if options.watch and snapshot.standing not in OVER:
            snapshot = follow(observer, console)
            console.print()
        for line in as_text(snapshot):
            console.print(line, soft_wrap=not console.is_terminal)
    except KeyboardInterrupt:
        console.print("stopped watching; the run goes on", style="dim")
    return 0
