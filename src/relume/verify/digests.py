"""Digests of protected state: one number for any nest of tensors and plain values.

XXH3 (64 bits) over a canonical walk: containers contribute their type and length, mappings their keys in order of
insertion, tensors their dtype, shape and bytes in logical order, everything else its `repr`. Two states with equal
bits have equal digests in any process; the order of insertion is that of `state_dict`, which is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import xxhash


def digest(state: object) -> str:
    """Return the digest of `state` as sixteen hexadecimal digits."""
    hasher = xxhash.xxh3_64()
    _feed(hasher, state)
    return hasher.hexdigest()


def _feed(hasher: xxhash.xxh3_64, value: object) -> None:  # noqa: C901 - one flat case per kind of value
    if isinstance(value, torch.Tensor):
        hasher.update(f"T{value.dtype}{tuple(value.shape)}".encode())
        hasher.update(_bytes(value))
    elif isinstance(value, Mapping):
        hasher.update(f"M{len(value)}".encode())
        for key, item in value.items():
            hasher.update(f"K{key!r}".encode())
            _feed(hasher, item)
    elif isinstance(value, list | tuple):
        hasher.update(f"L{len(value)}".encode())
        for item in value:
            _feed(hasher, item)
    elif isinstance(value, np.ndarray):
        hasher.update(f"A{value.dtype}{value.shape}".encode())
        hasher.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
    elif isinstance(value, float):
        hasher.update(f"F{value.hex()}".encode())
    elif isinstance(value, bytes):
        hasher.update(b"B" + value)
    elif value is None or isinstance(value, str | int | torch.dtype | torch.device | np.generic):
        hasher.update(f"V{value!r}".encode())
    elif hasattr(value, "__dict__"):
        hasher.update(f"O{type(value).__qualname__}".encode())
        _feed(hasher, vars(value))
    else:
        hasher.update(f"C{type(value).__qualname__}".encode())


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    raw: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw.data
