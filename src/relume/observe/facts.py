"""A run as one JSON object, for programs: all that its events and its agent say of it. Its schema is versioned."""

from __future__ import annotations

from typing import Any

import msgspec

from relume.observe.observer import Snapshot
from relume.observe.wording import handled_s, since_kill_s
from relume.wire.messages import WorkerStatus

VERSION = 1
"""A field may be added within a version."""


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
        "workers": [msgspec.to_builtins(worker) for worker in workers_of(snapshot)],
        "target": reply.target or None if reply is not None else None,
        "spares": reply.spares if reply is not None else None,
        "restarts": restarts_of(snapshot),
        "mirror": _mirror(snapshot),
        "checkpoint": msgspec.to_builtins(story.checkpoint) if story.checkpoint else None,
        "checkpoint_failures": [msgspec.to_builtins(failure) for failure in story.checkpoint_failures],
        "levels": [msgspec.to_builtins(level) for level in story.levels],
        "left": [msgspec.to_builtins(leaver) for leaver in story.leavers],
        "scaled": [msgspec.to_builtins(scaling) for scaling in story.scalings],
        "losses": reply.incidents if reply is not None else len(story.incidents),
        "incidents": [_incident(snapshot, index) for index in range(len(story.incidents))],
        "raised": [msgspec.to_builtins(raised) for raised in story.raised],
        "remarks": [msgspec.to_builtins(remark) for remark in story.remarks],
        "outcome": story.ended.outcome if story.ended else None,
        "reason": story.ended.reason if story.ended else None,
        "exit_code": story.ended.exit_code if story.ended else None,
        "problems": list(snapshot.problems),
    }


def workers_of(snapshot: Snapshot) -> list[WorkerStatus]:
    """Return the workers as the agent tells them, or as the events leave them."""
    story, found = snapshot.story, []
    lost, left = story.lost, story.left
    if snapshot.reply is not None:
        return [_shown(worker, left=worker.rank in left) for worker in snapshot.reply.workers]
    survived = "ended" if story.ended and story.ended.outcome == "completed" else "gone"
    for rank, pid in sorted(story.pids.items()):
        incident, life = lost.get(rank), story.lives[rank]
        if incident is not None:
            at = (incident.phase, incident.step, incident.shard)
            found.append(WorkerStatus(rank, pid, "lost", *at, 0.0, life))
        else:
            state = "left" if rank in left else survived
            found.append(WorkerStatus(rank, pid, state, "", -1, -1, 0.0, life))
    return found


def _shown(worker: WorkerStatus, *, left: bool) -> WorkerStatus:
    """Return a worker without what its seat still says of the one before it, or of what it did when it was there."""
    state = "left" if left else worker.state
    if state not in {"starting", "ended", "left"}:
        return worker
    return WorkerStatus(worker.rank, worker.pid, state, "", -1, -1, 0.0, worker.life)


def restarts_of(snapshot: Snapshot) -> int:
    """Return how many lost workers were replaced."""
    return max(snapshot.story.restarts, snapshot.reply.restarts if snapshot.reply is not None else 0)


def _mirror(snapshot: Snapshot) -> dict[str, Any] | None:
    first, reply = snapshot.story.mirrored, snapshot.reply
    if first is None:
        return None
    facts = msgspec.to_builtins(first)
    del facts["kind"], facts["step"]
    step = reply.mirror_step if reply is not None and reply.mirror_step >= 0 else None
    return {"step": step, "first_step": first.step, **facts}


def _incident(snapshot: Snapshot, index: int) -> dict[str, Any]:
    incident = snapshot.story.incidents[index]
    spans = {
        "handled_ms": handled_s(incident),
        "since_kill_ms": since_kill_s(incident),
        "whole_ms": snapshot.story.whole_s(index),
    }
    figures = {name: None if span is None else span * 1e3 for name, span in spans.items()}
    return {**msgspec.to_builtins(incident), **figures}
