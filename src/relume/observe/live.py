"""Following a run to its end on somebody's terminal, or as plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from relume.observe.marks import Strips
from relume.observe.observer import Observer, Snapshot
from relume.observe.plain import Lines
from relume.observe.screen import frame
from relume.observe.standing import Standing

PERIOD_S = 0.1
OVER = frozenset({Standing.ENDED, Standing.DEAD})


def follow(
    observer: Observer,
    console: Console,
    *,
    stop: Callable[[], bool] = lambda: False,
    period_s: float = PERIOD_S,
) -> Snapshot:
    """Show the run until it is over or `stop()` says so; return the last look."""
    if console.is_terminal and not console.is_dumb_terminal:
        return _draw(observer, console, stop, period_s)
    lines = Lines()
    while True:
        snapshot = observer.look()
        for line in lines.look(snapshot):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        if snapshot.standing in OVER or stop():
            return snapshot
        time.sleep(period_s)


def _draw(observer: Observer, console: Console, stop: Callable[[], bool], period_s: float) -> Snapshot:
    strips = Strips(ascii_only=not console.encoding.lower().startswith("utf"))
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            began = time.monotonic()
            snapshot = observer.look()
            strips.look(snapshot)
            live.update(frame(snapshot, strips, console.width, console.height - 1), refresh=True)
            if snapshot.standing in OVER or stop():
                return snapshot
            time.sleep(max(0.0, period_s - (time.monotonic() - began)))
