"""A tensor as bytes and back: dtype, shape, strides, and where its bytes stand among those of others.

Strides are kept, because bits depend on them: fused optimizers go by memory order, and kernels are chosen by it
(DESIGN.md). So a dense tensor is its memory as it lies; one with gaps (a column of a matrix) is its elements in logical
order, and an expanded one is stored once.

This module does not know what the tensors are for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, eq, is_

import torch
from torch import nn

from relume.arena.layout import ALIGNMENT, round_up
from relume.errors import StateError

PARAMETER, REQUIRES_GRAD = 1, 2
"""Flags of a tensor: its type, and whether it is a leaf that asks for a gradient."""

Packed = tuple[str, tuple[int, ...], tuple[int, ...], str, int]
"""Facts as they stand in a skeleton: all but what follows from the tensors before."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What it takes to make a tensor again.

    `offset` (bytes, a multiple of 128) is its place in the concatenation of all tensors, `size` its bytes there;
    `device` is a type ("cpu", "cuda"): which of several is the worker's own affair.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    flags: int
    offset: int
    size: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape without the repetitions of an expanded tensor."""
        return tuple(1 if stride == 0 else size for size, stride in zip(self.shape, self.strides, strict=True))

    def make(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor that stands at the start of `memory` (uint8, a storage of its own): no copy if dense."""
        if self.size and is_dense(self.shape, self.strides):
            return torch.empty(0, dtype=self.dtype).set_(memory.untyped_storage(), 0, self.shape, self.strides)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        if self.size:
            _once(tensor).copy_(memory[: self.size].view(self.dtype).view(self.stored_shape))
        return tensor


def pack(tensor: torch.Tensor) -> Packed:
    """Return the facts of `tensor` for a skeleton. Raises `StateError` for what has no plain memory."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not nn.Parameter:
        raise StateError(f"a {kind.__qualname__}, a kind of tensor of its own, cannot be copied exactly")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        layout = str(tensor.layout).removeprefix("torch.")
        what = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else layout
        raise StateError(f"a {what} tensor cannot be copied exactly: only dense tensors can")
    flags = PARAMETER * (kind is nn.Parameter) | REQUIRES_GRAD * (tensor.requires_grad and tensor.is_leaf)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type, flags)


class Looks:
    """All that `pack` goes by, of many tensors at once: told again for much less than `pack` takes. It holds no tensor.

    `detached`: of tensors that are kept without their gradient's part, whose flags are none whatever they are.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], *, detached: bool) -> None:
        self._kinds, self._dtypes, self._layouts = (
            [*map(type, tensors)],
            [*map(_dtype, tensors)],
            {*map(_layout, tensors)},
        )
        self._sizes, self._strides = [*map(_size, tensors)], [*map(_stride, tensors)]
        self._devices = None if all(map(_on_cpu, tensors)) else [*map(_device, tensors)]
        self._flags = None if detached or not any(map(_wants, tensors)) else [*map(_flags, tensors)]
        self._detached = detached

    def same(self, tensors: Sequence[torch.Tensor], *, detached: bool) -> bool:
        """True if these look the same. Nothing is kept while that is found out: garbage in heaps has its own price."""
        if detached != self._detached or len(tensors) != len(self._kinds) or self._layouts != {*map(_layout, tensors)}:
            return False
        if self._flags is None:
            same_flags = detached or not any(map(_wants, tensors))
        else:
            same_flags = all(map(eq, map(_flags, tensors), self._flags))
        if self._devices is None:
            same_devices = all(map(_on_cpu, tensors))
        else:
            same_devices = all(map(eq, map(_device, tensors), self._devices))
        return (
            same_flags
            and same_devices
            and all(map(is_, map(type, tensors), self._kinds))
            and all(map(is_, map(_dtype, tensors), self._dtypes))
            and all(map(eq, map(_size, tensors), self._sizes))
            and all(map(eq, map(_stride, tensors), self._strides))
        )


def place(packed: Iterable[Packed]) -> list[TensorFacts]:
    """Return the facts with every tensor's place in the concatenation."""
    found: list[TensorFacts] = []
    offset = 0
    for name, shape, strides, device, flags in packed:
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype) or len(shape) != len(strides):
            raise StateError(f"a tensor of dtype {name!r} and shape {shape}: this torch has none such")
        stored = math.prod(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
        size = stored * dtype.itemsize if 0 not in shape else 0
        found.append(TensorFacts(dtype, tuple(shape), tuple(strides), device, flags, offset, size))
        offset += round_up(size, ALIGNMENT)
    return found


def total(facts: Sequence[TensorFacts]) -> int:
    """Return the bytes of the concatenation."""
    return round_up(facts[-1].offset + facts[-1].size, ALIGNMENT) if facts else 0


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of `tensor` (uint8, one dimension, on its device) as `TensorFacts.make` takes them.

    No copy of a dense tensor.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    if not tensor.is_contiguous() and not is_dense(tensor.shape, tensor.stride()):
        tensor = _once(tensor).contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the elements fill their memory, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if `one` can hold the very bits of `other`: same dtype, shape, strides and type of device."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.device.type == other.device.type
        and 0 not in one.stride()
    )


_wants, _flags = attrgetter("requires_grad"), attrgetter("requires_grad", "is_leaf")
_size, _stride = torch.Tensor.size, torch.Tensor.stride
_on_cpu, _device = attrgetter("is_cpu"), attrgetter("device.type")
_layout, _dtype = attrgetter("layout"), attrgetter("dtype")


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Return an expanded tensor without its repetitions, as a view."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor
