"""A state as plain PyTorch reads it: nested dictionaries and lists, each tensor under a name of its own.

This is for people with other tools. relume itself restores from the skeleton, and needs only to know under which name
each tensor is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from relume.state import tree
from relume.state.values import Opaque

HIDDEN = "relume-tensor-"
"""Begins the name of a tensor that stands where PyTorch's format has no name for it."""


def readable(skeleton: bytes, tensors: Sequence[torch.Tensor]) -> tuple[dict[str, Any], list[str]]:
    """Return the state as PyTorch's format takes it, and the name under which that will hold each tensor.

    Keys become text, and containers that hold a tensor dictionaries or lists. Two keys that would become the same name
    (1 and "1") are told apart. Objects of the script's own classes are left to the skeleton, since whoever reads with
    plain PyTorch may not have them; a tensor inside of one is kept under a name of ours.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()

    def walk_mapping(value: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, Opaque):
                continue
            text = str(key)
            while text in result or f"{prefix}{text}" in taken:
                text += "~"
            result[text] = walk(item, f"{prefix}{text}.")
        return result

    def walk(value: object, prefix: str) -> object:
        if isinstance(value, Mapping):
            return walk_mapping(value, prefix)
        if isinstance(value, list | tuple) and _holds_tensor(value):
            return [walk(item, f"{prefix}{index}.") for index, item in enumerate(value)]
        taken.add(prefix[:-1])
        if isinstance(value, torch.Tensor):
            names[int(value)] = prefix[:-1]
            return tensors[int(value)]
        return repr(value) if isinstance(value, Opaque) else value

    # Instead of each tensor its number stands in the nest while it is walked: so places are told apart, not tensors.
    numbers = [torch.tensor(float(index), dtype=torch.float64) for index in range(len(tensors))]
    nest = walk_mapping(tree.unflatten(skeleton, numbers, trusting=False), "")
    keys = [names.get(index, f"{HIDDEN}{index}") for index in range(len(tensors))]
    nest.update({key: tensors[index] for index, key in enumerate(keys) if index not in names})
    return nest, keys


def _holds_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return True  # as PyTorch's format has it
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
