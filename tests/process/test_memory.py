"""What a run holds in memory: DESIGN.md's formula, and nothing beyond it.

results kept + two slots per worker (more where many shards are to be summed: at most 2 log2 S), each of one gradient;
two states for the mirror; and in every worker what a plain loop of the same model has. PSS, since RSS would count the
arena once per worker. All workers stand still while it is read: each waits for a pipe to be opened.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
import torch

import relume
from relume.arena import usage
from relume.arena.layout import KEPT_BEYOND, PAGE, RESULTS, ControlLayout, round_up
from relume.arena.usage import CONTROL, DATA, MIRROR, SHARED
from relume.wire.events import ArenaReserved
from tests import exact, processes
from tests.agents import Agent, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's books are Linux's")

SIDE = 1448
LAYERS = 4
GRADIENT = round_up(LAYERS * SIDE * SIDE * 4, PAGE)
STATE = 2 * LAYERS * SIDE * SIDE * 4
"""Parameters and momentum."""
MIB = 2**20
NOTE = 2 * PAGE
"""Generous: a shard's note is a little over one page."""
SMALL = 2 * MIB
"""Relume's own objects: 0.2 MiB here."""

ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
"""A tensor that is freed goes back to the system at once, so that what is there is what is needed."""

MODEL = """\
import json, os, sys
import torch
import relume
from relume.arena.usage import OWN, usage

SIDE, LAYERS = {side}, {layers}

def own():
    return usage()[OWN].rss

def build():
    model = torch.nn.Sequential(*[torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)])
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

"""

PLAIN = """
run = relume.init(seed=0)  # the same numerics; it goes no further
start = own()
model, optimizer = build()
rows = torch.ones(16, SIDE)
for step in range(3):
    optimizer.zero_grad()
    for shard in range(4):
        model(rows[shard : shard + 1]).square().mean().backward()
    update = own() - start
    optimizer.step()
print(json.dumps([update, own() - start]))
"""

FLEET = """
steps, shards = int(sys.argv[1]), int(sys.argv[2])
run = relume.init(seed=0)
start = own()
model, optimizer = build()
run.protect(model=model, optimizer=optimizer)
data = relume.Shards(torch.ones(16, SIDE), global_batch_size=shards, shards=shards)
for step in run.steps(data, total=steps):
    for rows in step:
        model(rows).square().mean().backward()
        inside = own() - start
    update = own() - start
    optimizer.step()
    if step.number == steps - 1:
        with open(f"ready-{{run.rank}}.part", "w") as file:
            json.dump([os.getpid(), inside, update, own() - start], file)
        os.rename(f"ready-{{run.rank}}.part", f"ready-{{run.rank}}")
        open(f"go-{{run.rank}}").close()
"""


def written(text, folder):
    path = folder / "train.py"
    path.write_text((MODEL + text).format(side=SIDE, layers=LAYERS))
    return path


@dataclass
class Seen:
    """What was there while all workers stood still. `told`: by each worker of itself."""

    workers: dict[str, usage.Memory]
    others: dict[str, usage.Memory]  # the agent's and its helpers'
    allocated: dict[str, int]
    told: list[list[int]]


@contextlib.contextmanager
def standing_still(folder, workers, output):
    """Wait until every worker stands before its pipe; let all go on at the end."""
    told = []
    for rank in range(workers):
        until((folder / f"ready-{rank}").exists, 100, output)
        told.append(json.loads((folder / f"ready-{rank}").read_text()))
    try:
        yield told
    finally:
        for rank in range(workers):
            (folder / f"go-{rank}").open("w").close()


def descendants(pid):
    table = processes.table()
    found, new = set(), {pid}
    while new:
        found |= new
        new = {process.pid for process in table.values() if process.parent in new} - found
    return found - {pid}


def look(folder, workers, *, steps, shards, every):
    """Run a fleet by the command line and return what is there in its last step."""
    for rank in range(workers):
        os.mkfifo(folder / f"go-{rank}")
    script = written(FLEET, folder)
    command = [sys.executable, "-m", "relume", "run", "--workers", str(workers), "--mirror-every", str(every)]
    with (folder / "output").open("wb") as output:
        agent = subprocess.Popen(
            [*command, "--run-dir", folder / "run", script, str(steps), str(shards)],
            stdout=output,
            stderr=output,
            env=ENVIRONMENT,
            cwd=folder,
        )
    try:
        with standing_still(folder, workers, (folder / "output").read_text) as told:
            pids = [each[0] for each in told]
            others = {agent.pid, *descendants(agent.pid)} - set(pids)
            seen = Seen(usage.total(pids), usage.total(others), usage.allocated(agent.pid), told)
        assert agent.wait(60) == 0, (folder / "output").read_text()
    finally:
        agent.kill()
        agent.wait()
    return seen


