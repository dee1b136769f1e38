"""What a batch is made of: containers that people nest at will, and leaves, most of them tensors.

A batch may be a tensor, a dict, a list, a (named) tuple, a dataclass, any mapping, and any of these in one another.
Anything else is a leaf, and passes through untouched.

On the bits of a step a batch has an influence beyond its values. MKL picks other instructions for memory that does not
begin on 64 bytes, and kernels follow strides. So both must be the same whichever process loaded the batch (Invariant
2), and `align` sees to it.

This module does not know where a batch comes from.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

ALIGNMENT_BYTES = 64

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Leaves that are built alike whatever their values."""


def children(value: object) -> list[tuple[str, Any]] | None:
    """Return what a container holds, each with the way to write it (`['x']`, `[0]`, `.x`); None for a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def leaves(value: object, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yield every leaf under `value` with its path (`batch['x'][0]`), in order."""
    held = children(value)
    if held is None:
        yield path, value
    else:
        for label, child in held:
            yield from leaves(child, path + label)


def transform(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - any batch, and the same kind of batch
    """Return `value` with every leaf replaced by `change(leaf)`.

    A container in which nothing changes is returned itself; otherwise it is copied, since it may be the user's own.
    """
    kind = type(value)
    if kind is torch.Tensor:  # and so no container, as most leaves
        return change(value)
    if kind is list:
        changed = [transform(child, change) for child in value]
        return value if all(map(operator.is_, changed, value)) else changed
    held = children(value)
    if held is None:
        return change(value)
    changed = [transform(child, change) for _, child in held]
    if all(new is old for new, (_, old) in zip(changed, held, strict=True)):
        return value
    return _refill(value, changed)


def align(batch: Any) -> Any:  # noqa: ANN401 - any batch, and the same kind of batch
    """Return `batch` with every tensor and array on 64 bytes and without gaps, copied where it was not."""
    return transform(batch, _align_leaf)


def pin(batch: Any) -> Any:  # noqa: ANN401 - any batch, and the same kind of batch
    """Return `batch` with its CPU tensors in page-locked memory."""
    return transform(batch, lambda leaf: leaf.pin_memory() if _is_strided(leaf) and leaf.is_cpu else leaf)


Signature = tuple[Any, ...]
"""What a batch is built of; see `signature`."""


def signature(value: object) -> Signature | None:
    """Return what is equal only for batches that are built alike, and quick to make; None if that is not clear.

    Only of the containers and leaves that most batches are made of. Anything else could look like something that it is
    not: a mapping decides itself what its keys are, a tensor's subclass what its dtype is.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return (kind, value.dtype, value.layout)  # type: ignore[attr-defined] # that is what it is
    if kind is dict and all(type(key) is str for key in value):  # type: ignore[attr-defined] # 1 and True are equal
        parts = [signature(child) for child in value.values()]  # type: ignore[attr-defined]
        return None if None in parts else (kind, *value, *parts)  # type: ignore[misc]
    if kind is list or kind is tuple:
        parts = [signature(child) for child in value]  # type: ignore[attr-defined]
        return None if None in parts else (kind, *parts)
    return (kind,) if kind in _PLAIN else None


def count_samples(batch: object) -> int | None:
    """Return the first dimension of the first tensor or array that has one; None if there is none."""
    for _, leaf in leaves(batch):
        if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim:
            return int(leaf.shape[0])
    return None


def _refill(value: Any, changed: list[Any]) -> Any:  # noqa: ANN401 - any container, and the same kind of container
    """Return a copy of the container `value` that holds `changed` instead."""
    if isinstance(value, Mapping):
        items = dict(zip(value, changed, strict=True))
        if isinstance(value, MutableMapping):
            clone = copy.copy(value)  # mappings of libraries carry more than their items
            clone.update(items)
            return clone
        return type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, tuple):
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    clone = copy.copy(value)
    if isinstance(clone, list):
        clone[:] = changed
        return clone
    for field, child in zip(dataclasses.fields(value), changed, strict=True):
        object.__setattr__(clone, field.name, child)  # frozen ones too: nobody has seen the clone yet
    return clone


def _align_leaf(leaf: Any) -> Any:  # noqa: ANN401 - any leaf, and the same kind of leaf
    if _is_strided(leaf):
        # A tensor with gaps is copied wherever it lies: a copy has no gaps, so that copying it or not, by the luck of
        # its address, would be seen in its strides.
        if leaf.data_ptr() % ALIGNMENT_BYTES == 0 and (leaf.is_contiguous() or _is_dense(leaf.shape, leaf.stride())):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    if type(leaf) is np.ndarray and not leaf.dtype.hasobject:
        strides = [stride // (leaf.itemsize or 1) for stride in leaf.strides]
        if leaf.ctypes.data % ALIGNMENT_BYTES == 0 and _is_dense(leaf.shape, strides):
            return leaf
        return _copy_aligned(leaf)
    return leaf


def _is_strided(leaf: object) -> bool:
    """Return whether `leaf` is a tensor with an address and strides: sparse and nested ones have neither."""
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...] | list[int]) -> bool:
    """Return whether the elements fill their memory: in some order of dimensions, with no gap and no overlap."""
    if 0 in shape:
        return True
    filled = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != filled:
            return False
        filled *= size
    return True


def _copy_aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of `array` on 64 bytes, in the order of dimensions that it has itself (NumPy promises only 16)."""
    room = np.empty(array.nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
    offset = -room.ctypes.data % ALIGNMENT_BYTES
    # What NumPy would allocate for a copy, for the sake of its strides.
    strides = np.empty_like(array).strides
    copied: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, room.data, offset, strides)
    copied[...] = array
    return copied
