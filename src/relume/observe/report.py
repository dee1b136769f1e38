"""A run in full, once: for people as lines of text, for programs as one JSON object (its schema is versioned)."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text

from relume.observe.observer import Snapshot
from relume.observe.standing import Standing
from relume.observe.wording import clock, duration, hand_over, handled_s, listed, place, plural, since_kill_s
from relume.wire.events import WorkerLost
from relume.wire.messages import WorkerStatus

VERSION = 1
"""Of the JSON object. A field may be added within a version."""

STATES = {
    "forming": "the workers are starting",
    "steady": "training",
    "ballot": "a loss is being dealt with",
    "counting": "a loss is being dealt with",
    "closed": "every step is done, the script runs to its end",
    "ended": "ending",
}
"""The coordinator's states in words."""


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the object that `relume status --json` prints."""
    story, reply = snapshot.story, snapshot.reply
    view = reply.view if reply is not None else None
    last = story.view
    number = view.number if view else last.view if last else None
    members = view.members if view else last.members if last else ()
    return {
        "v": VERSION,
        "run": snapshot.run,
        "folder": str(snapshot.folder),
        "standing": snapshot.standing.value,
        "state": reply.state if reply is not None else None,
        "agent_pid": story.started.agent_pid if story.started else reply.pid if reply else None,
        "command": list(story.started.command) if story.started else [],
        "started": story.started_s or None,
        "uptime_s": reply.uptime_s if reply is not None else max(0.0, story.last_s - story.started_s),
        "step": snapshot.steps,
        "total": snapshot.total or None,
        "shards": view.shards if view else story.shards,
        "view": {"number": list(number), "members": list(members)} if number else None,
        "workers": [msgspec.to_builtins(worker) for worker in _workers(snapshot)],
        "losses": reply.incidents if reply is not None else len(story.incidents),
        "incidents": [_incident(incident) for incident in story.incidents],
        "raised": [msgspec.to_builtins(raised) for raised in story.raised],
        "remarks": [msgspec.to_builtins(remark) for remark in story.remarks],
        "outcome": story.ended.outcome if story.ended else None,
        "reason": story.ended.reason if story.ended else None,
        "exit_code": story.ended.exit_code if story.ended else None,
        "problems": list(snapshot.problems),
    }


def as_text(snapshot: Snapshot) -> list[Text]:
    """Return the lines that `relume status` prints."""
    lines = [_headline(snapshot), *_facts(snapshot)]
    if snapshot.reply is not None:
        lines += [Text(), *_worker_lines(snapshot)]
    lines += [Text(), *_incident_lines(snapshot)]
    for raised in snapshot.story.raised:
        lines.append(Text(f"worker {raised.rank}'s script raised {raised.error} at {raised.where}", "red"))
        lines.append(Text(f"  its traceback is in worker-{raised.rank}.log"))
    for remark in snapshot.story.remarks[-3:]:
        text = f"note by worker {remark.rank}, step {remark.step}: {remark.text} ({remark.topic})"
        lines.append(Text(text, "yellow"))
    lines += [Text(f"note: {problem}", "yellow") for problem in snapshot.problems]
    return lines


def _workers(snapshot: Snapshot) -> list[WorkerStatus]:
    """Return the workers as the agent tells them, or as the events leave them."""
    if snapshot.reply is not None:
        return list(snapshot.reply.workers)
    story, found = snapshot.story, []
    survived = "ended" if story.ended and story.ended.outcome == "completed" else "gone"
    for rank, pid in sorted(story.pids.items()):
        incident = story.lost.get(rank)
        if incident is None:
            found.append(WorkerStatus(rank, pid, survived, "", -1, -1, 0.0))
        else:
            found.append(WorkerStatus(rank, pid, "lost", incident.phase, incident.step, incident.shard, 0.0))
    return found


def _incident(incident: WorkerLost) -> dict[str, Any]:
    since_kill = since_kill_s(incident)
    figures = {"handled_ms": handled_s(incident) * 1e3, "since_kill_ms": since_kill and since_kill * 1e3}
    return {**msgspec.to_builtins(incident), **figures}


def _headline(snapshot: Snapshot) -> Text:
    story, reply = snapshot.story, snapshot.reply
    text = Text.assemble("run ", (snapshot.run, "bold"), ": ")
    if snapshot.standing is Standing.ENDED and story.ended is not None:
        good = story.ended.exit_code == 0
        text.append(story.ended.outcome.replace("_", " "), "bold green" if good else "bold red")
        text.append(f", exit code {story.ended.exit_code}: {story.ended.reason}")
    elif snapshot.standing is Standing.LIVE and reply is not None:
        text.append("live", "bold green")
        text.append(f", {STATES.get(reply.state, reply.state)}")
    else:
        pid = f"(pid {story.started.agent_pid}) " if story.started else ""
        if snapshot.standing is Standing.SILENT:
            text.append("does not answer", "bold yellow")
            text.append(f": its agent {pid}is there, but stopped, overloaded, another user's or in another container")
        else:
            text.append("dead", "bold red")
            text.append(f": its agent {pid}is not there any more and wrote no end: it was killed, or the machine was")
    return text


def _facts(snapshot: Snapshot) -> list[Text]:
    story, reply = snapshot.story, snapshot.reply
    facts = {"command": story.script or "?", "folder": str(snapshot.folder)}
    if reply is not None:
        facts["agent"] = f"pid {reply.pid}, up {clock(reply.uptime_s)}"
    elif story.started_s:
        facts["time"] = f"{clock(max(0.0, story.last_s - story.started_s))} from the first event to the last"
    if snapshot.total or snapshot.steps:
        known = f"{snapshot.steps} of {snapshot.total}" if snapshot.total else str(snapshot.steps)
        facts["steps"] = f"{known} done" if reply or snapshot.steps == snapshot.total else f"at least {known} done"
    if story.view is not None:
        number = f"{story.view.view[0]}.{story.view.view[1]}"
        shards = f", {plural(story.shards, 'shard')} a step" if story.shards else ""
        since = "from the first step" if story.view.step == 0 else f"since step {story.view.step}"
        facts["view"] = f"{number} {since}: {_named(list(story.view.members))}{shards}"
    if snapshot.says and reply is not None:
        facts["prints"] = snapshot.says
    return [Text.assemble("  ", (f"{name:<8}", "dim"), " ", value) for name, value in facts.items()]


def _named(ranks: list[int]) -> str:
    return f"{'worker' if len(ranks) == 1 else 'workers'} {listed(ranks)}"


def _worker_lines(snapshot: Snapshot) -> list[Text]:
    lines = [Text(f"  {'worker':<8}{'pid':<9}{'state':<12}{'phase':<11}{'step':<8}{'shard':<7}idle", "dim")]
    for worker in _workers(snapshot):
        state = "in, main" if worker.state == "in" and worker.rank == snapshot.main else worker.state
        step, shard = (str(number) if number >= 0 else "-" for number in (worker.step, worker.shard))
        idle = duration(worker.idle_s) if worker.idle_s >= 1 and worker.state == "in" else "-"
        row = f"  {worker.rank:<8}{worker.pid:<9}{state:<12}{worker.phase:<11}{step:<8}{shard:<7}{idle}"
        lines.append(Text(row, "red" if worker.state == "lost" else ""))
    return lines


def _incident_lines(snapshot: Snapshot) -> list[Text]:
    incidents = snapshot.story.incidents
    lines = [Text(f"{plural(len(incidents), 'incident')}" if incidents else "no incidents", "bold")]
    for incident in incidents:
        where = place(incident.phase, incident.step, incident.shard)
        lines.append(Text(f"  worker {incident.rank} (pid {incident.pid}) {where}: {incident.text}", "red"))
        lines.append(Text(f"    {hand_over(incident)}; {_timeline(incident)}"))
    coming = snapshot.reply.incidents - len(incidents) if snapshot.reply is not None else 0
    if coming > 0:
        lines.append(Text(f"  {coming} more: being dealt with", "dim"))
    return lines


def _timeline(incident: WorkerLost) -> str:
    text = f"view {incident.view[0]}.{incident.view[1]} {duration(handled_s(incident))} after it was noticed"
    since_kill = since_kill_s(incident)
    return text if since_kill is None else f"{text}, {duration(since_kill)} after the kill"
