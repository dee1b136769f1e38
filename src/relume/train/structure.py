"""The structure of a batch, and where two structures differ.

The first batch of a run tells what a batch is like: which keys, which containers, which types of leaves, which dtypes.
A later one that is not like it is a mistake in the dataset, and one that broadcasting or a cast can hide for a long
time: here it has a place and a name. Sizes are no part of a structure, since sequences and last batches vary.

This module does not know the values in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from relume.train.batches import children


@dataclass(frozen=True, slots=True)
class Structure:
    """One node: its kind, and what it holds by label.

    A list or tuple whose items are all alike is as long as it likes to be (names of the samples, boxes in the image).
    """

    kind: str
    parts: Mapping[str, Structure] = field(default_factory=dict)
    uniform: bool = False


def structure_of(value: object) -> Structure:
    """Return the structure of a batch."""
    held = children(value)
    if held is None:
        return Structure(_kind(value))
    parts = {label: structure_of(child) for label, child in held}
    plain = isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
    some = next(iter(parts.values()), None)
    return Structure(_kind(value), parts, uniform=plain and all(part == some for part in parts.values()))


def difference(first: Structure, other: Structure, path: str = "batch") -> str | None:
    """Return where and how `other` differs from `first`, in words; None if it does not."""
    if first.kind != other.kind:
        return f"{path} is {other.kind}, and was {first.kind}"
    if first.uniform and other.uniform:
        if first.parts and other.parts:
            return difference(first.parts["[0]"], other.parts["[0]"], f"{path}[0]")
        return None
    if first.uniform and first.parts:
        # Expected are as many of the same as there are now.
        first = Structure(first.kind, dict.fromkeys(other.parts, first.parts["[0]"]))
    if missing := [label for label in first.parts if label not in other.parts]:
        return f"{path} has no {missing[0]}, and had one"
    if new := [label for label in other.parts if label not in first.parts]:
        return f"{path} has {new[0]}, and had none"
    found = (difference(first.parts[label], other.parts[label], path + label) for label in first.parts)
    return next((words for words in found if words is not None), None)


def _kind(value: object) -> str:
    """Return what `value` is, as people say it: `float32 tensor`, `dict`, `str`."""
    name = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        subclass = "" if type(value) is torch.Tensor else f" ({name})"
        layout = "" if value.layout is torch.strided else f" {str(value.layout).removeprefix('torch.')}"
        return f"{str(value.dtype).removeprefix('torch.')}{layout} tensor{subclass}"
    if isinstance(value, np.ndarray):
        # A text's dtype has its length in it.
        return f"{value.dtype.type.__name__ if value.dtype.kind in 'US' else value.dtype} array"
    return "None" if value is None else name
