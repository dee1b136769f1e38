"""Which run a command is about: its id or folder, and where folders are."""

from __future__ import annotations

import argparse
from pathlib import Path

from relume.observe.find import LATEST


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add RUN and --run-dir-root."""
    parser.add_argument(
        "run", nargs="?", default=LATEST, metavar="RUN", help="a run's id or its folder (default: the latest)"
    )
    parser.add_argument(
        "--run-dir-root",
        type=Path,
        default=Path("relume-runs"),
        metavar="DIR",
        help="where the folders of runs are (default ./relume-runs)",
    )
