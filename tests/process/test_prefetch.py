"""While a step is computed, loader processes load what comes next, and after a death what the dead one leaves.

Each loading of a shard leaves a mark that says which process did it: a training process has its worker's pid.
"""

from __future__ import annotations

import os

import torch

import relume
from relume.wire.events import WorkerLevel, WorkerLost, WorkerStarted
from tests.agents import until
from tests.fleet import run_fleet

torch.set_num_threads(1)  # a process that forks workers must have no pool of threads

TOTAL = 8
SHARDS = 6


def nothing(rank, step):
    pass


def script(folder, total=TOTAL, before=nothing, inside=nothing):
    """Return the body of a worker that marks which shard is loaded by whom."""

    def source(step, shard):
        (folder / f"loaded-{step}-{shard}-{os.getpid()}-{os.getppid()}").touch()
        return torch.ones(2, 4) * (step + shard)

    def body(rank):
        run = relume.init(seed=3)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.protect(model=model, optimizer=optimizer)
        data = relume.Shards(source, shards=SHARDS, num_workers=2, prefetch_factor=2)
        for step in run.steps(data, total=total):
            before(rank, step)
            for x in step:
                inside(rank, step)
                model(x).square().mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), folder / f"{rank}.pt")

    return body


def loads(folder):
    """Return who has loaded each shard: (pid, parent), by (step, shard)."""
    found = {}
    for path in folder.glob("loaded-*"):
        step, shard, pid, parent = map(int, path.name.split("-")[1:])
        found.setdefault((step, shard), set()).add((pid, parent))
    return found


def workers(result):
    return {(event.rank, event.life): event.pid for event in result.seen if isinstance(event, WorkerStarted)}


def ours(by):
    return os.getpid() in {parent for _, parent in by}


def test_what_a_dead_worker_leaves_is_loaded_by_all_loader_processes_while_the_heirs_forward_goes_on(tmp_path):
    """The heir asks for nothing: it is in the middle of its own shard when the view comes. Nothing lost is sealed."""

    def inside(rank, step):
        if (rank, step.number) == (0, 3):
            until(lambda: {(3, 3), (3, 4), (3, 5)} <= {key for key, by in loads(tmp_path).items() if ours(by)})

    trap = {"rank": 1, "step": 3, "phase": "load"}
    result = run_fleet(script(tmp_path, inside=inside), workers=2, tmp_path=tmp_path, traps=[trap])
    assert result.exit_code == 0, result.output
    (lost,) = [event for event in result.seen if isinstance(event, WorkerLost)]
    heir = workers(result)[0, 0]
    assert lost.moved == {3: 0, 4: 0, 5: 0}
    by = [pid for shard in lost.moved for pid, parent in loads(tmp_path)[3, shard] if heir in {pid, parent}]
    assert len(by) == 3, "once each"
    assert heir not in by
    assert len(set(by)) == 2


def test_who_comes_back_has_its_first_shards_loaded_before_it_asks_for_any(tmp_path):
    """It replays, and is told in which step it will be live."""
    level = tmp_path / "level"

    def before(rank, step):
        if rank == 0 and step.number == 5:
            until(level.exists)
        if rank == 1 and step.number > 3 and not step.replay and not (tmp_path / "first").exists():
            until(lambda: sum(key[0] == step.number and ours(by) for key, by in loads(tmp_path).items()) == 3)
            (tmp_path / "first").write_text(str(step.number))

    def watch(event):
        if isinstance(event, WorkerLevel):
            level.touch()

    result = run_fleet(
        script(tmp_path, total=12, before=before),
        workers=2,
        tmp_path=tmp_path,
        traps=[{"rank": 1, "step": 3, "phase": "forward", "life": 0}],
        watcher=watch,
        max_restarts=1,
        mirror_every=2,
        seats=4,
    )
    assert result.exit_code == 0, result.output
    assert int((tmp_path / "first").read_text()) > 5
    assert workers(result)[1, 1]
