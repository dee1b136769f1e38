"""Runs that exist only as files: what the tests of this folder look at."""

import os
import time

import msgspec

from relume.observe.observer import Snapshot
from relume.observe.standing import Standing
from relume.observe.story import Story
from relume.wire.events import (
    SCHEMA,
    ArenaReserved,
    CheckpointFailed,
    CheckpointWritten,
    Line,
    Mirrored,
    RunEnded,
    RunStarted,
    Scaled,
    ViewInstalled,
    WorkerLeft,
    WorkerLevel,
    WorkerLost,
    WorkerStarted,
)
from relume.wire.messages import StatusReply, View, WorkerStatus

RUN = "20260101-000000-abcd"
COMMAND = ("/usr/bin/python", "-u", "train.py", "--steps", "60")
DEAD_PID = 2**22 + 1  # above the kernel's highest


def loss_of(rank, *, step=12, phase="backward", shard=4, moved=None, **changes):
    """Return the incident of a worker that was killed; the survivors had a new view 72 ms later."""
    fields = {
        "rank": rank,
        "pid": 100 + rank,
        "cause": "signal",
        "text": "it was killed by signal 9 (SIGKILL)",
        "evidence": {},
        "wait_status": 9,
        "phase": phase,
        "step": step,
        "shard": shard,
        "view": (1, 2),
        "moved": {4: 0, 5: 1} if moved is None else moved,
        "rung": 2,
        "killed_ns": 1_000_000_000,
        "lost_ns": 1_060_000_000,
        "fenced_ns": 1_061_000_000,
        "promised_ns": 1_070_000_000,
        "installed_ns": 1_072_000_000,
    }
    return WorkerLost(**(fields | changes))


def events_of_a_run(*, workers=4, agent_pid=DEAD_PID, incidents=None, ended=True):
    """Return the events of a run whose worker 2 was killed."""
    incidents = [loss_of(2)] if incidents is None else incidents
    events = [RunStarted(RUN, agent_pid, workers, COMMAND)]
    events += [WorkerStarted(rank, 100 + rank) for rank in range(workers)]
    members = tuple(range(workers))
    events += [ArenaReserved(1 << 20, 1 << 18, 8), ViewInstalled((1, 1), 0, members, ())]
    for n, incident in enumerate(incidents):
        members = tuple(rank for rank in members if rank != incident.rank)
        events += [ViewInstalled((1, n + 2), incident.step, members, ()), incident]
    return [*events, RunEnded("completed", "every step is done", 0)] if ended else events


def events_of_a_comeback(*, ended=True):
    """Return the events of a run of four in which worker 2 is killed and comes back, a fifth comes, and worker 0 goes.

    Before the last, a checkpoint was written and another could not be.
    """
    events = events_of_a_run(ended=False)
    events += [
        Mirrored(8, 8, 1_200_000, 12, 4_800_000, 0.0031),
        WorkerStarted(2, 202, 1, warm=True),
        WorkerLevel(2, 202, 1, 26, 24, "00ff00ff00ff00ff"),
        ViewInstalled((1, 3), 28, (0, 1, 2, 3), ()),
        Scaled(4, 5),
        WorkerStarted(4, 104),
        CheckpointWritten(30, "/scratch/run/step-30", 1_200_000, 0.21),
        CheckpointFailed(40, "/scratch/run/step-40", "the disk is full"),
        WorkerLevel(4, 104, 0, 41, 0, "00ff00ff00ff00ff"),
        ViewInstalled((1, 4), 43, (0, 1, 2, 3, 4), ()),
        ViewInstalled((1, 5), 47, (1, 2, 3, 4), ()),
        WorkerLeft(0, 100, 0, "SIGTERM"),
    ]
    return [*events, RunEnded("completed", "every step is done", 0)] if ended else events


def text_of(event, *, v=SCHEMA, at_s=None):
    """Return `event` as its line, with the newline."""
    at_s = time.time() if at_s is None else at_s
    return msgspec.json.encode(Line(v, at_s, int(at_s * 1e9), event)) + b"\n"


def write_run(root, events, name=RUN, *, steps=60):
    """Write a run's folder and return it."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"".join(text_of(event) for event in events))
    (folder / "run.json").write_text(f'{{"run": "{name}", "steps": {steps}, "shards": 8}}')
    return folder


def story_of(events, at_s=None, every_s=0.0):
    """Return the story that `events` tell, `every_s` after one another."""
    story, at_s = Story(), time.time() if at_s is None else at_s
    for number, event in enumerate(events):
        story.take(msgspec.json.decode(text_of(event, at_s=at_s + number * every_s), type=Line))
    return story


def reply_with(*workers, state="steady", total=60, incidents=1, uptime_s=34.0, **more):
    """Return an agent's answer; the members are those that are in."""
    members = tuple(worker.rank for worker in workers if worker.state in {"in", "leaving"})
    view = View((1, 2), members, 12, 8, tuple(() for _ in members)) if members else None
    return StatusReply(RUN, os.getpid(), state, uptime_s, view, total, incidents, workers, **more)


def worker(rank, state="in", *, phase="backward", step=24, shard=1, idle_s=0.0, life=0):
    """Return a worker as its agent tells it."""
    return WorkerStatus(rank, 100 * (life + 1) + rank, state, phase, step, shard, idle_s, life)


def snapshot_of(folder, story, reply=None, **changes):
    """Return one look at that run."""
    stands = Standing.ENDED if story.ended else Standing.LIVE if reply else Standing.DEAD
    fields = {
        "folder": folder,
        "run": RUN,
        "standing": stands,
        "story": story,
        "reply": reply,
        "steps": 24,
        "total": 60,
        "loss": 2.41,
        "step_s": 0.31,
        "says": "step   20  loss 2.4410",
        "problems": (),
        "now_s": 1000.0,
    }
    return Snapshot(**(fields | changes))
