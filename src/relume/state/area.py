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
SMALL_BYTES = 16 << 10
"""A larger tensor is copied faster than it is looked up."""

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


class LiveArea(Area):
    """The area over live tensors, which must not change between `over` and `let_go`.

    Thousands of small tensors take their time one by one. Those side by side are gathered into one piece of memory, and
    where each of them lies is remembered for the next time.
    """

    def __init__(self, facts: Sequence[TensorFacts]) -> None:
        super().__init__(facts, self._no_memory)
        self._bounds = [*self._starts, self.size]
        sized = [facts[index] for index in self._indices]
        small = [about.size <= SMALL_BYTES and about.device == "cpu" for about in sized]
        self._run_ends = _run_ends(small)
        gaps = (end - about.offset - about.size for about, end in zip(sized, self._bounds[1:], strict=True))
        self._views = [view for gap in gaps for view in (_NOTHING, _ZEROS.data[:gap])]
        self._pointers = [_NOWHERE] * len(small)
        self._sized: list[torch.Tensor] = []

    def over(self, tensors: Sequence[torch.Tensor]) -> LiveArea:
        """Return this area, now over `tensors`, which are of its facts."""

        @lru_cache(maxsize=1)  # a tensor that is cut into several pieces is not copied for each
        def memory(index: int) -> Bytes | torch.Tensor:
            raw = stored(tensors[index])
            return raw.numpy() if raw.device.type == "cpu" else raw

        self._memory = memory
        self._sized = [tensors[index] for index in self._indices]
        return self

    def let_go(self) -> None:
        """Keep no tensor alive, but for the memory of small ones."""
        self._memory = self._no_memory
        self._sized = []

    def spans(self, start: int, end: int) -> Iterator[Bytes]:
        """Do what `Area.spans` does, with fewer pieces."""
        while start < end:
            place = bisect_right(self._starts, start) - 1
            last = min(self._run_ends[place], bisect_right(self._bounds, end) - 1)
            if self._bounds[place] == start and place + 1 < last:
                yield self._gathered(place, last)
                start = self._bounds[last]
            else:
                stop = min(end, self._bounds[place + 1])
                yield from super().spans(start, stop)
                start = stop

    def _gathered(self, first: int, last: int) -> Bytes:
        """Return a copy of the bytes of some places, with what lies between them."""
        tensors, known = self._sized[first:last], self._pointers[first:last]
        pointers = [*map(torch.Tensor.data_ptr, tensors)]
        if pointers != known:
            for place, (tensor, now, before) in enumerate(zip(tensors, pointers, known, strict=True), first):
                if now != before:
                    self._look_at(place, tensor)
        return np.frombuffer(b"".join(self._views[2 * first : 2 * last]), dtype=np.uint8)

    def _look_at(self, place: int, tensor: torch.Tensor) -> None:
        """Remember where a tensor lies. The view keeps that memory, so that no other can come to lie there.

        Not where its bytes are more than what lies there: of a conjugate, say, or of the imaginary part of one.
        """
        raw = stored(tensor)
        simple = raw.data_ptr() == tensor.data_ptr() and not tensor.is_complex() and not tensor.is_neg()
        whole = tensor.numel() > 1 or tensor.untyped_storage().nbytes() == len(raw)
        self._views[2 * place] = raw.numpy().data
        self._pointers[place] = tensor.data_ptr() if simple and whole else _NOWHERE

    @staticmethod
    def _no_memory(index: int) -> Bytes | torch.Tensor:
        raise AssertionError(f"the area is over no tensors now: it was asked for number {index}")


def _run_ends(small: Sequence[bool]) -> list[int]:
    """Return for every place where the run of small ones that it is in ends: itself, if it is none."""
    ends = [*range(len(small))]
    end = len(small)
    for place in reversed(range(len(small))):
        if not small[place]:
            end = place
        ends[place] = end
    return ends


def empty_memory(facts: Sequence[TensorFacts]) -> list[torch.Tensor]:
    """Return private memory to be read into; `TensorFacts.make` makes the tensors of it afterwards."""
    return [torch.empty(round_up(about.size, ALIGNMENT), dtype=torch.uint8) for about in facts]


_NOWHERE = -1
_NOTHING = memoryview(b"")
_ZEROS = np.zeros(ALIGNMENT, dtype=np.uint8)
_ZEROS.setflags(write=False)
