"""A training loop that is restored in its middle goes on as if it had never stopped: same bits, whatever decides them.

The oracle is a plain torch loop that nothing happens to. Each world below is built twice, as two workers build it: one
trains, its state is copied as the mirror does, and the other, wherever it stands, is restored and trains on.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from relume.errors import ProtectError, StateError
from relume.state.facts import stored
from relume.state.mirror import digest_of
from relume.state.tree import facts, flatten, unflatten
from relume.train import rng
from relume.train.capture import capture, restore
from relume.train.protect import Protected
from relume.train.variables import Vars


@pytest.fixture(autouse=True)
def _one_thread():
    """Compute as a worker does by default."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """A bit of everything: convolutions in their own memory format, statistics, tied and frozen parameters, dropout."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.inner = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.inner.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("nothing", None)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = self.norm(self.conv(x.to(memory_format=torch.channels_last))).relu().mean((2, 3))
        self.hidden += x.detach().float().mean()
        return self.frozen(self.tied(self.inner(self.drop(x)).relu())).float().square().mean()


class World:
    """What a script builds and protects, and one step of its loop."""

    def __init__(self, make_optimizer, *, model=Net, more=None, dtype=torch.float32, step=None):
        rng.seed_all(11)
        self.model = model().to(dtype)
        self.dtype = dtype
        self.optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.vars = Vars()
        self.protected = Protected()
        self.protected.add({"model": self.model, "optimizer": self.optimizer})
        self.scaler = None
        self._step = step
        self.parts = more(self) if more else {}
        self.protected.add(self.parts)
        self.number = 0

    def train(self, steps):
        for _ in range(steps):
            rng.seed_all(self.number)
            for parameter in self.model.parameters():
                parameter.grad = None
            (self._step or self.step)(self)
            self.number += 1
        return self

    @staticmethod
    def step(world):
        world.model(torch.randn(4, 3, 6, 6, dtype=world.dtype)).backward()
        world.optimizer.step()
        torch.rand(3)  # what the script draws after the update is drawn from where the mirror stands

    def tree(self):
        return capture(self.protected, self.vars)

    def restored(self, tree):
        restore(self.protected, self.vars, tree)
        return self


def copied(tree):
    """Return a private copy, made from bytes alone, as from the mirror."""
    tensors, skeleton = flatten(tree)
    parts = [about.make(stored(t).clone()) for t, about in zip(tensors, facts(skeleton), strict=True)]
    return unflatten(skeleton, parts)


def assert_goes_on_as_before(build, *, at=3, total=6, strayed=(0, 2)):
    """Compare with the oracle; `strayed`: how far the restored worker had come on its own, and wrongly."""
    oracle = build().train(at)
    kept, digest = copied(oracle.tree()), digest_of(oracle.tree())
    assert digest_of(kept) == digest
    oracle.train(total - at)
    assert digest_of(oracle.tree()) != digest
    for steps in strayed:
        with torch.random.fork_rng():
            world = build().train(steps)
        torch.rand(steps + 1)
        world.restored(copied(kept))
        assert digest_of(world.tree()) == digest
        world.number = at
        world.train(total - at)
        assert_equal_bits(world.tree(), oracle.tree())
    return oracle


def assert_equal_bits(tree, other):
    tensors, skeleton = flatten(tree)
    others, other_skeleton = flatten(other)
    assert skeleton == other_skeleton
    for tensor, other_tensor in zip(tensors, others, strict=True):
        assert torch.equal(stored(tensor), stored(other_tensor))


