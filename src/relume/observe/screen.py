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
from relume.observe.wording import cause_short, clock, duration, listed, plural, recovery_s
from relume.wire.events import WorkerLost
from relume.wire.messages import WorkerStatus

FRESH_S = 4.0
"""For so long a new incident is shown bright."""
_FRAME_LINES = 9
"""Lines that are neither a worker nor an incident."""
_WORKERS_MIN = 2
_STATE_WIDTH = 8
_DOING_WIDTH = 31
_PID_WIDTH = 12


def frame(snapshot: Snapshot, strips: Strips, width: int, height: int) -> RenderableType:
    """Draw `snapshot` into `width` columns and at most `height` lines."""
    room = height - _FRAME_LINES
    rows = max(_WORKERS_MIN, min(len(snapshot.story.pids), room - min(4, len(snapshot.story.incidents) + 1)))
    parts: list[RenderableType] = [_progress(snapshot), Text(), _workers(snapshot, strips, rows, width)]
    parts += [strips.legend(), Text(), *_incidents(snapshot, max(1, room - rows))]
    title = Text.assemble((" relume ", "bold"), (f"{snapshot.story.script or snapshot.run} ", ""))
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
    figures = Text()
    if snapshot.step_s is not None:
        figures.append(f"  {duration(snapshot.step_s)}/step")
    if not math.isnan(snapshot.loss):
        figures.append("  loss ").append(f"{snapshot.loss:.4f}", "bold")
    if snapshot.reply is not None:
        figures.append(f"  {clock(snapshot.reply.uptime_s)}", "bright_black")
    total = max(snapshot.total, snapshot.steps, 1)
    label = Text(f"step {snapshot.steps:>{len(str(total))}} of {snapshot.total or '?'}  ", "bold")
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=total, completed=min(snapshot.steps, total), complete_style="green", finished_style="green")
    line.add_row(label, bar, figures)
    return line


def _workers(snapshot: Snapshot, strips: Strips, rows: int, width: int) -> RenderableType:
    shown = sorted(snapshot.story.pids)[:rows]
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
    hidden = len(snapshot.story.pids) - len(shown)
    if hidden > 0:
        table.add_row("", "", Text(f"and {plural(hidden, 'more worker')}", "bright_black"))
    return table


def _state(worker: WorkerStatus | None, incident: WorkerLost | None, snapshot: Snapshot) -> Text:
    if incident is not None or (worker is not None and worker.state == "lost"):
        return Text("lost", "bold red")
    if worker is None:
        return Text("done", "green") if snapshot.story.ended is not None else Text("?", "yellow")
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


def _incidents(snapshot: Snapshot, rows: int) -> list[RenderableType]:
    incidents = snapshot.story.incidents[-max(1, rows - 1) :]
    if not incidents:
        return [Text("no worker has died so far", "bright_black")]
    table = Table.grid(padding=(0, 2))
    for header in ("step", "worker", "what happened", "while in", "redone by", "new view after"):
        table.add_column(header, no_wrap=True)
    table.add_row(*(Text(str(column.header), "bright_black") for column in table.columns))
    for incident in incidents:
        doing = f"{incident.phase}, shard {incident.shard}" if incident.shard >= 0 else incident.phase
        heirs = listed(sorted(set(incident.moved.values()))) if incident.moved else "-"
        table.add_row(
            str(incident.step),
            str(incident.rank),
            cause_short(incident),
            doing,
            heirs,
            Text(duration(recovery_s(incident)), "bold"),
            style="bold red" if _fresh(incident, snapshot) else "",
        )
    return [table]


def _fresh(incident: WorkerLost, snapshot: Snapshot) -> bool:
    return 0 <= snapshot.now_s - incident.installed_ns / 1e9 < FRESH_S
