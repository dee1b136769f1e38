"""The progress of a plain run, which has no agent to ask: from the records that it writes (RELUME_RECORD)."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from relume.observe.live import PERIOD_S, Stop, is_screen
from relume.observe.pace import Pace
from relume.observe.records import Records
from relume.observe.screen import progress_line
from relume.observe.wording import clock


def follow_records(folder: Path, total: int, console: Console, stop: Stop) -> Records:
    """Show how far the run that records into `folder` is, until `stop()` says so; return what it recorded."""
    records, pace, began = Records(folder), Pace(), time.monotonic()
    screen = Live(console=console, auto_refresh=False) if is_screen(console) else None
    if screen is not None:
        screen.start()
    try:
        while True:
            stopped, elapsed_s = stop(), time.monotonic() - began
            records.read()
            pace.look(elapsed_s, records.steps)
            if screen is not None and records.steps:
                line = progress_line(records.steps, total, pace.step_s, records.loss, elapsed_s)
                screen.update(line, refresh=True)
            elif screen is not None:
                screen.update(Text(f"starting, {clock(elapsed_s)} (importing torch takes the time)"), refresh=True)
            if stopped:
                return records
            time.sleep(PERIOD_S)
    finally:
        if screen is not None:
            screen.stop()
