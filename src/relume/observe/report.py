"""A run in full, once, as lines of text for people."""

from __future__ import annotations

from rich.text import Text

from relume.core.words import plural
from relume.observe.facts import restarts_of, workers_of
from relume.observe.observer import Snapshot
from relume.observe.standing import Standing
from relume.observe.story import Told
from relume.observe.tale import DECIDED, checkpoint_line, mirror_line, told
from relume.observe.wording import clock, duration, hand_over, handled_s, named, place, since_kill_s
from relume.wire.events import CheckpointWritten, Remarked, WorkerLost

STATES = {
    "forming": "the workers are starting",
    "steady": "training",
    "ballot": "a loss is being dealt with",
    "counting": "a loss is being dealt with",
    "paused": "too few workers: waiting for others to come back",
    "closed": "every step is done, the script runs to its end",
    "ended": "ending",
}
"""The coordinator's states in words."""
MEMBERS = frozenset({"in", "leaving"})
"""The states of a worker that others wait for."""
_HISTORY_LINES = 12
_NOTES = 3


def as_text(snapshot: Snapshot) -> list[Text]:
    """Return the lines that `relume status` prints."""
    lines = [_headline(snapshot), *_facts(snapshot)]
    if snapshot.reply is not None:
        lines += [Text(), *_worker_lines(snapshot)]
    lines += [Text(), *_incident_lines(snapshot), *_history(snapshot)]
    for raised in snapshot.story.raised:
        lines.append(Text(f"worker {raised.rank}'s script raised {raised.error} at {raised.where}", "red"))
        lines.append(Text(f"  its traceback is in worker-{raised.rank}.log"))
    notes = [remark for remark in snapshot.story.remarks if remark.topic not in DECIDED]
    lines += [Text(told(note), "yellow") for note in notes[-_NOTES:]]
    lines += [Text(f"note: {problem}", "yellow") for problem in snapshot.problems]
    return lines


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
        facts["view"] = f"{number} {since}: {named(list(story.view.members))}{shards}"
    if fleet(snapshot):
        facts["fleet"] = fleet(snapshot)
    if story.mirrored is not None:
        newest = f"of step {reply.mirror_step}; " if reply is not None and reply.mirror_step >= 0 else ""
        facts["mirror"] = newest + mirror_line(story.mirrored)
    if story.checkpoint is not None:
        facts["disk"] = checkpoint_line(story.checkpoint)
    if snapshot.says and reply is not None:
        facts["prints"] = snapshot.says
    return [Text.assemble("  ", (f"{name:<8}", "dim"), " ", value) for name, value in facts.items()]


def fleet(snapshot: Snapshot) -> str:
    """Say how many there are of how many there should be; "" if nobody comes back in this run."""
    reply, parts = snapshot.reply, []
    if reply is not None and reply.target:
        members = len(reply.view.members) if reply.view is not None else 0
        parts.append(f"{members} of {plural(reply.target, 'worker')}")
        if reply.spares:
            level = sum(worker.state == "spare" for worker in reply.workers)
            parts.append(f"{level} of {plural(reply.spares, 'spare')}")
    restarts = restarts_of(snapshot)
    if restarts:
        parts.append(plural(restarts, "restart"))
    return ", ".join(parts)


def _worker_lines(snapshot: Snapshot) -> list[Text]:
    lines = [Text(f"  {'worker':<8}{'life':<6}{'pid':<9}{'state':<15}{'phase':<11}{'step':<8}{'shard':<7}idle", "dim")]
    for worker in workers_of(snapshot):
        state = f"{worker.state}, main" if worker.rank == snapshot.main and worker.state in MEMBERS else worker.state
        step, shard = (str(number) if number >= 0 else "-" for number in (worker.step, worker.shard))
        idle = duration(worker.idle_s) if worker.idle_s >= 1 and worker.state in MEMBERS else "-"
        row = f"  {worker.rank:<8}{worker.life:<6}{worker.pid:<9}{state:<15}{worker.phase:<11}{step:<8}{shard:<7}{idle}"
        lines.append(Text(row, "red" if worker.state == "lost" else ""))
    return lines


def _incident_lines(snapshot: Snapshot) -> list[Text]:
    incidents = snapshot.story.incidents
    lines = [Text(f"{plural(len(incidents), 'incident')}" if incidents else "no incidents", "bold")]
    for index, incident in enumerate(incidents):
        where = place(incident.phase, incident.step, incident.shard)
        life = f", life {incident.life}" if incident.life else ""
        lines.append(Text(f"  worker {incident.rank} (pid {incident.pid}{life}) {where}: {incident.text}", "red"))
        whole = snapshot.story.whole_s(index)
        again = "" if whole is None else f"; as many workers as before after {duration(whole)}"
        lines.append(Text(f"    {hand_over(incident)}; {_timeline(incident)}{again}"))
    coming = snapshot.reply.incidents - len(incidents) if snapshot.reply is not None else 0
    if coming > 0:
        lines.append(Text(f"  {coming} more: being dealt with", "dim"))
    return lines


def _history(snapshot: Snapshot) -> list[Text]:
    """Tell who came back, who left and what was kept; losses, notes and checkpoints that went well have their place."""
    story = snapshot.story
    entries = [at for at in story.tale if not _has_its_place(at[1])]
    if not entries:
        return []
    lines = [Text("what else happened", "bold")]
    hidden = len(entries) - _HISTORY_LINES
    if hidden > 0:
        lines.append(Text(f"  {hidden} more before these: see events.jsonl", "dim"))
    for at_s, event in entries[-_HISTORY_LINES:]:
        lines.append(Text.assemble("  ", (f"{clock(max(0.0, at_s - story.started_s)):>7}", "dim"), f"  {told(event)}"))
    return lines


def _has_its_place(event: Told) -> bool:
    """Return True for what is told elsewhere in the report."""
    if isinstance(event, Remarked):
        return event.topic not in DECIDED
    return isinstance(event, WorkerLost | CheckpointWritten)


def _timeline(incident: WorkerLost) -> str:
    handled = handled_s(incident)
    if handled is None:
        return "too few were left to go on"
    text = f"view {incident.view[0]}.{incident.view[1]} {duration(handled)} after it was noticed"
    since_kill = since_kill_s(incident)
    return text if since_kill is None else f"{text}, {duration(since_kill)} after the kill"
