"""A script with all that decides a step, and what it comes to: for tests of workers that come back."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import relume
from relume.verify.digests import digest
from tests import exact
from tests.training import nothing

TOTAL = 12


class Net(torch.nn.Module):
    """A bit of everything that has state beside its parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(4, 12), torch.nn.BatchNorm1d(12)
        self.second = torch.nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64), persistent=False)

    def forward(self, x):
        hidden = F.dropout(torch.relu(self.norm(self.first(x))), 0.2, training=self.training)
        return self.second(hidden)


def everything(  # noqa: PLR0915 - a script is as long as it is
    folder: Path, total: int = TOTAL, patience: int = 100, every_step: Callable[[int, relume.Step], Any] = nothing
) -> Callable[[int], None]:
    """A script with all that decides a step: schedulers, scalers, averages, noise in the update, own values."""

    def body(rank: int) -> None:
        run = relume.init(seed=7)
        model = Net()
        head = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
        adam = torch.optim.AdamW(model.parameters(), lr=0.02, amsgrad=True)
        sgd = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        warm = torch.optim.lr_scheduler.LinearLR(adam, 0.2, total_iters=3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 20)
        scheduler = torch.optim.lr_scheduler.SequentialLR(adam, [warm, cosine], milestones=[3])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        run.protect(model=model, head=head, adam=adam, sgd=sgd, scheduler=scheduler, plateau=plateau)
        run.protect(scaler=scaler, ema=ema)
        run.vars.best, run.vars.since, run.vars.history = float("inf"), 0, []
        x = torch.linspace(-2, 2, 120).view(30, 4)
        data = relume.Shards(x, global_batch_size=10, shards=5)
        trace: dict[str, Any] = {"steps": {}, "replayed": []}
        for step in run.steps(data, total=total):
            noise = torch.rand(()).item()  # drawn before the batches: from where the update before left the generator
            for batch in step:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(batch).square().mean() + head(model(batch).to(torch.bfloat16)).float().abs().mean()
                scaler.scale(loss).backward()
                model.seen += batch.sum()
                step.log(loss=loss, noise=noise)
            for optimizer in (adam, sgd):
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(adam)
            scaler.step(sgd)
            scaler.update()
            with torch.no_grad():
                model.second.bias.add_(torch.randn(3), alpha=1e-3)  # Langevin: the update draws too
            scheduler.step()
            mean = step.mean("loss")
            plateau.step(mean)
            ema.update_parameters(model)
            better = mean < run.vars.best
            run.vars.best, run.vars.since = (mean, 0) if better else (run.vars.best, run.vars.since + 1)
            run.vars.history = [*run.vars.history[-3:], torch.tensor(mean + torch.rand(()).item())]
            if step.number == 5:
                model.first.bias.requires_grad_(False)
            trace["steps"][step.number] = [noise.hex(), mean.hex(), digest(run.state())]
            if step.replay:
                trace["replayed"].append(step.number)
                assert not step.is_main
                assert not run.is_main
            if run.vars.since > patience:
                break
            every_step(rank, step)
        trace["state"] = digest(run.state())
        trace["main"] = run.is_main
        (folder / f"trace-{rank}.{run.seat.life}.json").write_text(json.dumps(trace))

    return body


@functools.cache
def undisturbed(total: int = TOTAL, patience: int = 100) -> dict[str, Any]:
    """What the script comes to if nothing happens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exact.in_child(lambda path: (everything(folder, total, patience)(0), torch.save({}, path)))
        return trace_of(folder, 0, 0)


def trace_of(folder: Path, rank: int, life: int) -> dict[str, Any]:
    return json.loads((folder / f"trace-{rank}.{life}.json").read_text())


def kill(step: int, phase: str, *, rank: int = 0, life: int = 0, nth: int = 0) -> dict[str, Any]:
    return {"rank": rank, "step": step, "phase": phase, "life": life, "nth": nth}
