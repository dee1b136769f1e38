"""The inner loop's body runs only on workers with shards, so what it changes would leave replicas that differ."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import relume
from tests.fleet import run_fleet


def train(inside, outside=lambda objects: None):
    run = relume.init(seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    run.protect(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    run.vars.seen = 0
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "run": run}
    data = relume.Shards([torch.randn(4) for _ in range(20)], global_batch_size=10, shards=5)
    for step in run.steps(data, total=4):
        top = torch.rand(1)
        for batch in step:
            (model(batch) * top).square().mean().backward()
            inside(objects)
        optimizer.step()
        outside(objects)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def shrink(objects):
    with torch.no_grad():
        objects["model"].weight.mul_(0.9)


def count(objects):
    objects["run"].vars.seen += 1


CHANGES = {
    "scheduler": (lambda objects: objects["scheduler"].step(), "optimizer 'optimizer', group 0, lr|of 'scheduler'"),
    "weights": (shrink, "parameter model.weight was changed"),
    "variables": (count, r"run\.vars\.seen changed"),
    "learning rate": (lambda objects: objects["optimizer"].param_groups[0].update(lr=0.5), "group 0, lr changed"),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_state_in_the_inner_loop_is_refused_by_name(name):
    inside, message = CHANGES[name]
    with pytest.raises(RuntimeError, match=message) as caught:
        train(inside)
    assert "below the loop" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_the_same_below_the_inner_loop_is_fine_and_alike_plain_and_in_a_fleet(tmp_path):
    def outside(objects):
        objects["scheduler"].step()
        shrink(objects)
        count(objects)

    plain = train(lambda objects: None, outside)

    def body(rank):
        torch.save(train(lambda objects: None, outside), tmp_path / f"{rank}.pt")

    result = run_fleet(body, workers=3, tmp_path=tmp_path, traps=[{"rank": 1, "step": 1, "phase": "backward"}])
    assert result.exit_code == 0, result.output
    for rank in (0, 2):
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), plain)
