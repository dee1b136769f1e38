"""A script that keeps state outside `run.protect` is told so, once, where a worker may come back to miss it."""

from __future__ import annotations

import pytest
import torch

import relume
from relume.train.unprotected import HEAD
from tests.fleet import run_fleet


def train(rank):
    run = relume.init(seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    run.protect(model=model, optimizer=optimizer)
    data = relume.Shards(torch.utils.data.TensorDataset(torch.rand(8, 4)), global_batch_size=8, shards=4)
    best = 9.0
    for step in run.steps(data, total=3):
        for (batch,) in step:
            loss = model(batch).square().sum()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        scheduler.step()
        best = min(best, step.mean("loss"))


@pytest.mark.parametrize("every", [0, 2])
def test_state_outside_protect_is_told_once_if_anybody_may_come_back(tmp_path, every):
    torch.set_num_threads(1)
    result = run_fleet(train, workers=2, tmp_path=tmp_path, mirror_every=every, seats=3, spares=1 if every else 0)
    assert result.exit_code == 0, result.output
    remarks = [line["event"] for line in result.events if line["event"].get("topic") == "unprotected"]
    told = [line for line in result.output.splitlines() if line.startswith("[")]
    if not every:
        assert not remarks
        assert not told
        return
    (remark,) = remarks
    assert remark["rank"] == 0
    assert "scheduler (StepLR): give it to run.protect(scheduler=...)" in remark["text"]
    assert "best is carried from step to step: make it run.vars.best" in remark["text"]
    head, *lines = told
    assert head == f"[0] relume: {HEAD}"
    assert [line.split(": ", 1)[1].split(" ")[0] for line in lines] == ["scheduler", "best"]
