"""States as training has them, with everything in them that a format could get wrong; and how to compare two."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path

import torch

from relume.state import disk, tree

FACTS = {"run": "20261130-120000-abcd", "shards": 4, "seed": 7, "numerics": {"threads": "1", "exact": "True"}}


def small(seed):
    """A few kilobytes: a model after two steps of its optimizer, a scheduler, and values of the user's own."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(2):
        model(torch.randn(5, 8, generator=generator)).sum().backward()
        optimizer.step()
        scheduler.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "relume": {"buffers": {"model.mask": torch.ones(3, 3).tril()}, "vars": odd(generator)},
    }


def odd(generator):
    """What a format that thinks of plain weights only would lose."""
    base = torch.randn(4, 6, generator=generator)
    return {
        "transposed": base.t(),
        "channels_last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "expanded": torch.randn(3, 1, generator=generator).expand(3, 4),
        "column": base[:, 1],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "nan": torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32),
        "minus_zero": torch.tensor([-0.0]),
        "bfloat16": torch.randn(5, generator=generator).bfloat16(),
        "bool": torch.tensor([True, False]),
        "uint8": torch.arange(7, dtype=torch.uint8),
        "int64": torch.tensor([-(2**62), 2**62]),
        "complex": torch.view_as_complex(torch.randn(3, 2, generator=generator)),
        "numbers": {1: torch.ones(1), "1": torch.zeros(1), 2.5: -0.0},
        "a.b": {"c": torch.ones(2)},
        "a": {"b.c": torch.zeros(2)},
        "tuple": (1, 2.0, "three", None, True, (torch.ones(1), [])),
        "ordered": collections.OrderedDict(z=1, a=2),
        "nothing": {},
        "big": 10**30,
        "bytes": b"\x00\xff",
        "text": "ü\n",
    }


def large(size):
    """`size` bytes of weights and moments, as an optimizer has them."""
    count = max(1, size // (3 * 24 << 20))
    shape = (size // (3 * count * 4),)
    generator = torch.Generator().manual_seed(0)
    tensors = {f"layer.{index}.weight": torch.randn(shape, generator=generator) for index in range(count)}
    moments = {
        index: {
            "exp_avg": torch.randn(shape, generator=generator),
            "exp_avg_sq": torch.randn(shape, generator=generator),
        }
        for index in range(count)
    }
    return {"model": tensors, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [*range(count)]}]}}


def save(directory, step, state, facts=FACTS, **options):
    """As `disk.save`, from a nest."""
    tensors, skeleton = tree.flatten(state)
    return disk.save(directory, step, (skeleton, tensors), facts, **options)


def load(path):
    """The nest in a checkpoint."""
    return disk.load(path).state(trusting=True)


def difference(left, right, where="state"):
    """Return where two states differ in value, bit, type, dtype, shape or stride; None: nowhere."""
    if type(left) is not type(right):
        return f"{where}: {type(left)} and {type(right)}"
    if isinstance(left, torch.Tensor):
        return _tensors(left, right, where)
    if isinstance(left, Mapping):
        if list(map(repr, left)) != list(map(repr, right)):
            return f"{where}: keys {list(left)} and {list(right)}"
        pairs = [(left[key], right[key], f"{where}[{key!r}]") for key in left]
    elif isinstance(left, list | tuple):
        if len(left) != len(right):
            return f"{where}: {len(left)} and {len(right)}"
        pairs = [(a, b, f"{where}[{index}]") for index, (a, b) in enumerate(zip(left, right, strict=True))]
    else:
        return None if repr(left) == repr(right) else f"{where}: {left!r} and {right!r}"
    return next((found for pair in pairs if (found := difference(*pair))), None)


def _tensors(left, right, where):
    for what in ("dtype", "shape", "stride"):
        a, b = getattr(left, what), getattr(right, what)
        a, b = (a(), b()) if callable(a) else (a, b)
        if a != b:
            return f"{where}: {what} {a} and {b}"
    if not left.numel():
        return None
    a, b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return None if a.equal(b) else f"{where}: bits"


def files(path: Path):
    """The files of a checkpoint, by name."""
    return sorted(entry for entry in path.iterdir() if entry.is_file())
