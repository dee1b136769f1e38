"""One generation of the mirror: its words in the control part, its memfd, and what makes it whole.

Of every chunk there are a *seal* and a digest. The seal is step + 1 once the chunk is whole: it names its content,
never who wrote it (Invariant 3). Before the first byte it is replaced by a *claim*, a random number with the top bit
set, so that readers see the old content go, and so that a writer whose chunk has passed to somebody else sees that too.
At any time one worker at most writes a chunk and its words (rule 1).

A reader trusts nothing: it copies with `pread`, which cannot fault, compares digests, and looks at the words again.

This module does not know who writes which chunk, nor what the bytes mean.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading

import numpy as np
import torch
import xxhash

from relume.arena import memory
from relume.arena.layout import PAGE, round_up
from relume.errors import MemoryShortage, StateError
from relume.state.area import Area, Bytes, chunk_bounds, empty_memory, pieces
from relume.state.facts import total
from relume.state.seen import CHUNKS, CLAIM, DIGESTS, NANOSECONDS, SKELETON, SKELETON_BYTES, TENSOR_BYTES, Seen, Words
from relume.state.tree import facts

_IOV_MAX = 512


class Torn(Exception):
    """The generation was rewritten while it was read. Never leaves `relume.state`."""


class Corrupt(Exception):
    """The generation is sealed, and is not what its digests say. Never leaves `relume.state`."""


def skeleton_start(tensor_bytes: int) -> int:
    """Return where the skeleton stands in the memfd."""
    return round_up(tensor_bytes, PAGE)


class Generation:
    """`words`: this generation's part of the control words; `descriptor`: its memfd."""

    def __init__(self, words: Words, descriptor: int) -> None:
        self._words = words
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._bytes: Bytes = np.empty(0, dtype=np.uint8)
        self._fence = threading.Lock()

    def look(self) -> Seen:
        """Return the words as they stand."""
        return Seen(self._words.copy())

    @property
    def host_bytes(self) -> int:
        """Bytes of memory that it takes on this host."""
        return os.fstat(self._descriptor).st_blocks * 512

    # Writing ------------------------------------------------------------------------------------------------

    def make_room(self, size: int) -> Bytes:
        """Return at least `size` bytes of the memfd, mapped. Raises `MemoryShortage`, having changed nothing."""
        status = os.fstat(self._descriptor)
        if status.st_size < size:
            # Others may be at the same: what they have allocated by now is missing in what is available.
            missing, available = size - status.st_blocks * 512, memory.available_bytes()
            if missing + memory.HEADROOM > available:
                raise MemoryShortage(_shortage(size, missing, available))
            try:
                os.posix_fallocate(self._descriptor, 0, size)
            except OSError as error:
                raise MemoryShortage(_shortage(size, missing, available)) from error
        if len(self._bytes) < size:
            self._bytes = np.empty(0, dtype=np.uint8)
            if self._map is not None:
                self._map.close()
            self._map = memory.attach(self._descriptor, os.fstat(self._descriptor).st_size, "mirror")
            self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        return self._bytes

    def claim(self, chunk: int, step: int) -> int | None:
        """Say that `chunk` is being written, under the pen; None if it is sealed for `step` already."""
        if int(self._words[chunk]) == step + 1:
            return None
        claim = CLAIM | secrets.randbits(63)
        self._words[chunk] = claim
        return claim

    def holds(self, chunk: int, claim: int) -> bool:
        """True while nobody else has claimed `chunk`."""
        return int(self._words[chunk]) == claim

    def seal(self, chunk: int, step: int, digest: int) -> None:
        """Say that `chunk` is whole, under the pen. What concerns it must be there before."""
        self._words[DIGESTS + chunk] = digest
        self._words[chunk] = step + 1

    def tell_skeleton(self, size: int) -> None:
        """Note the skeleton's length, before its seal."""
        self._words[SKELETON_BYTES] = size

    def tell_tensors(self, size: int, chunks: int, nanoseconds: int) -> None:
        """Note what concerns all tensors, before the seal of chunk 0."""
        self._words[TENSOR_BYTES], self._words[CHUNKS], self._words[NANOSECONDS] = size, chunks, nanoseconds

    # Reading ------------------------------------------------------------------------------------------------

    def read(self, seen: Seen) -> tuple[bytes, list[torch.Tensor]]:
        """Return the skeleton and the tensors, in private memory and verified. Raises `Torn` or `Corrupt`."""
        try:
            found = self._read(seen)
        except Corrupt:
            self._look_again(seen)
            raise
        self._look_again(seen)
        return found

    def _read(self, seen: Seen) -> tuple[bytes, list[torch.Tensor]]:
        start, size = skeleton_start(seen.tensor_bytes), os.fstat(self._descriptor).st_size
        bounds = chunk_bounds(min(seen.tensor_bytes, size))
        if start + seen.skeleton_bytes > size or len(bounds) != seen.chunks:
            raise Corrupt("what it says of its size cannot be")
        skeleton = os.pread(self._descriptor, seen.skeleton_bytes, start)
        if xxhash.xxh3_64_intdigest(skeleton) != seen.chunk_digest(SKELETON):
            raise Corrupt("the digest of its skeleton differs")
        try:
            about = facts(skeleton)
        except StateError as error:
            raise Corrupt(str(error)) from error
        if total(about) != seen.tensor_bytes:
            raise Corrupt("its skeleton is of other tensors")
        parts = empty_memory(about)
        arrays = [part.numpy() for part in parts]
        area = Area(about, arrays.__getitem__)
        for chunk, (begin, end) in enumerate(bounds):
            hasher = xxhash.xxh3_64()
            for piece in pieces(begin, end):
                self._fill(area, *piece, hasher)
            if hasher.intdigest() != seen.chunk_digest(chunk):
                raise Corrupt(f"the digest of its chunk {chunk} differs")
        return skeleton, [fact.make(part) for fact, part in zip(about, parts, strict=True)]

    def _fill(self, area: Area, start: int, end: int, hasher: xxhash.xxh3_64) -> None:
        spans = list(area.spans(start, end))
        for first in range(0, len(spans), _IOV_MAX):
            some = spans[first : first + _IOV_MAX]
            wanted = sum(map(len, some))
            if os.preadv(self._descriptor, [span.data for span in some], start) != wanted:
                raise Corrupt("it is cut short")
            start += wanted
        for span in spans:
            hasher.update(span.data)

    def _look_again(self, seen: Seen) -> None:
        with self._fence:
            pass  # on a weakly ordered machine: the copy is made before the words are looked at again (rule 1)
        if not np.array_equal(self._words, seen.words):
            raise Torn


def _shortage(size: int, missing: int, available: int) -> str:
    return (
        f"the mirror needs {memory.mib(missing)} more and {memory.mib(available)} are available on this host, "
        f"{memory.mib(memory.HEADROOM)} of them for others: the protected state is {memory.mib(size)}, and two "
        "generations of it are kept. Use fewer workers on this host (--workers: two gradients less for each), more "
        "frequent mirrors (a smaller --mirror-every keeps fewer results), or go without the mirror (--mirror-every 0): "
        "lost workers then do not come back"
    )
