"""Where each parameter's gradient stands within one gradient's bytes.

Slot and result views have the *parameter's strides* and start on 128 bytes: fused CPU optimizers are silently wrong
when gradient and parameter strides differ, and MKL's bits depend on alignment. Parameters of one dtype stand
together, so that a block is summed in a few long pieces. Padding belongs to nobody; whatever it holds is added and
divided like the rest and never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from relume.arena.layout import ALIGNMENT, round_up

SMALL_BYTES = 32 << 10
"""Up to here it costs more to find a parameter's place than to write it twice (see `train.leaf`)."""

_SMALL_DTYPES = (torch.float32, torch.float64)
"""Adding to -0.0 gives back every bit of these, NaNs too. Half precision goes through another type on the way."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter: `offset` and `size` are bytes within the gradient."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    size: int
    small: bool

    @property
    def end(self) -> int:
        """One past the parameter's last byte."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of entries of one dtype, padding included, as a byte range."""

    dtype: torch.dtype
    start: int
    end: int


class GradientLayout:
    """The layout for a list of named parameters: by dtype, the small ones last, else in their order.

    `order[i]` is the place of entry i in that list.
    """

    def __init__(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        dtypes = list(dict.fromkeys(parameter.dtype for _, parameter in parameters))
        places = [i for dtype in dtypes for i, (_, p) in enumerate(parameters) if p.dtype == dtype]
        small = [_is_small(parameter) for _, parameter in parameters]
        self.order = sorted(places, key=lambda i: (dtypes.index(parameters[i][1].dtype), small[i]))
        self.entries: list[Entry] = []
        offset = 0
        for index in self.order:
            name, parameter = parameters[index]
            size = parameter.numel() * parameter.element_size()
            entry = Entry(name, parameter.dtype, parameter.shape, dense_strides(parameter), offset, size, small[index])
            self.entries.append(entry)
            offset += round_up(size, ALIGNMENT)
        self.size = offset
        self.runs = [
            Run(dtype, members[0].offset, members[-1].offset + round_up(members[-1].size, ALIGNMENT))
            for dtype, group in groupby(self.entries, key=lambda entry: entry.dtype)
            if (members := list(group))
        ]

    def spans(self) -> Iterator[Run]:
        """Yield the byte ranges that may be added flat when every parameter is present.

        Single and double precision: a whole run, padding included. Half precision: each parameter by itself, because
        torch's vector loop and the scalar loop that does its last elements turn a NaN into different bits, so that
        the result would depend on where a flat range happens to end (Invariant 1).
        """
        for run in self.runs:
            if run.dtype.itemsize > 2:
                yield run
        for entry in self.entries:
            if entry.dtype.itemsize <= 2:
                yield Run(entry.dtype, entry.offset, entry.end)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return one view per entry into `memory`, `size` bytes as uint8, with the parameters' strides.

        Each has a version of its own (`Tensor._version`), so that it can be told whether it was written to.
        """
        storage, start = memory.untyped_storage(), memory.storage_offset()
        return [
            torch.empty(0, dtype=entry.dtype).set_(
                storage, (start + entry.offset) // entry.dtype.itemsize, entry.shape, entry.strides
            )
            for entry in self.entries
        ]

    def small(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the stretches of `memory` in which the small parameters stand, one per dtype that has any."""
        stretches = []
        for dtype, group in groupby((entry for entry in self.entries if entry.small), key=lambda entry: entry.dtype):
            members = list(group)
            stretches.append(memory[members[0].offset : members[-1].end].view(dtype))
        return stretches


def _is_small(parameter: torch.Tensor) -> bool:
    size = parameter.numel() * parameter.element_size()
    return size <= SMALL_BYTES and parameter.dtype in _SMALL_DTYPES and parameter.device.type == "cpu"


def dense_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that autograd gives the gradient: the parameter's if it is dense, else contiguous ones."""
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(parameter.stride(), parameter.shape, strict=True) if n > 1):
        if stride != expected:
            return tuple(torch.empty(parameter.shape, device="meta").stride())
        expected *= size
    return tuple(parameter.stride())
