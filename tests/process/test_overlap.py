"""Summing while backward goes on changes no bit: in any scenario with one backward per shard, whoever dies when.

Gradients here are small, so blocks are made small too, and every parameter is caught on its own: then there is much
that is whole before the leaf is.
"""

from __future__ import annotations

import random
import time

import pytest
import torch

import relume
from relume.arena import layout
from relume.reduce import layout as gradient_layout
from tests import exact
from tests.fleet import run_fleet
from tests.process.test_exactness import kill, run_and_check
from tests.scenarios_exact import ALL, BY_NAME, CLASSES, FEATURES, simple, with_adamw

SEVERAL = {
    "micro-batches",
    "routed-micro-batches",
    "checkpointing-reentrant",  # a backward within the backward, for each of its parts
    "weighted-in-parts",
    "two-losses-and-a-penalty",
    "special-values-in-micro-batches",
}
SINGLE = [scenario for scenario in ALL if scenario.name not in SEVERAL]
PHASES = ("forward", "backward", "publish", "early", "sum", "take", "update")


class Slow(torch.autograd.Function):
    """Backward takes its time here."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.03)
        return gradient


class Deep(torch.nn.Module):
    """Its last layers, which are most of it, have their gradients long before the first one has."""

    def __init__(self):
        super().__init__()
        self.first, self.wide = torch.nn.Linear(FEATURES, 16), torch.nn.Linear(16, 64)
        self.last = torch.nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.wide(Slow.apply(torch.tanh(self.first(x))))))


SLOW = simple("slow-backward", with_adamw(Deep))


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setitem(BY_NAME, SLOW.name, SLOW)
    return SLOW


@pytest.fixture(autouse=True)
def blocks_as_small_as_may_be(monkeypatch):
    monkeypatch.setattr(exact, "SINGLE_BACKWARD", True)
    monkeypatch.setattr(layout, "BLOCK_BYTES_MIN", layout.ALIGNMENT)
    monkeypatch.setattr(gradient_layout, "SMALL_BYTES", 0)


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("scenario", SINGLE, ids=lambda scenario: scenario.name)
def test_a_fleet_with_one_backward_per_shard_is_exact(scenario, overlap, monkeypatch, tmp_path):
    monkeypatch.setenv("RELUME_OVERLAP", overlap)
    run_and_check(scenario, tmp_path, workers=3)


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_each_phase_changes_nothing(phase, slow, monkeypatch, tmp_path):
    """Each in another step, and deeper in it: `early` is while a block is summed and others are in backward."""
    monkeypatch.setenv("RELUME_OVERLAP", "on")
    kills = [kill(rank, 1 + 2 * rank, phase, nth=rank) for rank in range(2)]
    assert run_and_check(slow, tmp_path, workers=3, kills=kills, shards=6) == {0, 1}


def test_without_the_thread_who_has_no_more_shards_sums_what_is_whole(slow, monkeypatch, tmp_path):
    monkeypatch.setenv("RELUME_OVERLAP", "off")
    assert run_and_check(slow, tmp_path, workers=3, kills=[kill(1, 2, "sum")], shards=4) == {1}


@pytest.mark.parametrize("number", range(20))
def test_no_schedule_of_kills_changes_a_bit(number, seed, monkeypatch, tmp_path):
    chance = random.Random(seed)
    monkeypatch.setenv("RELUME_OVERLAP", chance.choice(("on", "on", "off")))
    scenario = chance.choice(SINGLE)
    workers = chance.randint(2, 4)
    doomed = chance.sample(range(workers), chance.randint(1, workers - 1))
    steps = [chance.randrange(scenario.steps) for _ in doomed]
    kills = [
        kill(rank, step, chance.choice((*PHASES, "view")), chance.randrange(4))
        for rank, step in zip(doomed, steps, strict=True)
    ]
    run_and_check(scenario, tmp_path, workers=workers, kills=kills, shards=chance.choice((None, None, 6, 13)))


def told(body, tmp_path):
    """What the workers of a fleet are told that all run `body`."""
    result = run_fleet(lambda rank: body(), workers=2, tmp_path=tmp_path)
    assert result.exit_code != 0
    return result.output


def training(inside):
    def body():
        run = relume.init(seed=0)
        model = torch.nn.Linear(64, 64)
        run.protect(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        data = relume.Shards(list(torch.randn(8, 64)), global_batch_size=4, shards=2, seed=0)
        for step in run.steps(data, total=2, single_backward=True):
            for batch in step:
                inside(step, model, batch)

    return body


def test_a_second_backward_is_an_error(tmp_path):
    def inside(step, model, batch):
        model(batch).sum().backward()
        model(batch).mean().backward()

    assert "a shard had a second backward, though run.steps(..., single_backward=True)" in told(
        training(inside), tmp_path
    )


def test_a_second_weighted_backward_is_an_error(tmp_path):
    def inside(step, model, batch):
        step.backward(model(batch).sum(), weight=1.0)
        step.backward(model(batch).mean(), weight=2.0)

    assert "a shard had a second backward" in told(training(inside), tmp_path)


def test_skipping_a_shard_after_its_backward_is_an_error(tmp_path):
    def inside(step, model, batch):
        model(batch).sum().backward()
        step.skip()

    assert "step.skip() was called after backward for shard" in told(training(inside), tmp_path)


def test_a_gradient_of_the_scripts_own_is_an_error(tmp_path):
    def inside(step, model, batch):
        model(batch).sum().backward()
        model.bias.grad = torch.ones(64)

    assert "the script set .grad of model.bias itself inside the inner loop" in told(training(inside), tmp_path)
