"""What a run must come to: a plain PyTorch loop in one process, written from docs/adr/0002 with no code of relume.

It computes each shard's gradient by itself, from fresh `.grad`s, sums the shards in the documented tree, divides once,
and lets the scenario update. It is slow and holds everything in memory; it has nothing to be clever about. Where it and
relume disagree by a bit, one of them misread the documentation.

A `Scenario` says what is trained and how; the same object drives a relume loop in `tests/exact.py`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import default_collate

Objects = dict[str, Any]
"""The protected objects of a scenario, by name: models, optimizers, schedulers, scalers, averages."""

Trace = dict[str, Any]
"""What a run is judged by: "grads" (per step, by parameter: the tensor or None), "means" (per step, by name: hex) and
"state" (the state dicts at the end, by name)."""


class Tape(Protocol):
    """What a scenario does with the gradient of a shard: here by hand, in a relume loop with what relume offers."""

    number: int

    def plain(self, loss: torch.Tensor, **options: Any) -> None:
        """Run `loss.backward(**options)`, counting for the shard's number of samples."""

    def weighted(self, loss: torch.Tensor, weight: float) -> None:
        """Run `step.backward(loss, weight=weight)`."""

    def skip(self) -> None:
        """Leave this shard out: `step.skip()`."""

    def log(self, **values: Any) -> None:
        """Log values of this shard: `step.log(...)`."""


@dataclass(frozen=True)
class Scenario:
    """Something to train, small enough that a step takes about a millisecond.

    `build` makes the protected objects, right after everything was seeded with `seed`; `shard` runs forward and
    backward of one batch; `update` does the rest of the step. `source` is a dataset, or the function of a stream.
    """

    name: str
    build: Callable[[], Objects]
    shard: Callable[[Objects, Any, Tape], None]
    update: Callable[[Objects, int], None]
    source: Any
    stream: bool = False
    batch: int = 11
    shards: int = 4
    steps: int = 6
    seed: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    """More of what `relume.Shards` takes: seed, shuffle, num_workers, collate_fn, drop_last."""
    until: Callable[[dict[str, str]], bool] = lambda _: False
    """Asked after each update, with the means of the step: true ends the loop early."""
    aside: Callable[[Objects], None] | None = None
    """Done by main alone in `run.aside`, before each update. It must change nothing, so the oracle leaves it out."""


@dataclass
class Leaf:
    """The gradient of one shard, summed over its backwards; a parameter that got none is not in it."""

    grads: dict[int, torch.Tensor] = field(default_factory=dict)
    weight: float | None = None  # None: the whole shard is absent
    means: dict[str, float] = field(default_factory=dict)


class Collector:
    """The oracle's tape.

    Plain backwards accumulate in `.grad` as ever, and the whole counts for the shard's number of samples. A weighted
    one is taken by itself, from `.grad = None`, times its weight.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], samples: int | None, number: int) -> None:
        self.number = number
        self._parameters = parameters
        self._samples = samples
        self._sum: dict[int, torch.Tensor] = {}
        self._weights: list[float] = []
        self._logged: dict[str, list[float]] = {}
        self._skipped = False
        self._clear()

    def plain(self, loss: torch.Tensor, **options: Any) -> None:
        loss.backward(**options)

    def weighted(self, loss: torch.Tensor, weight: float) -> None:
        loss.backward()
        self._add(float(weight))
        self._weights.append(float(weight))

    def skip(self) -> None:
        self._skipped = True

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            self._logged.setdefault(name, []).append(
                float(value.detach() if isinstance(value, torch.Tensor) else value)
            )

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _add(self, weight: float) -> None:
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                part = torch.mul(parameter.grad, weight)
                self._sum[index] = part if index not in self._sum else self._sum[index] + part
        self._clear()

    def leaf(self) -> Leaf:
        if self._skipped:
            return Leaf()
        if not self._weights:
            assert self._samples is not None
            self._add(float(self._samples))
        assert self._sum, "a shard without a gradient must be skipped"
        means = {}
        for name, values in self._logged.items():
            total = 0.0
            for value in values:
                total += value
            means[name] = total / len(values)
        weight = 0.0
        for each in self._weights or [float(self._samples or 0)]:
            weight += each
        return Leaf(self._sum, weight, means)


def derive(seed: int, *words: object) -> int:
    """The seed of a place: the first 4 bytes, little-endian, of the SHA-256 of a text."""
    text = "relume|" + "|".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "little")


def seed_all(value: int) -> None:
    """Seed every generator that a script may draw from."""
    torch.manual_seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 - the global generator is the one that augmentation draws from
    random.seed(value)


def tree(items: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Sum in the fixed tree: n leaves split at the largest power of two below n; None is absent, and the identity."""
    if len(items) == 1:
        return items[0]
    half = 1
    while half * 2 < len(items):
        half *= 2
    left, right = tree(items[:half], add), tree(items[half:], add)
    if left is None:
        return right
    return left if right is None else add(left, right)


