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


def slow_train(change, steps):
    run = relume.init(seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.protect(model=model, optimizer=optimizer)
    data = relume.Shards([torch.randn(4) for _ in range(20)], global_batch_size=10, shards=5)
    for step in run.steps(data, total=steps):
        for batch in step:
            model(batch).square().mean().backward()
        change(run, optimizer, step)


def lower_on_main(run, optimizer, step):
    optimizer.step()
    if step.number == 2 and run.is_main:
        optimizer.param_groups[0]["lr"] = 0.01


def step_on_main(run, optimizer, step):
    if run.is_main:
        optimizer.step()


def spoil_the_last(run, optimizer, step):
    optimizer.step()
    if step.number == 2 and run.is_main:
        optimizer.state_dict()["state"][0]["momentum_buffer"].add_(1.0)


DRIFTS = {
    "learning rate": (lower_on_main, 400, "a learning rate, scheduler, scaler or run.vars differs"),
    "parameters": (step_on_main, 400, "differs between workers"),
    "the very end": (spoil_the_last, 3, "after the last step, state differs between workers (1, 2 | 0)"),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_replicas_that_drift_apart_end_the_run_and_are_never_called_completed(name, tmp_path):
    change, steps, reason = DRIFTS[name]
    result = run_fleet(lambda rank: slow_train(change, steps), workers=3, tmp_path=tmp_path)
    assert (result.outcome, result.exit_code) == ("diverged", 4), result.output
    assert reason in result.reason
    assert "if run.is_main" in result.reason
