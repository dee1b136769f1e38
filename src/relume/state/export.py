"""The tensors of a model as a safetensors file, which every tool of the field reads.

The format is a length, a JSON header and the bytes of the tensors, so it is written here: a dependency would do no
more, and would refuse two names for one tensor (tied weights), which are simply written twice.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from relume.errors import ConfigError
from relume.state.folder import sync

PREFERRED = "model"
_ALIGNMENT = 8
_DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64", torch.complex64: "C64",
    torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.uint16: "U16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def models(state: Mapping[str, Any]) -> list[str]:
    """Return the names of what looks like a model in a checkpoint: a mapping of names to tensors."""
    return [name for name, value in state.items() if isinstance(value, Mapping) and _is_model(value)]


def choose(state: Mapping[str, Any], name: str | None) -> str:
    """Return which protected object is to be exported. Raises `ConfigError` naming those that are there."""
    found = models(state)
    there = ", ".join(found) or "none"
    if name is not None:
        if name not in found:
            what = "holds no tensors by name" if name in state else "is not there"
            raise ConfigError(f"{name!r} {what}; what can be exported: {there}")
        return name
    if PREFERRED in found or len(found) == 1:
        return PREFERRED if PREFERRED in found else found[0]
    raise ConfigError(f"--name must say which model is meant: {there}" if found else "it holds no model")


def write(path: Path, state: Mapping[str, Any], notes: Mapping[str, str]) -> int:
    """Write the tensors in a model's state dict to `path`, whole or not at all; return its bytes.

    Raises `ConfigError` for a dtype that the format has no name for, and `OSError`.
    """
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each begins aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES:
            raise ConfigError(f"{name} is of {tensor.dtype}, which safetensors has no name for")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                file.write(_bytes(tensors[name]))
            size = file.tell()
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def _is_model(value: Mapping[str, Any]) -> bool:
    return "param_groups" not in value and any(isinstance(item, torch.Tensor) for item in value.values())


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
