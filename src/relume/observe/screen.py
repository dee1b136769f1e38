"""One frame of the live view: what a `Snapshot` looks like on a terminal of a given size. It asks nobody anything."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relume.observe import marks
from relume.observe.marks import Strips
from relume.observe.observer import Snapshot
from relume.observe.standing import Standing
from relume.observe.wording import cause_short, clock, duration, handled_s, listed, plural
from relume.wire.events import WorkerLost
from relume.wire.messages import WorkerStatus

FRESH_S = 4.0
"""For so long a new incident is shown bright."""
_FRAME_LINES = 6
"""Lines that are about neither a worker nor an incident."""
_WORKER_LINES_MIN = 3
_INCIDENTS_WANTED = 5
_STATE_WIDTH = 8
_DOING_WIDTH = 31
_PID_WIDTH = 12


def frame(snapshot: Snapshot, strips: Strips, width: int, height: int) -> RenderableType:
    """Draw `snapshot` into `width` columns and at most `height` lines."""
    worker_lines, incident_lines = _split(
        len(snapshot.story.pids), len(snapshot.story.incidents), height - _FRAME_LINES
    )
    parts: list[RenderableType] = [_progress(snapshot), Text(), _workers(snapshot, strips, worker_lines, width)]
    parts += [strips.legend(), Text(), _incidents(snapshot, incident_lines)]
    title = Text.assemble((" relume ", "bold"), f"{snapshot.story.title or snapshot.run} ")
    title.truncate(width - 8, overflow="ellipsis")
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=_subtitle(snapshot, width),
        subtitle_align="left",
        border_style=_border(snapshot),
        padding=(0, 1),
        width=width,
    )


def _split(workers: int, incidents: int, lines: int) -> tuple[int, int]:
    """Divide `lines` between workers and incidents, which want a line for their header, too."""
    wanted = 1 + min(incidents, _INCIDENTS_WANTED)
    for_workers = max(_WORKER_LINES_MIN, min(workers, lines - wanted))
    return for_workers, max(2, lines - for_workers)


def _border(snapshot: Snapshot) -> str:
    if any(_fresh(incident, snapshot) for incident in snapshot.story.incidents):
        return "red"
    ended = snapshot.story.ended
    if ended is not None:
        return "green" if ended.exit_code == 0 else "red"
    return "red" if snapshot.standing is Standing.DEAD else "cyan"


def _subtitle(snapshot: Snapshot, width: int) -> Text | None:
    ended = snapshot.story.ended
    if ended is not None:
        text = Text(f" {ended.reason} ", "bold green" if ended.exit_code == 0 else "bold red")
    elif snapshot.standing is Standing.DEAD:
        text = Text(" the agent is gone ", "bold red")
    elif snapshot.says:
        text = Text(f" worker {snapshot.main} prints: {snapshot.says} ", "bright_black")
    else:
        return None
    text.truncate(width - 8, overflow="ellipsis")
    return text


def _progress(snapshot: Snapshot) -> RenderableType:
    reply = snapshot.reply
    if reply is not None and reply.state == "forming":
        ready = sum(worker.state == "in" for worker in reply.workers)
        text = f"starting: {ready} of {plural(len(reply.workers), 'worker')} ready, {clock(reply.uptime_s)}"
        return Text(text + " (importing torch takes the time)")
    uptime_s = reply.uptime_s if reply is not None else None
    return progress_line(snapshot.steps, snapshot.total, snapshot.step_s, snapshot.loss, uptime_s)


def progress_line(
    steps: int, total: int, step_s: float | None, loss: float, uptime_s: float | None = None
) -> RenderableType:
    """Draw one line: how far, how fast, how well. What is not known (None, NaN, a total of 0) is left out."""
    figures = Text()
    if step_s is not None:
        figures.append(f"  {duration(step_s)}/step")
    if not math.isnan(loss):
        figures.append("  loss ").append(f"{loss:.4f}", "bold")
    if uptime_s is not None:
        figures.append(f"  {clock(uptime_s)}", "bright_black")
    end = max(total, steps, 1)
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=end, completed=steps, complete_style="green", finished_style="green")
    line.add_row(Text(f"step {steps:>{len(str(end))}} of {total or '?'}  ", "bold"), bar, figures)
    return line


def _workers(snapshot: Snapshot, strips: Strips, lines: int, width: int) -> RenderableType:
    ranks = sorted(snapshot.story.pids)
    shown = ranks if len(ranks) <= lines else ranks[: lines - 1]
    rank_width = len(str(max(shown, default=0)))
    pid_width = _PID_WIDTH if width >= 100 else 0
    strip_width = max(1, width - 4 - rank_width - _STATE_WIDTH - _DOING_WIDTH - pid_width - 4)
    table = Table.grid(padding=(0, 1))
    for column_width in (rank_width, _STATE_WIDTH, strip_width, _DOING_WIDTH, pid_width):
        table.add_column(no_wrap=True, width=column_width)
    told = {worker.rank: worker for worker in snapshot.reply.workers} if snapshot.reply is not None else {}
    for rank in shown:
        incident = snapshot.story.lost.get(rank)
        table.add_row(
            Text(str(rank), "bold"),
            _state(told.get(rank), incident, snapshot),
            strips.strip(rank, strip_width),
            _doing(told.get(rank), incident, snapshot),
            Text(f"pid {snapshot.story.pids[rank]}" if pid_width else "", "bright_black"),
        )
    hidden = len(ranks) - len(shown)
    return Group(table, Text(f"and {plural(hidden, 'more worker')}", "bright_black")) if hidden else table


def _state(worker: WorkerStatus | None, incident: WorkerLost | None, snapshot: Snapshot) -> Text:
    if incident is not None or (worker is not None and worker.state == "lost"):
        return Text("lost", "bold red")
    if worker is None:
        ended = snapshot.story.ended
        if ended is None:
            return Text("?", "yellow")
        return Text("done", "green") if ended.outcome == "completed" else Text("stopped", "yellow")
    words = {"in": ("alive", "green"), "starting": ("starting", "yellow"), "ended": ("done", "green")}
    return Text(*words.get(worker.state, (worker.state, "")))


def _doing(worker: WorkerStatus | None, incident: WorkerLost | None, snapshot: Snapshot) -> Text:
    if incident is not None:
        return Text(f"{incident.phase} of {_at(incident.step, incident.shard)}", "red")
    if worker is None or worker.state in {"starting", "ended"}:
        return Text()
    if worker.state == "lost":
        return Text(f"{worker.phase} of {_at(worker.step, worker.shard)}", "red")
    text = Text(f"{worker.phase:<9}", marks.style(worker.phase))
    if worker.shard >= 0:
        text.append(f" shard {worker.shard}")
    if worker.idle_s >= 2:
        text.append(f" for {duration(worker.idle_s)}", "yellow")
    if worker.rank == snapshot.main:
        text.append("  main", "bold")
    return text


def _at(step: int, shard: int) -> str:
    if step < 0:
        return "no step yet"
    return f"step {step}, shard {shard}" if shard >= 0 else f"step {step}"


def _incidents(snapshot: Snapshot, lines: int) -> RenderableType:
    incidents = snapshot.story.incidents[-(lines - 1) :]
    if not incidents:
        return Text("no worker has died so far", "bright_black")
    table = Table.grid(padding=(0, 2))
    headers = {"step": 4, "worker": 6, "what happened": 9, "while in": 8, "redone by": 3, "handled in": 8}
    for width_min in headers.values():
        table.add_column(no_wrap=True, min_width=width_min)
    table.add_row(*(Text(header, "bright_black") for header in headers))
    for incident in incidents:
        doing = f"{incident.phase}, shard {incident.shard}" if incident.shard >= 0 else incident.phase
        heirs = listed(sorted(set(incident.moved.values()))) if incident.moved else "-"
        table.add_row(
            str(incident.step),
            str(incident.rank),
            cause_short(incident),
            doing,
            heirs,
            Text(duration(handled_s(incident)), "bold"),
            style="bold red" if _fresh(incident, snapshot) else "",
        )
    return table


def _fresh(incident: WorkerLost, snapshot: Snapshot) -> bool:
    return 0 <= snapshot.now_s - incident.installed_ns / 1e9 < FRESH_S
