"""`relume scale` on a live run: two workers become four, then one, and the weights are those of one worker alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import torch

import relume
from relume.wire.events import ViewInstalled
from tests.fleet import run_fleet
from tests.process.test_status_demo import relume_command

STEPS_MAX = 100_000


def train(stop: Path, into: Path, total: int = STEPS_MAX):
    """Take small steps until somebody has left `stop`, which every worker learns in the same step."""
    run = relume.init(seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    run.protect(model=model, optimizer=optimizer)
    data = relume.Shards(torch.utils.data.TensorDataset(torch.rand(8, 4)), global_batch_size=8, shards=4)
    for step in run.steps(data, total=total):
        for (batch,) in step:
            model(batch).square().sum().backward()
            step.log(stop=float(stop.exists()))
        optimizer.step()
        if step.mean("stop"):
            break
    if run.is_main:
        torch.save({"steps": step.number + 1, **model.state_dict()}, into)


def test_a_live_run_is_scaled_up_and_down_to_the_same_bits(tmp_path):
    stop, never, scaled, alone = (tmp_path / name for name in ("stop", "never", "scaled.pt", "alone.pt"))
    told, askers = [], []

    def scale(folder):
        """Ask as people do, from beside the agent's loop; each time a person would have seen what came of it."""
        try:
            questions = [("scale", workers, "--wait") for workers in (4, 1, 5)] + [("status",)]
            told.extend(relume_command(*words, folder, "--json", cwd=tmp_path, check=False) for words in questions)
        finally:
            stop.touch()

    def on_event(event):
        if isinstance(event, ViewInstalled) and not askers:
            (folder,) = tmp_path.glob("run-*[0-9a-f]")
            askers.append(threading.Thread(target=scale, args=(folder,), daemon=True))
            askers[0].start()

    torch.set_num_threads(1)  # as in a worker: this process is forked
    result = run_fleet(
        lambda rank: train(stop, scaled), workers=2, tmp_path=tmp_path, watcher=on_event, seats=4, mirror_every=4
    )
    askers[0].join(timeout=60)
    assert result.exit_code == 0, result.output
    up, down, beyond, status = [json.loads(done.stdout) for done in told]
    assert [done.returncode for done in told] == [0, 0, 2, 0]
    assert (up["before"], up["workers"], up["members"]) == (2, 4, [0, 1, 2, 3])
    assert (down["before"], down["workers"], down["members"]) == (4, 1, [0])
    assert "--max-workers 5" in beyond["refused"]
    assert status["target"] == 1
    assert {level["rank"] for level in status["levels"]} == {2, 3}
    assert [(line["before"], line["workers"]) for line in status["scaled"]] == [(2, 4), (4, 1)]
    assert status["view"]["members"] == [0]
    assert not status["incidents"]

    ended = torch.load(scaled)
    assert run_fleet(lambda rank: train(never, alone, ended["steps"]), workers=1, tmp_path=tmp_path).exit_code == 0
    for name, value in torch.load(alone).items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(ended[name])), name
