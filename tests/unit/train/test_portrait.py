"""What is remembered from mirror to mirror never shows: the bytes are those of a capture that remembers nothing.

The oracle is `capture`, walked anew. One worker's memory goes through everything that may change between two mirrors,
in every order that the seed makes.
"""

from __future__ import annotations

import random
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from relume.errors import StateError
from relume.state.facts import stored
from relume.state.mirror import digest_of
from relume.state.tree import Familiar, Part, dissect, flatten
from relume.train.capture import capture
from relume.train.portrait import Portrait
from relume.train.protect import Protected
from relume.train.variables import Vars
from tests.unit.state.hosts import at_once, everything, host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("mask", torch.ones(6), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("wave", torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Net(nn.Module):
    """Small tensors, one large one between them, a shared module, and a buffer that stands in itself twice."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.wide = nn.Linear(6, 3000)
        self.again = self.blocks[1]
        self.few = nn.ParameterList([nn.Parameter(torch.randn(2, 3)) for _ in range(9)])
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("wide_mask", torch.ones(6).expand(4, 6))
        self.register_buffer("one", torch.tensor(1.0))

    def forward(self, x):
        return self.wide(self.again(self.blocks(x))).square().mean() + sum(each.sum() for each in self.few)


class World:
    def __init__(self):
        torch.manual_seed(3)
        self.model = Net()
        self.ema = AveragedModel(self.model.wide, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.optimizer = torch.optim.AdamW(
            [{"params": [*self.model.blocks.parameters()], "lr": 0.1}, {"params": [*self.model.wide.parameters()]}]
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.complex = torch.tensor(1.0 + 2.0j).conj()
        self.vars = Vars()
        self.vars.best = 0.5
        self.protected = Protected()
        objects = {"model": self.model, "optimizer": self.optimizer, "ema": self.ema, "scheduler": self.scheduler}
        self.protected.add(objects)
        self.portrait = Portrait(self.protected, self.vars)

    def train(self):
        self.optimizer.zero_grad()  # a parameter may have other strides by now
        self.model(torch.randn(4, 6)).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update_parameters(self.model.wide)

    def block(self):
        return self.model.blocks[2]

    def moments(self):
        return self.optimizer.state[self.model.wide.weight]


def imaginary(world):
    """Take the same memory, of the same shape and strides, for the opposite number."""
    world.complex = world.complex.conj()
    world.model.one = world.complex.imag


def move(world):
    """Add to the end of one state; the next time, move that to the front of the next: the keys of all stay in order."""
    one, other, *_ = world.optimizer.state.values()
    extra = one.pop("extra", None)
    if extra is None:
        one["extra"] = torch.randn(2)
    else:
        items = [*other.items()]
        other.clear()
        other.update([("extra", extra), *items])


def transpose(world):
    world.block().linear.weight.data = world.block().linear.weight.data.t()


def freeze(world):
    parameter = world.block().linear.bias
    parameter.requires_grad_(not parameter.requires_grad)


def add_group(world):
    world.optimizer.add_param_group({"params": [world.model.few[len(world.optimizer.param_groups)]]})


def assign(value):
    def change(world):
        world.model.one = value.clone()

    return change


CHANGES = {
    "nothing": lambda world: None,
    "a step": World.train,
    "buffer in place": lambda world: world.block().norm.running_mean.add_(1),
    "buffer replaced": lambda world: setattr(world.block().norm, "running_mean", torch.randn(6)),
    "buffer of another shape": lambda world: setattr(world.block(), "mask", torch.randn(random.randint(1, 9))),
    "buffer gone": lambda world: setattr(world.block(), "mask", None),
    "buffer there": lambda world: setattr(world.block(), "nothing", torch.randn(2)),
    "buffer new": lambda world: world.block().register_buffer(f"new{len(world.block()._buffers)}", torch.randn(3)),
    "buffer of another type": lambda world: setattr(world.block(), "wave", torch.randn(5, dtype=torch.complex64)),
    "buffer to be saved or not": lambda world: world.block().register_buffer(
        "mask", world.block().mask, persistent="mask" in world.block()._non_persistent_buffers_set
    ),
    "conjugate": lambda world: setattr(world.block(), "wave", world.block().wave.conj()),
    "imaginary part": imaginary,
    "a number": assign(torch.tensor(2.0)),
    "another number": assign(torch.tensor(3.0)),
    "expanded": lambda world: setattr(world.model, "wide_mask", torch.randn(6).expand(4, 6)),
    "strides": transpose,
    "frozen": freeze,
    "training": lambda world: world.block().train(not world.block().training),
    "module replaced": lambda world: world.model.blocks.__setitem__(2, Block()),
    "module renamed": lambda world: setattr(world.model, f"m{len(world.model._modules)}", nn.Linear(2, 2)),
    "rate": lambda world: world.optimizer.param_groups[0].update(lr=random.random()),
    "rate is a tensor": lambda world: world.optimizer.param_groups[1].update(lr=torch.tensor(random.random())),
    "a new setting": lambda world: world.optimizer.param_groups[0].update(mine=[1, None, -0.0]),
    "group": add_group,
    "state replaced": lambda world: world.moments().update(exp_avg=torch.randn(3000, 6)),
    "state new": lambda world: world.moments().update({f"more{len(world.moments())}": torch.randn(3)}),
    "state plain": lambda world: world.moments().update(count=random.randint(0, 9)),
    "state none": lambda world: world.moments().update(count=None),
    "state asks for a gradient": lambda world: world.moments().update(count=torch.randn(2, requires_grad=True)),
    "state moved": move,
    "state forgotten": lambda world: world.optimizer.state.pop(world.model.wide.weight, None),
    "state sorted otherwise": lambda world: world.optimizer.state.update(
        [(key, world.optimizer.state.pop(key)) for key in [*world.optimizer.state][:1]]
    ),
    "variables": lambda world: setattr(world.vars, "best", [torch.randn(3), random.random()]),
    "more variables": lambda world: setattr(world.vars, f"v{len(vars(world.vars))}", "text"),
    "randomness": lambda world: torch.rand(random.randint(1, 9)),
    "hook": lambda world: world.block()._register_state_dict_hook(lambda *_: None),
    "instance's own": lambda world: setattr(world.block(), "state_dict", world.block().state_dict),
    "optimizer hook": lambda world: world.optimizer.register_state_dict_post_hook(lambda *_: None),
}
ROUGH = ("hook", "instance's own", "optimizer hook", "module replaced", "group")
"""After these, less can be remembered, or training goes on with less: the long stories come to them late."""


def assert_same_bytes(world, mirror, step):
    mirror.write(step, world.portrait.tree(), everything, at_once)
    tensors, skeleton = flatten(capture(world.protected, world.vars))
    _, found, parts = mirror.parts(step)
    assert found == skeleton
    for part, tensor in zip(parts, tensors, strict=True):
        assert torch.equal(stored(part), stored(tensor))
    assert mirror.digest(step) == digest_of(capture(world.protected, world.vars))


@pytest.fixture
def one():
    with host() as made:
        yield made


@pytest.mark.parametrize(
    ("change", "trained"),
    [(change, trained) for change in CHANGES for trained in (False, True) if trained or not change.startswith("state")],
)
def test_a_mirror_after_any_change_is_the_one_that_remembers_nothing(one, change, trained):
    world, mirror = World(), one.mirror()
    if trained:
        world.train()
    random.seed(5)
    for step in range(10, 60, 10):  # cold, warm, changed, warm, changed again
        if step in {30, 50}:
            CHANGES[change](world)
        assert_same_bytes(world, mirror, step)


def test_changes_one_after_another_in_any_order(one, seed):
    world, mirror, chance = World(), one.mirror(), random.Random(seed)
    world.train()
    random.seed(seed)
    changes = [chance.choice([change for change in CHANGES if change not in ROUGH]) for _ in range(60)] + [*ROUGH]
    for step, change in enumerate(changes, 1):
        if not change.startswith("state") or world.model.wide.weight in world.optimizer.state:
            CHANGES[change](world)
        assert_same_bytes(world, mirror, 10 * step)


def test_what_did_not_change_is_not_walked_again():
    world, familiar = World(), Familiar()
    world.train()
    familiar.dissect(world.portrait.tree())
    world.train()
    tree = world.portrait.tree()

    def walked():
        raise AssertionError

    parts = [tree["model"], tree["ema"], tree["optimizer"]["state"], *tree["relume"]["modules"].values()]
    assert {*map(type, parts)} == {Part}
    for part in parts:
        part.nest = walked
    assert familiar.dissect(tree)[2] == flatten(capture(world.protected, world.vars))[1]


def test_no_replaced_tensor_is_kept_alive(one):
    world, mirror = World(), one.mirror()
    world.train()
    mirror.write(10, world.portrait.tree(), everything, at_once)
    mirror.write(20, world.portrait.tree(), everything, at_once)
    held = weakref.ref(world.moments()["exp_avg"])
    storage = StorageWeakRef(world.moments()["exp_avg"].untyped_storage())
    world.moments()["exp_avg"] = torch.randn(3000, 6)
    assert held() is None
    assert storage.expired()


def test_a_part_that_cannot_be_kept_is_named(one):
    world, mirror = World(), one.mirror()
    mirror.write(10, world.portrait.tree(), everything, at_once)
    world.block().wave = torch.eye(3).to_sparse()
    with pytest.raises(StateError, match=r"wave.* a sparse_coo tensor|wave.*sparse"):
        mirror.write(20, world.portrait.tree(), everything, at_once)
    world.block().wave = torch.eye(3)
    assert_same_bytes(world, mirror, 30)


def test_a_nest_with_parts_is_dissected_by_one_who_remembers_nothing():
    world = World()
    assert dissect(world.portrait.tree())[2] == flatten(capture(world.protected, world.vars))[1]
