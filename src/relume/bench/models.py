"""The models that are measured, with their data and optimizers: the same on every side, from the same weights.

`linear` is a stack of square linear layers, so that its gradient has any size that is asked for and its compute any
length (the batch decides). `charlm` is the example that ships with relume, as it is. `tiny-1000` has a thousand
parameter tensors of a few elements each, where all cost is per tensor and none per byte.

This module does not know who makes a step, nor how gradients are summed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate

from relume.bench.orders import Terms
from relume.bench.sizes import linear_shape
from relume.train.shards import BoundShards, Shards

TINY_LAYERS, TINY_WIDTH = 500, 4
SAMPLES_MIN = 64
GLOBAL_BATCHES = 4
"""A made-up dataset has so many global batches at least: then it begins again, in another order."""

Batch = dict[str, torch.Tensor]


class Pairs(Dataset[Batch]):
    """So many random inputs and targets of `width` numbers each."""

    def __init__(self, samples: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(samples, width, generator=generator)
        self.y = torch.randn(samples, width, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Batch:
        return {"x": self.x[index], "y": self.y[index]}


@dataclass
class Task:
    """A model with what trains it. `drawing`: the forward draws random numbers."""

    terms: Terms
    model: nn.Module
    optimizer: torch.optim.Optimizer
    dataset: Dataset[Batch]
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    clip: float | None = None
    drawing: bool = False

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss of `batch`; `model` is the task's own, or what wraps it."""
        out = model(batch["x"])
        if self.terms.model == "charlm":
            return F.cross_entropy(out.flatten(0, 1), batch["y"].flatten())
        return F.mse_loss(out, batch["y"])

    def update(self) -> None:
        """Do what follows when the gradient is there."""
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def load(self, indices: Sequence[int]) -> Batch:
        """Return the batch of these samples, made as a DataLoader without processes makes it."""
        batch: Batch = default_collate([self.dataset[index] for index in indices])
        return batch

    @property
    def shards(self) -> Shards:
        """The data as a script under relume has it: one shard per worker."""
        batch, shards = self.terms.batch * self.terms.workers, self.terms.workers
        # A smaller batch at an epoch's end is weighted by its samples here, and by workers in DDP: other work.
        return Shards(self.dataset, global_batch_size=batch, shards=shards, seed=self.terms.seed, drop_last=True)

    @property
    def bound(self) -> BoundShards:
        """Which samples each worker has in which step."""
        return self.shards.bind(seed=self.terms.seed, default_shards=None)

    @property
    def protected(self) -> dict[str, Any]:
        """What a script under relume protects."""
        objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {name: value for name, value in objects.items() if value is not None}

    def weights(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return all parameters, one after the other."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])
        array: np.ndarray[Any, np.dtype[np.float32]] = flat.float().numpy()
        return array


def build(terms: Terms) -> Task:
    """Return the task, its weights a function of the terms alone. The global generator is seeded for that."""
    torch.manual_seed(terms.seed)
    return {"linear": _linear, "charlm": _charlm, "tiny-1000": _tiny}[terms.model](terms)


def _linear(terms: Terms) -> Task:
    width, layers = linear_shape(terms.size_mb)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.eye_(parameter).add_(torch.randn_like(parameter), alpha=0.01 * width**-0.5)
    # Near the identity the loss has curvature 2 x layers at most, so that any batch trains and none diverges.
    return Task(terms, model, torch.optim.SGD(model.parameters(), lr=0.5 / layers), _pairs(terms, width))


def _tiny(terms: Terms) -> Task:
    model = nn.Sequential(*(nn.Linear(TINY_WIDTH, TINY_WIDTH) for _ in range(TINY_LAYERS)))
    for layer in model:
        assert isinstance(layer, nn.Linear)
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return Task(terms, model, torch.optim.SGD(model.parameters(), lr=1e-4), _pairs(terms, TINY_WIDTH))


def _pairs(terms: Terms, width: int) -> Pairs:
    return Pairs(max(SAMPLES_MIN, GLOBAL_BATCHES * terms.batch * terms.workers), width, terms.seed)


def _charlm(terms: Terms) -> Task:
    """Return the task of `examples/charlm.py` as its `main` sets it up by default."""
    example = _example(terms.charlm)
    windows = example.Windows(example.read_text(), 64)
    model = example.GPT(len(windows.vocabulary), 64, 96, 3, 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200, eta_min=3e-4)
    return Task(terms, model, optimizer, windows, scheduler, clip=1.0, drawing=True)


def _example(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("relume_charlm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