class Master(torch.optim.Optimizer):
    """Keeps float32 weights and a moment beside bfloat16 parameters; `load_state_dict` would round both."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr, "history": []})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["history"].append(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.float()
                    state["moments"] = [torch.zeros_like(state["master"]), {"count": 0}]
                moment, count = state["moments"]
                moment.mul_(0.9).add_(parameter.grad.float())
                count["count"] += 1
                state["master"].sub_(moment, alpha=group["lr"])
                parameter.copy_(state["master"])


class Counting(torch.optim.SGD):
    """Adds to its state dict, by methods of its own."""

    calls = 0

    def step(self):
        self.calls += 1
        super().step()

    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
        super().load_state_dict(state)


def muon(parameters):
    return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.02)


def groups(parameters, kind=torch.optim.AdamW, **options):
    entries = [
        {"params": parameters[:2], "lr": 0.01, "label": "first"},
        {"params": parameters[2:], "weight_decay": 0.2},
    ]
    return kind(entries, **options)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "sgd momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adam amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True, foreach=True),
    "adam fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "adam rate as tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adamw groups": groups,
    "adamw groups share a rate": lambda parameters: torch.optim.AdamW(
        [{"params": parameters[:2]}, {"params": parameters[2:]}], lr=torch.tensor(0.01)
    ),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=0.1),
    "adafactor": partial(torch.optim.Adafactor, lr=0.1),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.1, t0=1),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "muon": muon,
    "named": lambda parameters: torch.optim.Adam([(f"p{i}", p) for i, p in enumerate(parameters)], lr=0.01),
    "of the user's own": Master,
    "with a state dict of its own": partial(Counting, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("at", [0, 3])
def test_every_optimizer_goes_on_as_before(name, at):
    assert_goes_on_as_before(lambda: World(OPTIMIZERS[name]), at=at, strayed=(0, 2, 5))


def test_no_optimizer_of_torch_is_forgotten():
    def bases(make):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return type(make([nn.Parameter(torch.ones(2, 2)) for _ in range(3)])).__name__

    refused = {"LBFGS", "SparseAdam", "Optimizer"}
    tested = {bases(make) for make in OPTIMIZERS.values()}
    everything = {name for name in torch.optim.__all__ if isinstance(getattr(torch.optim, name), type)}
    assert everything - refused <= tested


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adam fused", "adamw", "of the user's own"])
def test_bfloat16_parameters_keep_state_of_other_dtypes(name):
    oracle = assert_goes_on_as_before(lambda: World(OPTIMIZERS[name], dtype=torch.bfloat16))
    if name == "of the user's own":
        assert any(state["master"].dtype is torch.float32 for state in oracle.optimizer.state.values())


def test_state_that_load_state_dict_would_round_is_not_rounded():
    """Shows that the test above can fail: what PyTorch's own way does to the same state."""
    trained = World(Master, dtype=torch.bfloat16).train(3)
    other = World(Master, dtype=torch.bfloat16)
    other.optimizer.load_state_dict(trained.optimizer.state_dict())
    rounded = [state["master"].dtype for state in other.optimizer.state.values()]
    assert torch.bfloat16 in rounded


def test_lazy_state_comes_with_the_very_types_devices_and_memory_formats():
    trained = World(OPTIMIZERS["adam"]).train(1)
    other = World(OPTIMIZERS["adam"]).restored(copied(trained.tree()))
    state = other.optimizer.state[other.model.conv.weight]
    assert state["exp_avg"].is_contiguous(memory_format=torch.channels_last)
    assert state["exp_avg"].stride() == other.model.conv.weight.stride()
    assert (state["step"].dtype, state["step"].device.type, state["step"].shape) == (torch.float32, "cpu", ())
    assert list(other.optimizer.state) == list(other.optimizer.param_groups[0]["params"])


def test_state_that_the_others_do_not_have_vanishes():
    fresh = World(OPTIMIZERS["adam"])
    trained = World(OPTIMIZERS["adam"]).train(2)
    trained.optimizer.param_groups[0]["stray"] = 1
    trained.restored(copied(fresh.tree()))
    assert not trained.optimizer.state
    assert "stray" not in trained.optimizer.param_groups[0]


def test_tensors_are_written_in_place_where_they_can_be():
    trained = World(OPTIMIZERS["adam rate as tensor"]).train(3)
    other = World(OPTIMIZERS["adam rate as tensor"]).train(1)
    parameter, rate = other.model.conv.weight, other.optimizer.param_groups[0]["lr"]
    moment, address = other.optimizer.state[parameter]["exp_avg"], parameter.data_ptr()
    other.restored(copied(trained.tree()))
    assert other.model.conv.weight is parameter
    assert parameter.data_ptr() == address
    assert other.optimizer.param_groups[0]["lr"] is rate
    assert other.optimizer.state[parameter]["exp_avg"] is moment
    assert other.model.tied.weight is other.model.inner.weight