def reserved(folder):
    lines = map(json.loads, (folder / "run" / "events.jsonl").read_text().splitlines())
    (size,) = [line["event"]["bytes"] for line in lines if line["event"]["kind"] == ArenaReserved.__struct_config__.tag]
    return size


def check_data(data, *, results, slots, shards):
    """The arena's data part is so many gradients, and notes and buffers beside each result."""
    gradients = (results + slots) * GRADIENT
    assert gradients - 4 * PAGE * (results + slots) <= data <= gradients + results * (PAGE + shards * NOTE), (
        f"{data / GRADIENT:.3f} gradients, and not {results} results and {slots} slots"
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a plain loop has of its own beyond its imports: in the update, with every `.grad` there, and after it."""
    script = written(PLAIN, tmp_path_factory.mktemp("plain"))
    done = subprocess.run([sys.executable, script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("workers", "every"), [(2, 2), (4, 0)])
def test_a_fleet_holds_what_the_formula_says_and_its_workers_what_a_plain_loop_does(tmp_path, plain, workers, every):
    plain_update, plain_after = plain
    shards = 2 * workers
    seen = look(tmp_path, workers, steps=8, shards=shards, every=every)
    results = every + KEPT_BEYOND if every else RESULTS
    check_data(seen.workers[DATA].pss, results=results, slots=2 * workers, shards=shards)
    check_data(seen.allocated[DATA], results=results, slots=2 * workers, shards=shards)
    assert seen.allocated[DATA] == reserved(tmp_path)
    mirrored = 2 * STATE if every else 0
    for mirror in (seen.workers[MIRROR].pss, seen.allocated[MIRROR]):
        assert mirrored <= mirror <= mirrored + (64 << 10), "two states, apart from the results"
    assert seen.workers[CONTROL].pss < MIB
    assert seen.others[DATA].pss == seen.others[MIRROR].pss == 0, "the agent and its helpers map neither"
    for _, inside, update, after in seen.told:
        assert update <= plain_update + SMALL, "beyond the model's own: its .grads, as in a plain loop"
        assert after <= plain_after + SMALL
        assert inside <= plain_update + SMALL, "a leaf is in its slot, and nowhere else"


def body(folder, *, steps, shards):
    """Return the same script as a function, for forks of this process, which are there at once."""

    def train(rank):
        run = relume.init(seed=0)
        model = torch.nn.Linear(SIDE, SIDE * LAYERS, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.protect(model=model, optimizer=optimizer)
        data = relume.Shards(torch.ones(shards, SIDE), global_batch_size=shards, shards=shards)
        for step in run.steps(data, total=steps):
            for rows in step:
                model(rows).square().mean().backward()
            optimizer.step()
            if step.number == steps - 1:
                (folder / f"part-{rank}").write_text(json.dumps(os.getpid()))
                (folder / f"part-{rank}").rename(folder / f"ready-{rank}")
                (folder / f"go-{rank}").open().close()

    return train


def test_a_worker_with_many_shards_takes_slots_as_it_needs_them_and_no_more(tmp_path):
    workers, shards = 2, 16
    for rank in range(workers):
        os.mkfifo(tmp_path / f"go-{rank}")
    with Agent(body(tmp_path, steps=3, shards=shards), tmp_path, workers=workers, mirror_every=0) as agent:
        with standing_still(tmp_path, workers, agent.output) as pids:
            found, held = usage.total(pids), usage.allocated(pids[0])
        assert agent.join() == 0, agent.output()
    each = int(math.log2(shards // workers)) + 1  # the counter's digits, and one for the leaf that is coming
    assert 2 < each <= 2 * math.log2(shards)
    check_data(found[DATA].pss, results=RESULTS, slots=each * workers, shards=shards)
    check_data(held[DATA], results=RESULTS, slots=each * workers, shards=shards)


def test_a_run_of_one_takes_memory_for_what_it_uses_and_not_for_its_address_space(tmp_path):
    os.mkfifo(tmp_path / "go-0")

    def alone(path):
        pid = os.getpid()
        script = body(tmp_path, steps=3, shards=2)

        def peek():
            with standing_still(tmp_path, 1, str):
                torch.save(usage.usage(pid)[SHARED].pss, path)

        thread = threading.Thread(target=peek)
        thread.start()
        script(0)
        thread.join()

    found = exact.in_child(alone) - ControlLayout(1).size
    check_data(found, results=RESULTS, slots=2, shards=2)
