"""Following a run to its end on somebody's terminal, or as plain lines where there is none."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from relume.observe.find import EVENTS
from relume.observe.marks import Strips
from relume.observe.observer import Observer, Snapshot
from relume.observe.plain import Lines
from relume.observe.screen import frame
from relume.observe.standing import Standing

PERIOD_S = 0.1
OVER = frozenset({Standing.ENDED, Standing.DEAD})
_LAST_FRAME_S = 5.0

Stop = Callable[[], bool]
"""Asked between two looks; after it has said yes there is one more look, so that the end is seen."""


def is_screen(console: Console) -> bool:
    """Return True if `console` can be drawn on; False means lines, one after the other."""
    return console.is_terminal and not console.is_dumb_terminal


def follow(observer: Observer, console: Console, *, stop: Stop = bool, period_s: float = PERIOD_S) -> Snapshot:
    """Show the run until it is over or `stop()` says so; return the last look."""
    if is_screen(console):
        return _draw(observer, console, stop, period_s)
    lines = Lines()
    while True:
        stopped = stop()
        snapshot = observer.look()
        for line in lines.look(snapshot):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        if stopped or snapshot.standing in OVER:
            return snapshot
        time.sleep(period_s)


def _draw(observer: Observer, console: Console, stop: Stop, period_s: float) -> Snapshot:
    strips = Strips(ascii_only=not console.encoding.lower().startswith("utf"))
    with Live(console=console, auto_refresh=False) as live:
        while True:
            stopped, began = stop(), time.monotonic()
            snapshot = observer.look()
            strips.look(snapshot)
            live.update(frame(snapshot, strips, console.width, console.height - 1), refresh=True)
            if stopped or snapshot.standing in OVER:
                return snapshot
            time.sleep(max(0.0, period_s - (time.monotonic() - began)))


def wait_for_events(folder: Path, stop: Stop = bool, period_s: float = PERIOD_S) -> bool:
    """Wait until the run in `folder` has written something; False if `stop()` said so first."""
    events = folder / EVENTS
    while not (events.is_file() and events.stat().st_size):
        if stop():
            return False
        time.sleep(period_s)
    return True


@contextlib.contextmanager
def beside(view: Callable[[Stop], object]) -> Iterator[None]:
    """Let `view(stop)` run in a thread while the body works. A view that fails costs the view, never the work."""
    over = threading.Event()

    def look_on() -> None:
        try:
            view(over.is_set)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is only the view
            sys.stderr.write(f"relume: the view failed, the work goes on: {error!r}\n")

    thread = threading.Thread(target=look_on, name="relume-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_FRAME_S)
