"""A hundred recoveries leave descriptors, threads, children and shared memory where they were (scenario 13)."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

from relume.wire.events import RunStarted, WorkerLost
from tests import processes
from tests.fleet import run_fleet
from tests.training import check, script


def descriptors():
    """What this process has open, without the one that looks."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(found)


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - where others leave theirs


def children():
    return [p.pid for p in processes.table().values() if p.parent == os.getpid() and p.state != "Z"]


def test_survivors_are_after_four_losses_what_they_were_before(tmp_path):
    """Data loaders included: the survivor's own stay, and those of the dead are gone."""

    def count(rank, step):
        if step.number in {2, 11}:
            counted = {"fds": len(descriptors()), "threads": threads(), "children": len(children())}
            (tmp_path / f"count-{rank}-{step.number}").write_text(json.dumps(counted))
        if step.number == 2 * rank + 2 and rank < 4:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(30)

    result = run_fleet(script(tmp_path, total=13, after=count, num_workers=1), workers=5, tmp_path=tmp_path)
    check(tmp_path, result, lost=dict.fromkeys(range(4), "signal"), main=4, total=13)
    before, after = (json.loads((tmp_path / f"count-4-{step}").read_text()) for step in (2, 11))
    assert after.pop("fds") <= before.pop("fds")  # a batch that was loaded ahead holds one; towards the end fewer are
    assert after == before
    assert before["children"] == 1


def test_the_agent_is_after_a_run_what_it_was_before(tmp_path):
    def one(folder, kills):
        folder.mkdir()
        traps = [{"rank": rank, "step": 1 + rank, "phase": "update", "action": "kill"} for rank in range(kills)]
        result = run_fleet(script(folder), workers=4, tmp_path=folder, traps=traps)
        assert (result.exit_code, len(result.incidents)) == (0, kills)

    one(tmp_path / "warm", 1)  # what the first run of all leaves for good is no leak
    before = descriptors(), threading.active_count(), children(), shared_memory()
    for number in range(4):
        one(tmp_path / str(number), number)
    assert (descriptors(), threading.active_count(), children(), shared_memory()) == before
    assert multiprocessing.active_children() == []


def test_the_agent_holds_nothing_of_a_lost_worker(tmp_path):
    """While the run goes on: per lost worker its socket, its pidfd, its pipes and its process are gone."""
    open_at: dict[str, int] = {}

    def watch(event):
        if isinstance(event, RunStarted):
            open_at["start"] = len(descriptors())
        if isinstance(event, WorkerLost):
            open_at[f"lost-{event.rank}"] = len(descriptors())

    def slow(rank, step):
        time.sleep(0.05)

    traps = [{"rank": rank, "step": 2 + 3 * rank, "phase": "update", "action": "kill"} for rank in range(3)]
    result = run_fleet(script(tmp_path, total=12, after=slow), workers=4, tmp_path=tmp_path, traps=traps, watcher=watch)
    check(tmp_path, result, lost=dict.fromkeys(range(3), "signal"), main=3, total=12)
    freed = open_at["lost-0"] - open_at["lost-1"]
    assert freed >= 4  # its socket, its pidfd and two pipes
    assert open_at["lost-1"] - open_at["lost-2"] == freed


def test_a_run_is_seen_by_nobody_else(tmp_path):
    """No file outside of the run's folder, no name in /dev/shm, and no socket but one that goes away with the agent."""
    sockets = []

    def watch(event):
        if isinstance(event, RunStarted):
            sockets.append(event.run)

    result = run_fleet(script(tmp_path), workers=2, tmp_path=tmp_path, watcher=watch)
    assert result.exit_code == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {result.run_dir.name, f"{result.run_dir.name}.screen", "latest", "digest-0", "digest-1"}
    assert {path.name for path in result.run_dir.iterdir()} == {"events.jsonl", "run.json"}
    assert sockets[0] not in Path("/proc/net/unix").read_text()
