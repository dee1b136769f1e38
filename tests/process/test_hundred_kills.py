"""A hundred kills in one run, one worker exempt: what the agent and that worker hold stays what it was after ten.

The agent is a process of its own and workers are forks of it (`tests.agents`), so that a kill and its recovery take
half a second. Everything is counted from outside, in /proc, while the fleet is whole.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import processes
from tests.agents import Agent
from tests.training import plain, script

WORKERS, EXEMPT = 3, 1
KILLS = 100
EARLY = 10
MEMORY_MAX_KB = 5 << 10
MOMENT_S = 0.3, 0.4
"""From when the fleet is whole until the next kill: the agent looks five times a second at what each has done, and
gives up a rank whose workers do nothing before they die."""


def counted(pid):
    """What a process holds that must not grow; memory apart."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(link.readlink()))
    kinds = Counter(re.sub(r"\d+", "N", link.partition(":[")[0]) for link in links)  # sockets and pipes have numbers
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    children = len([p for p in processes.table().values() if p.parent == pid and p.state not in {"Z", "X"}])
    return Counter(kinds | {"descriptors": len(links), "threads": threads, "children": children})


def memory_kb(pid):
    """Its own memory, and what of shared memory it has touched."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if words and words[0] in {"RssAnon:", "RssShmem:"}}


def shared_memory():
    return [path.name for path in Path("/dev/shm").iterdir()]  # noqa: S108 - where others leave theirs


class Census:
    """What is counted at one time, of the agent and of the worker that nobody kills."""

    def __init__(self, pids):
        self.held = {name: counted(pid) for name, pid in pids.items()} | {"shared memory": Counter(shared_memory())}
        self.memory = {name: memory_kb(pid) for name, pid in pids.items()}


def whole(agent):
    """Whether every rank's newest process is in the newest view."""
    started, lost, members = {}, set(), {}
    for event in agent.events():
        if event["kind"] == "worker_started":
            started[event["rank"]] = event["life"]
        elif event["kind"] == "incident":
            lost.add((event["rank"], event["life"]))
        elif event["kind"] == "view_installed":
            members = {rank: started[rank] for rank in event["members"]}
    return len(members) == WORKERS and members == started and not lost & set(members.items())


def hundred_kills(folder, dice, kills=KILLS, early=EARLY):
    """Run it; return (census after `early` kills, census after `kills`, number of steps)."""
    stop = folder / "stop"

    def inside(rank, step):
        step.log(stop=float(step.number % 8 == 0 and stop.exists()))  # logged by one shard, so the same on all

    def after(rank, step):
        (folder / "steps").write_text(str(step.number + 1)) if rank == EXEMPT else None
        return step.mean("stop") > 0

    body = script(folder, total=1_000_000, inside=inside, after=after)
    found = {}
    with Agent(body, folder, workers=WORKERS, max_restarts=kills + 20, mirror_every=8) as agent:
        agent.until(lambda: whole(agent))
        pids = {"agent": agent.pid, "exempt": agent.workers[EXEMPT]}
        for number in range(1, kills + 1):
            time.sleep(dice.uniform(*MOMENT_S))
            os.kill(agent.workers[dice.choice([rank for rank in range(WORKERS) if rank != EXEMPT])], signal.SIGKILL)
            agent.until(lambda number=number: len(agent.events("incident")) == number and whole(agent))
            if number in {early, kills}:
                time.sleep(0.5)  # whoever has just gone is waited for
                found[number] = Census(pids)
        stop.touch()
        assert agent.join(60) == 0, agent.output()
    assert len(agent.events("incident")) == kills
    assert all(event["rank"] != EXEMPT for event in agent.events("incident"))
    return found[early], found[kills], int((folder / "steps").read_text())


def check(folder, before, after, steps):
    for name, held in before.held.items():
        now = after.held[name]
        assert now == held, f"{name}: more {now - held}, less {held - now}"
    for name, then in before.memory.items():
        for kind, kilobytes in then.items():
            grown = after.memory[name][kind] - kilobytes
            assert grown <= MEMORY_MAX_KB, f"{name}: {kind} grew by {grown} KiB, from {kilobytes}"
    expected = plain(steps)
    said = {rank: (folder / f"digest-{rank}").read_text().split()[0] for rank in range(WORKERS)}
    assert said == dict.fromkeys(range(WORKERS), expected)


@pytest.mark.timeout(120)
def test_after_a_dozen_kills_nothing_has_piled_up(tmp_path, seed):
    before, after, steps = hundred_kills(tmp_path, random.Random(seed), kills=12, early=4)
    check(tmp_path, before, after, steps)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_after_a_hundred_kills_nothing_has_piled_up(tmp_path, seed):
    before, after, steps = hundred_kills(tmp_path, random.Random(seed))
    check(tmp_path, before, after, steps)
