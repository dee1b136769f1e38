"""One frame of the live view: what a `Snapshot` looks like on a terminal of a given size. It asks nobody anything."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relume.core.words import plural
from relume.observe import marks
from relume.observe.marks import Strips
from relume.observe.observer import Snapshot
from relume.observe.report import STATES, fleet
from relume.observe.standing import Standing
from relume.observe.wording import cause_short, clock, duration, handled_s, listed, size, span
from relume.wire.events import WorkerLost
from relume.wire.messages import WorkerStatus

FRESH_S = 4.0
"""For so long a new incident is shown bright."""
_FRAME_LINES = 7
"""Lines that are about neither a worker nor an incident."""
_WORKER_LINES_MIN = 3
_INCIDENTS_WANTED = 5
_STATE_WIDTH = 9
_DOING_WIDTH = 31
_PID_WIDTH = 12
_WIDE = 100
"""From this width on, everything is shown."""
_STATES = {
    "in": ("alive", "green"),
    "starting": ("starting", "yellow"),
    "replaying": ("replaying", "bold blue"),
    "spare": ("spare", "cyan"),
    "leaving": ("leaving", "yellow"),
    "ended": ("done", "green"),
}
"""A worker's state: the word on the screen and its colour."""


def frame(snapshot: Snapshot, strips: Strips, width: int, height: int) -> RenderableType:
    """Draw `snapshot` into `width` columns and at most `height` lines."""
    worker_lines, incident_lines = _split(
        len(snapshot.story.pids), len(snapshot.story.incidents), height - _FRAME_LINES
    )
    parts: list[RenderableType] = [_progress(snapshot), _standing_line(snapshot, width), Text()]
    parts.append(_workers(snapshot, strips, worker_lines, width))
    parts += [strips.legend(), Text(), _incidents(snapshot, incident_lines, width)]
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
        ready = sum(worker.state in {"in", "replaying", "spare"} for worker in reply.workers)
        text = f"starting: {ready} of {plural(len(reply.workers), 'worker')} ready, {clock(reply.uptime_s)}"
        return Text(text + " (importing torch takes the time)")
    uptime_s = reply.uptime_s if reply is not None else None
    return progress_line(snapshot.steps, snapshot.total, snapshot.step_s, snapshot.loss, uptime_s)


def _standing_line(snapshot: Snapshot, width: int) -> Text:
    """Draw one line: how many workers, and what they could come back from."""
    reply, checkpoint = snapshot.reply, snapshot.story.checkpoint
    parts = [fleet(snapshot)]
    if reply is not None and reply.mirror_step >= 0:
        memory = f" ({size(reply.mirror_bytes)})" if reply.mirror_bytes and width >= _WIDE else ""
        parts.append(f"mirror: step {reply.mirror_step}{memory}")
    if checkpoint is not None:
        parts.append(f"disk: step {checkpoint.step}")
    text = Text(no_wrap=True, overflow="ellipsis")
    if reply is not None and reply.state == "paused":
        text.append(f"{STATES['paused']}  ", "bold yellow")
    return text.append("  ".join(filter(None, parts)), "bright_black")


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
    pid_width = _PID_WIDTH if width >= _WIDE else 0
    strip_width = max(1, width - 4 - rank_width - _STATE_WIDTH - _DOING_WIDTH - pid_width - 4)
    table = Table.grid(padding=(0, 1))
    for column_width in (rank_width, _STATE_WIDTH, strip_width, _DOING_WIDTH, pid_width):
        table.add_column(no_wrap=True, width=column_width)
    told = {worker.rank: worker for worker in snapshot.reply.workers} if snapshot.reply is not None else {}
    for rank in shown:
        incident = snapshot.story.lost.get(rank)
        table.add_row(
            Text(str(rank), "bold"),
            _state(rank, told.get(rank), incident, snapshot),
            strips.strip(rank, strip_width),
            _doing(told.get(rank), incident, snapshot),
            Text(f"pid {snapshot.story.pids[rank]}" if pid_width else "", "bright_black"),
        )
    hidden = len(ranks) - len(shown)
    return Group(table, Text(f"and {plural(hidden, 'more worker')}", "bright_black")) if hidden else table


def _state(rank: int, worker: WorkerStatus | None, incident: WorkerLost | None, snapshot: Snapshot) -> Text:
    if incident is not None or (worker is not None and worker.state == "lost"):
        return Text("lost", "bold red")
    if rank in snapshot.story.left:
        return Text("left", "bright_black")
    if worker is None:
        ended = snapshot.story.ended
        if ended is None:
            return Text("?", "yellow")
        return Text("done", "green") if ended.outcome == "completed" else Text("stopped", "yellow")
    return Text(*_STATES.get(worker.state, (worker.state, "")))


def _doing(worker: WorkerStatus | None, incident: WorkerLost | None, snapshot: Snapshot) -> Text:
    if incident is not None:
        return Text(f"{incident.phase} of {_at(incident.step, incident.shard)}", "red")
    if worker is None or worker.state in {"starting", "ended"}:
        return Text()
    if worker.state == "lost":
        return Text(f"{worker.phase} of {_at(worker.step, worker.shard)}", "red")
    if worker.state in {"replaying", "spare"}:
        return Text(f"{'level, ' if worker.state == 'spare' else ''}step {max(0, worker.step)}", "bright_black")
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


def _incidents(snapshot: Snapshot, lines: int, width: int) -> RenderableType:
    story = snapshot.story
    first = max(0, len(story.incidents) - (lines - 1))
    incidents = list(enumerate(story.incidents))[first:]
    if not incidents:
        return Text("no worker has died so far", "bright_black")
    headers = {
        "step": 4,
        "worker": 6,
        "what happened": 9,
        "while in": 8,
        "redone by": 3,
        "handled in": 8,
        "whole in": 8,
    }
    hidden = set() if width >= _WIDE else {"redone by"} if story.whole_ns else {"whole in"}
    table = Table.grid(padding=(0, 2))
    shown = [header for header in headers if header not in hidden]
    for header in shown:
        table.add_column(no_wrap=True, min_width=headers[header])
    table.add_row(*(Text(header, "bright_black") for header in shown))
    for index, incident in incidents:
        cells = _incident(incident, story.whole_s(index))
        bright = "bold red" if _fresh(incident, snapshot) else ""
        table.add_row(*(cells[header] for header in shown), style=bright)
    return table


def _incident(incident: WorkerLost, whole_s: float | None) -> dict[str, Text]:
    """Return an incident's cells. `whole_s`: until the fleet was as large again."""
    return {
        "step": Text(str(incident.step)),
        "worker": Text(f"{incident.rank} life {incident.life}" if incident.life else str(incident.rank)),
        "what happened": Text(cause_short(incident)),
        "while in": Text(f"{incident.phase}, shard {incident.shard}" if incident.shard >= 0 else incident.phase),
        "redone by": Text(listed(sorted(set(incident.moved.values()))) if incident.moved else "-"),
        "handled in": Text(span(handled_s(incident)), "bold"),
        "whole in": Text(span(whole_s), "bold"),
    }


def _fresh(incident: WorkerLost, snapshot: Snapshot) -> bool:
    return 0 <= snapshot.now_s - (incident.installed_ns or incident.lost_ns) / 1e9 < FRESH_S
