"""Tensors side by side: one stretch of bytes in which each starts at a multiple of 128, cut into chunks.

A chunk is a byte range of the whole, wherever that cuts a tensor, so that workers share the writing evenly. An `Area`
is a list of pieces of memory that together are that stretch: it can be copied from, copied into, and digested, without
ever being one piece.

This module does not know where the bytes are kept, nor what they mean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from relume.arena.layout import ALIGNMENT, MIRROR_CHUNKS, round_up
from relume.state.facts import TensorFacts, stored, total

CHUNK_BYTES_MIN = 256 << 10
PIECE_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]


def chunk_bounds(size: int) -> list[tuple[int, int]]:
    """Return the chunks of an area of `size` bytes: at least one, at most 64, of at least 256 KiB."""
    step = max(CHUNK_BYTES_MIN, round_up(-(-size // MIRROR_CHUNKS), ALIGNMENT))
    return [(start, min(start + step, size)) for start in range(0, max(size, 1), step)]


def pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a byte range into what is copied at once."""
    for at in range(start, end, PIECE_BYTES):
        yield at, min(at + PIECE_BYTES, end)


class Area:
    """The stretch of bytes that `facts` lay out, over the tensors' own memory.

    `memory` returns that of a tensor (uint8: an array, or a tensor on a device), which may end where the tensor ends or
    be filled up to where the next begins. It is asked only for tensors whose bytes are wanted.
    """

    def __init__(self, facts: Sequence[TensorFacts], memory: Callable[[int], Bytes | torch.Tensor]) -> None:
        self.size = total(facts)
        self._indices = [index for index, about in enumerate(facts) if about.size]
        self._starts = [about.offset for about in facts if about.size]
        self._memory = memory

    def spans(self, start: int, end: int) -> Iterator[Bytes]:
        """Yield the memory of the bytes from `start` to `end`, piece by piece (a copy where it is on a device)."""
        place = bisect_right(self._starts, start) - 1
        while start < end:
            part, first = self._memory(self._indices[place]), self._starts[place]
            place += 1
            following = self._starts[place] if place < len(self._starts) else self.size
            if start < first + len(part):
                cut = part[start - first : end - first]
                start += len(cut)
                yield cut.cpu().numpy() if isinstance(cut, torch.Tensor) else cut
            if gap := min(end, following) - start:
                start += gap
                yield _ZEROS[:gap]

    def digest(self, start: int, end: int) -> int:
        """Return XXH3 (64 bits) of the bytes from `start` to `end`."""
        hasher = xxhash.xxh3_64()
        for span in self.spans(start, end):
            hasher.update(span.data)
        return hasher.intdigest()


def area_of(facts: Sequence[TensorFacts], tensors: Sequence[torch.Tensor]) -> Area:
    """Return the area over live tensors, which must not change while it is used."""

    @lru_cache(maxsize=1)  # a tensor that is cut into several pieces is not copied for each
    def memory(index: int) -> Bytes | torch.Tensor:
        raw = stored(tensors[index])
        return raw.numpy() if raw.device.type == "cpu" else raw

    return Area(facts, memory)


def empty_memory(facts: Sequence[TensorFacts]) -> list[torch.Tensor]:
    """Return private memory to be read into; `TensorFacts.make` makes the tensors of it afterwards."""
    return [torch.empty(round_up(about.size, ALIGNMENT), dtype=torch.uint8) for about in facts]


_ZEROS = np.zeros(ALIGNMENT, dtype=np.uint8)
_ZEROS.setflags(write=False)
