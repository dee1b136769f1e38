"""What must stand still is compared cheaply, and nothing that ever counted as a change is overlooked for that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relume.errors import StepError
from relume.train.protect import Protected
from relume.train.stilllife import PULSE_BYTES, StillLife
from relume.train.variables import Vars


class Counter:
    """An object of the user's own, whose state dict is made anew each time."""

    def __init__(self):
        self.state = {"value": 1000.0, "nested": {"list": [1, 2.5, None]}, "array": np.float64(0.5)}
        self.asked = 0

    def state_dict(self):
        self.asked += 1
        return {**self.state, "fresh": float(str(self.state["value"])), "tensor": torch.zeros(2)}

    def load_state_dict(self, state):
        raise NotImplementedError


class World:
    def __init__(self, order=("best", "more", "rate")):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 200_000, bias=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.counter = Counter()
        values = {"best": 0.5, "more": [1, {"a": torch.ones(2)}], "rate": float("nan")}
        self.vars = Vars()
        for name in order:
            setattr(self.vars, name, values[name])
        protected = Protected()
        objects = {"model": self.model, "optimizer": self.optimizer}
        protected.add({**objects, "scheduler": self.scheduler, "counter": self.counter})
        self.life = StillLife(protected, self.vars, [*self.model.named_parameters()])

    @property
    def group(self):
        return self.optimizer.param_groups[0]


def settings(**changed):
    return lambda world: world.group.update(changed)


def variables(**changed):
    return lambda world: vars(world.vars).update(changed)


CHANGES = {
    "rate": (
        settings(lr=0.05),
        "optimizer 'optimizer', group 0, lr changed inside the inner loop of step 7: 0.1 to 0.05.",
    ),
    "a pair": (settings(betas=(0.9, 0.99)), "group 0, betas changed"),
    "a flag": (settings(amsgrad=0), "amsgrad changed inside the inner loop of step 7: False to 0."),
    "a sign": (settings(weight_decay=-0.0), "weight_decay changed inside the inner loop of step 7: 0.01 to -0.0."),
    "a new setting": (settings(mine=1), "group 0, mine changed inside the inner loop of step 7: None to 1."),
    "a lost setting": (
        lambda world: world.group.pop("eps"),
        "eps changed inside the inner loop of step 7: 1e-08 to None",
    ),
    "a rate that is a tensor": (settings(lr=torch.tensor(0.1)), "group 0, lr changed"),
    "the scheduler": (lambda world: vars(world.scheduler).update(last_epoch=5), "last_epoch of 'scheduler' changed"),
    "its list": (lambda world: world.scheduler.base_lrs.append(1.0), "base_lrs of 'scheduler' changed"),
    "within": (lambda world: world.counter.state["nested"]["list"].__setitem__(1, 2), "nested of 'counter' changed"),
    "made anew": (lambda world: world.counter.state.update(value=1001.0), "value of 'counter' changed"),
    "a number's kind": (lambda world: world.counter.state.update(value=1000), "value of 'counter' changed"),
    "a scalar": (lambda world: world.counter.state.update(array=np.float64(0.25)), "array of 'counter' changed"),
    "a variable": (variables(best=0.25), r"run\.vars\.best changed inside the inner loop of step 7: 0.5 to 0.25\."),
    "a new variable": (
        variables(other="x"),
        r"run\.vars\.other changed inside the inner loop of step 7: None to 'x'\.",
    ),
    "a variable's tensor": (lambda world: world.vars.more[1]["a"].add_(1), r"run\.vars\.more changed"),
    "a variable's text": (
        variables(rate="nan"),
        r"run\.vars\.rate changed inside the inner loop of step 7: nan to 'nan'",
    ),
    "weights": (lambda world: nn.init.zeros_(world.model[0].bias), r"parameter 0\.bias was changed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_moves_is_named(name):
    change, message = CHANGES[name]
    world = World()
    world.life.begin()
    world.life.check(7)
    change(world)
    with pytest.raises(StepError, match=message) as caught:
        world.life.check(7)
    assert "below the loop" in str(caught.value)
    world.life.begin()
    world.life.check(8)


def test_a_negative_zero_is_no_zero_and_true_is_not_one():
    world = World()
    for before, after in ((0.0, -0.0), (1, True), (1, 1.0), ((1,), (1.0,)), ([0.0], [-0.0])):
        world.group["mine"] = before
        world.life.begin()
        world.group["mine"] = after
        with pytest.raises(StepError, match="mine changed"):
            world.life.check(7)


def test_what_is_made_anew_and_equal_has_not_moved():
    world = World()
    world.group["rate"] = float("nan")
    world.group["many"] = 10**30
    world.life.begin()
    world.group["rate"] = float("nan")
    world.group["many"] = int("1" + 30 * "0")
    world.group["params"] = [*world.group["params"]]
    world.group["betas"] = (*world.group["betas"],)
    world.vars.more = [1, {"a": torch.ones(2)}]
    world.life.check(7)


def test_pulses_are_equal_on_all_workers_whatever_only_a_process_knows():
    one, other = World(), World(order=("rate", "best", "more"))
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.copy_(parameter.clone())
        other.vars.more[1]["a"].copy_(torch.ones(2))
    for step in range(40):
        one.life.begin()
        other.life.pulse(step)
        assert one.life.pulse(step) == other.life.pulse(step)
        for world in (one, other):
            world.optimizer.step()
            world.scheduler.step()


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in {"weights", "a variable's tensor"}])
def test_values_that_differ_make_another_pulse_at_once(name):
    world = World()
    world.life.begin()
    before = world.life.pulse(0)
    CHANGES[name][0](world)
    without_begin = world.life.pulse(0)
    assert without_begin.values != before.values
    world.life.begin()
    assert world.life.pulse(0) == without_begin


def test_a_wrong_weight_is_found_after_one_round_of_all_parts():
    one, other = World(), World()
    wide = one.model[1].weight
    with torch.no_grad():
        other.model[1].weight[-1, -1] += 1
    parts = -(-wide.numel() * 4 // PULSE_BYTES)
    steps = range(len([*one.model.parameters()]) * parts)
    found = [step for step in steps if one.life.pulse(step) != other.life.pulse(step)]
    assert len(found) == 1


def test_a_step_begins_with_one_look():
    world = World()
    world.life.begin()
    world.life.pulse(0)
    assert world.counter.asked == 1
    world.life.pulse(0)
    assert world.counter.asked == 2