def test_a_rate_shared_by_two_groups_stays_shared():
    make = OPTIMIZERS["adamw groups share a rate"]
    first = World(make).optimizer.param_groups
    if first[0]["lr"] is not first[1]["lr"]:
        pytest.skip("this torch gives every group a rate of its own")
    trained = World(make).train(1)
    trained.optimizer.param_groups[0]["lr"].fill_(0.5)
    other = World(make).restored(copied(trained.tree()))
    assert other.optimizer.param_groups[0]["lr"] is other.optimizer.param_groups[1]["lr"]


# Schedulers -------------------------------------------------------------------------------------------------


def sequential(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 5)], milestones=[3])


def chained(optimizer):
    steps = lr_scheduler.MultiStepLR(optimizer, [1, 4, 4], gamma=0.5)
    return lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9), steps], optimizer)


class Warmup:
    def __init__(self):
        self.calls = 0

    def __call__(self, epoch):
        self.calls += 1
        return (epoch + self.calls) / 10


SCHEDULERS = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "warm restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, mode="exp_range"),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "multi step": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4, 4]),
    "polynomial": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 10),
    "constant": lambda optimizer: lr_scheduler.ConstantLR(optimizer, total_iters=4),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "lambda with state": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Warmup()),
    "multiplicative": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5),
    "averaging": lambda optimizer: SWALR(optimizer, 0.05, anneal_epochs=3),
    "sequential": sequential,
    "chained": chained,
}


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adam rate as tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_as_before(name, optimizer):
    def step(world):
        World.step(world)
        scheduler = world.parts["scheduler"]
        scheduler.step(torch.rand(()).item()) if name == "plateau" else scheduler.step()
        rates.add(float(world.optimizer.param_groups[0]["lr"]))

    rates = set()

    def build():
        return World(OPTIMIZERS[optimizer], more=lambda w: {"scheduler": SCHEDULERS[name](w.optimizer)}, step=step)

    assert_goes_on_as_before(build)
    assert len(rates) > 1


def test_a_scheduler_still_drives_the_same_optimizer_after_it_was_restored():
    def build():
        return World(OPTIMIZERS["adam"], more=lambda w: {"scheduler": sequential(w.optimizer)})

    trained = build().train(1)
    trained.parts["scheduler"].step()
    other = build().restored(copied(trained.tree()))
    assert other.parts["scheduler"]._schedulers[0].optimizer is other.optimizer
    other.optimizer.step()
    before = other.optimizer.param_groups[0]["lr"]
    other.parts["scheduler"].step()
    assert other.optimizer.param_groups[0]["lr"] != before


# Modules ----------------------------------------------------------------------------------------------------