def samples_of(scenario: Scenario, shards: int, step: int, shard: int) -> list[int]:
    """Which samples of a dataset the shard holds."""
    length, size, options = len(scenario.source), scenario.batch, scenario.options
    per_epoch = length // size if options.get("drop_last") else math.ceil(length / size)
    epoch, within = step // per_epoch, step % per_epoch
    order = list(range(length))
    if options.get("shuffle", True):
        generator = torch.Generator().manual_seed(derive(options.get("seed", scenario.seed), epoch, "order"))
        order = torch.randperm(length, generator=generator).tolist()
    batch = order[within * size : (within + 1) * size]
    sizes = [len(batch) // shards + (1 if i < len(batch) % shards else 0) for i in range(shards)]
    return batch[sum(sizes[:shard]) : sum(sizes[: shard + 1])]


def load(scenario: Scenario, shards: int, step: int, shard: int) -> tuple[Any, int | None]:
    """Load one shard and count its samples; (None, 0) when it is empty."""
    place = derive(scenario.seed, step, shard, "data")  # the run's seed: the seed of Shards is the order's alone
    if scenario.stream:
        seed_all(place)
        batch = scenario.source(step, shard)
        return batch, 0 if batch is None else len(next(iter(batch.values())))
    indices = samples_of(scenario, shards, step, shard)
    if not indices:
        return None, 0
    seed_all(place)
    items = [scenario.source[index] for index in indices]
    return scenario.options.get("collate_fn", default_collate)(items), len(indices)


def parameters_of(objects: Objects) -> dict[str, nn.Parameter]:
    """The parameters of all models, a tied one under its first name."""
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for name, value in objects.items():
        if isinstance(value, nn.Module):
            for path, parameter in value.named_parameters():
                found.setdefault(id(parameter), (f"{name}.{path}", parameter))
    return dict(found.values())


class Buffers:
    """All buffers of all models, which every shard finds as they were at the start of the step."""

    def __init__(self, objects: Objects) -> None:
        roots = [value for value in objects.values() if isinstance(value, nn.Module)]
        self._modules = list(dict.fromkeys(module for root in roots for module in root.modules()))

    def save(self) -> list[dict[str, torch.Tensor]]:
        return [
            {name: buffer.clone() for name, buffer in module._buffers.items() if buffer is not None}
            for module in self._modules
        ]

    def restore(self, saved: list[dict[str, torch.Tensor]]) -> None:
        for module, values in zip(self._modules, saved, strict=True):
            for name, value in values.items():
                module._buffers[name] = value.clone()


def snapshot(objects: Objects) -> dict[str, Any]:
    """The state dicts of all objects, and what they leave out: buffers that are not persistent."""
    state = {name: value.state_dict() for name, value in objects.items()}
    modules = {name: value for name, value in objects.items() if isinstance(value, nn.Module)}
    hidden = {f"{name}.{path}": buffer for name, module in modules.items() for path, buffer in module.named_buffers()}
    return {**state, "all buffers": hidden}


def train(scenario: Scenario, shards: int | None = None) -> Trace:
    """Train the scenario to its end."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shards = shards or scenario.shards
    seed_all(scenario.seed)
    objects = scenario.build()
    parameters = parameters_of(objects)
    trace: Trace = {"grads": [], "means": []}
    for step in range(scenario.steps):
        leaves = shard_leaves(scenario, objects, step, shards)
        weights = [leaf.weight for leaf in leaves]
        total = tree(weights, lambda left, right: left + right)
        for index, parameter in enumerate(parameters.values()):
            root = tree([leaf.grads.get(index) for leaf in leaves], torch.add)
            parameter.grad = None if root is None else like(parameter, torch.div(root, total))
        seed_all(derive(scenario.seed, step, "update"))
        trace["grads"].append({name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()})
        trace["means"].append(means(leaves))
        scenario.update(objects, step)
        if scenario.until(trace["means"][-1]):
            break
    trace["state"] = snapshot(objects)
    return trace


def shard_leaves(scenario: Scenario, objects: Objects, step: int, shards: int) -> list[Leaf]:
    """Compute every shard of a step; afterwards the buffers are those that shard 0 left."""
    parameters = list(parameters_of(objects).values())
    buffers = Buffers(objects)
    start = after_first = buffers.save()
    leaves = []
    for shard in range(shards):
        batch, samples = load(scenario, shards, step, shard)
        if batch is None:
            leaves.append(Leaf())
            continue
        buffers.restore(start)
        seed_all(derive(scenario.seed, step, shard))
        tape = Collector(parameters, samples, step)
        scenario.shard(objects, batch, tape)
        leaves.append(tape.leaf())
        if shard == 0:
            after_first = buffers.save()
    buffers.restore(after_first)
    return leaves


def like(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with its parameter's strides, as autograd leaves it."""
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def means(leaves: Sequence[Leaf]) -> dict[str, str]:
    """The mean of each logged value over the shards that logged it, weighted by the shards' weights."""
    names = dict.fromkeys(name for leaf in leaves for name in leaf.means)
    answer = {}
    for name in names:
        weights = [leaf.weight if name in leaf.means else None for leaf in leaves]
        values = [None if w is None else w * leaf.means[name] for w, leaf in zip(weights, leaves, strict=True)]
        answer[name] = (tree(values, lambda a, b: a + b) / tree(weights, lambda a, b: a + b)).hex()
    return answer