def test_scaler_and_averaged_models_go_on_as_before():
    def more(world):
        world.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        ema = AveragedModel(world.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        return {"scaler": world.scaler, "ema": ema, "mean": AveragedModel(world.model)}

    def step(world):
        with torch.autocast("cpu", torch.bfloat16):
            loss = world.model(torch.randn(4, 3, 6, 6))
        world.scaler.scale(loss).backward()
        world.scaler.unscale_(world.optimizer)
        world.scaler.step(world.optimizer)
        world.scaler.update()
        world.parts["ema"].update_parameters(world.model)
        world.parts["mean"].update_parameters(world.model)

    def build():
        world = World(OPTIMIZERS["adamw"], more=more, step=step)
        world.protected.wake_scalers()
        return world

    oracle = assert_goes_on_as_before(build, at=3, total=7)
    assert oracle.scaler.get_scale() == 64.0
    assert oracle.parts["ema"].n_averaged == 7


def test_flags_and_hidden_buffers_are_restored():
    trained = World(OPTIMIZERS["sgd"]).train(1)
    trained.model.norm.eval()
    trained.model.frozen.weight.requires_grad_(True)
    trained.model.inner.bias.requires_grad_(False)
    other = World(OPTIMIZERS["sgd"]).restored(copied(trained.tree()))
    assert not other.model.norm.training
    assert other.model.conv.training
    assert other.model.frozen.weight.requires_grad
    assert not other.model.inner.bias.requires_grad
    assert other.model.hidden.tolist() == trained.model.hidden.tolist() != [0.0, 0.0, 0.0]
    assert other.model.norm.num_batches_tracked == 1


def test_a_parameter_that_was_exchanged_through_data_is_exchanged_here_too():
    trained = World(OPTIMIZERS["sgd"])
    trained.model.inner.bias.data = torch.arange(8.0)
    trained.model.frozen.weight.data = torch.arange(16, dtype=torch.bfloat16).view(4, 4).t()
    trained.model.hidden = torch.ones(2, 2)
    other = World(OPTIMIZERS["sgd"])
    bias = other.model.inner.bias
    other.restored(copied(trained.tree()))
    assert other.model.inner.bias is bias
    assert other.model.frozen.weight.dtype is torch.bfloat16
    assert other.model.frozen.weight.stride() == (1, 4)
    assert_equal_bits(other.tree(), trained.tree())


def test_bits_beyond_numbers_survive():
    """NaNs with a payload, -0.0 and denormals, in every place."""
    trained = World(OPTIMIZERS["adam"]).train(1)
    odd = torch.tensor([0x7FC12345, -0x80000000, 1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    with torch.no_grad():
        trained.model.inner.bias[:4] = odd
        trained.optimizer.state[trained.model.inner.bias]["exp_avg"][:4] = odd
    trained.vars.odd = [odd, -0.0, float("nan")]
    other = World(OPTIMIZERS["adam"]).restored(copied(trained.tree()))
    for tensor in other.model.inner.bias[:4], other.optimizer.state[other.model.inner.bias]["exp_avg"][:4]:
        assert tensor.detach().view(torch.int32).tolist() == odd.view(torch.int32).tolist()
    assert str(other.vars.odd[1:]) == "[-0.0, nan]"


class Extra(nn.Linear):
    """Has state beside parameters and buffers, in the way PyTorch offers for it."""

    calls = 0

    def get_extra_state(self):
        return {"calls": self.calls, "kinds": Counter("aab")}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Renamed(nn.Module):
    """Has a state dict with names and contents of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.scale = 1.0

    def state_dict(self, *args, **kwargs):
        return {"w, halved": self.weight.detach() / 2, "scale": self.scale}

    def load_state_dict(self, state, *args, **kwargs):
        with torch.no_grad():
            self.weight.copy_(state["w, halved"] * 2)
        self.scale = state["scale"]


def test_modules_with_state_of_their_own_restore_it_their_way():
    def build():
        def model():
            return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), Extra(3, 3))

        return World(OPTIMIZERS["sgd"], model=model, step=lambda world: None, more=lambda w: {"renamed": Renamed()})

    trained = build()
    trained.model[1].calls = 7
    trained.parts["renamed"].scale = 3.0
    with torch.no_grad():
        trained.parts["renamed"].weight[0, 0] = 1e-45  # half of which is zero: its own way alone would lose it
        for parameter in trained.model.parameters():
            parameter.add_(1)
    other = build().restored(copied(trained.tree()))
    assert other.model[1].calls == 7
    assert other.parts["renamed"].scale == 3.0
    assert_equal_bits(other.tree(), trained.tree())


def test_shared_buffers_and_modules_stay_shared():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.BatchNorm1d(3)
            self.b = self.a
            self.c = nn.Linear(3, 3)
            self.register_buffer("table", torch.zeros(3))
            self.c.register_buffer("table", self.table)

    trained = World(OPTIMIZERS["sgd"], model=Shared)
    trained.model.table += 5
    trained.model.a.running_mean += 2
    other = World(OPTIMIZERS["sgd"], model=Shared).restored(copied(trained.tree()))
    assert other.model.c.table is other.model.table
    assert other.model.b is other.model.a
    assert other.model.c.table.tolist() == [5.0] * 3
    assert other.model.b.running_mean.tolist() == [2.0] * 3


# What is the script's own -------------------------------------------------------------------------------------


class Ema:
    """An object of the script's own."""

    def __init__(self, model):
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.updates = 0

    def update(self, model):
        self.updates += 1
        for name, parameter in model.named_parameters():
            self.shadow[name].lerp_(parameter.detach(), 0.1)

    def state_dict(self):
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state):
        self.shadow, self.updates = state["shadow"], state["updates"]


def test_objects_and_variables_of_the_script_go_on_as_before():
    def more(world):
        world.vars.best = float("inf")
        world.vars.history = world.history = []
        world.vars.mean = world.mean = torch.zeros(3)
        world.vars.nested = {"tuple": (1, torch.zeros(2)), "names": ["a"]}
        return {"ema": Ema(world.model)}

    def step(world):
        World.step(world)
        world.parts["ema"].update(world.model)
        loss = torch.rand(()).item()
        world.vars.best = min(world.vars.best, loss)
        world.history.append(loss)  # by the script's own name for it
        world.mean.mul_(0.9).add_(loss)
        world.vars.nested["tuple"][1].add_(loss)
        world.vars.nested["names"] = [*world.vars.nested["names"], str(loss)]
        world.vars.late = {"seen": world.number}

    oracle = assert_goes_on_as_before(lambda: World(OPTIMIZERS["sgd"], more=more, step=step))
    assert len(oracle.vars.history) == 6


def test_a_live_object_in_two_places_is_not_given_two_values():
    def build():
        world = World(OPTIMIZERS["sgd"])
        world.vars.current = torch.zeros(3)
        world.vars.best = world.vars.current
        return world

    trained = build()
    trained.vars.best = torch.ones(3)
    other = build().restored(copied(trained.tree()))
    assert other.vars.best.tolist() == [1.0] * 3
    assert other.vars.current.tolist() == [0.0] * 3
    together = build().restored(copied(build().tree()))
    assert together.vars.best is together.vars.current


def test_variables_that_the_others_do_not_have_vanish():
    other = World(OPTIMIZERS["sgd"])
    other.vars.stray = 1
    other.restored(copied(World(OPTIMIZERS["sgd"]).tree()))
    assert other.vars.state_dict() == {}


def test_random_numbers_between_two_steps_go_on_as_before():
    trained = World(OPTIMIZERS["sgd"])
    rng.seed_all(77)
    random.gauss(0, 1)
    np.random.standard_normal(3)  # noqa: NPY002 - the global generator is what scripts use
    torch.randn(3)
    kept = copied(trained.tree())

    def draw():
        numpy = np.random.standard_normal()  # noqa: NPY002 - as above
        return random.gauss(0, 1), numpy, torch.randn(5).tolist(), random.random()

    expected = draw()
    rng.seed_all(78)
    trained.restored(kept)
    assert draw() == expected


# What does not fit --------------------------------------------------------------------------------------------


def tree_of(**changes):
    world = World(OPTIMIZERS["adam"], **changes).train(1)
    return copied(world.tree())


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (lambda: tree_of(more=lambda w: {"ema": Ema(w.model)}), "protected are model, optimizer, and .* ema"),
        (
            lambda: tree_of(model=lambda: nn.Sequential(nn.Linear(3, 3)), step=lambda w: None),
            "model: .* another module",
        ),
        (lambda: copied(World(groups).tree()), "optimizer: .* other parameter groups"),
    ],
)
def test_a_script_that_built_something_else_is_told_which(tree, words):
    with pytest.raises(StateError, match=words):
        World(OPTIMIZERS["adam"]).restored(tree())


def test_a_load_state_dict_that_fails_is_named():
    class Forgetful:
        def state_dict(self):
            return {"a": 1}

        def load_state_dict(self, state):
            self.b = state["b"]

    def build():
        return World(OPTIMIZERS["sgd"], more=lambda w: {"memory": Forgetful()})

    with pytest.raises(StateError, match=r"memory: Forgetful.load_state_dict failed .*KeyError"):
        build().restored(copied(build().tree()))


def test_a_load_state_dict_that_forgets_is_found_by_the_digest():
    def make():
        thing = SimpleNamespace(count=0, load_state_dict=lambda state: None)
        thing.state_dict = lambda: {"count": thing.count}
        return thing

    trained = World(OPTIMIZERS["sgd"], more=lambda w: {"thing": make()})
    trained.parts["thing"].count = 3
    other = World(OPTIMIZERS["sgd"], more=lambda w: {"thing": make()}).restored(copied(trained.tree()))
    assert digest_of(other.tree()) != digest_of(trained.tree())


def test_the_name_of_what_relume_adds_cannot_be_taken():
    with pytest.raises(ProtectError, match="relume"):
        Protected().add({"relume": nn.Linear(1, 1)})
