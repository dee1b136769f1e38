"""The words of a generation of the mirror, as they stood at one moment. Without torch: the agent reads them too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from relume.arena.layout import MIRROR_CHUNKS, MIRROR_WORDS, MIRRORS, ControlLayout

SKELETON = MIRROR_CHUNKS
"""The skeleton's chunk comes after those of the tensors."""
DIGESTS = MIRROR_CHUNKS + 1
TENSOR_BYTES, SKELETON_BYTES, CHUNKS, NANOSECONDS = range(2 * DIGESTS, 2 * DIGESTS + 4)
"""Words about the whole: the skeleton's length is written with its seal, the others with the seal of chunk 0."""

CLAIM = 1 << 63
"""A chunk that is being written has a random number with this bit for a seal."""

Words = npt.NDArray[np.uint64]


def generations(words: memoryview, layout: ControlLayout) -> list[Words]:
    """Return the words of each generation, as they change."""
    everything: Words = np.frombuffer(words, dtype=np.uint64)
    return [everything[layout.mirror(index) :][:MIRROR_WORDS] for index in range(MIRRORS)]


@dataclass(frozen=True, slots=True)
class Seen:
    """The words of a generation, as they stood at one moment."""

    words: Words

    @property
    def chunks(self) -> int:
        """Chunks of tensors."""
        return int(self.words[CHUNKS])

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors, with what lies between them."""
        return int(self.words[TENSOR_BYTES])

    @property
    def skeleton_bytes(self) -> int:
        """Bytes of the skeleton."""
        return int(self.words[SKELETON_BYTES])

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return self.tensor_bytes + self.skeleton_bytes

    @property
    def nanoseconds(self) -> int:
        """How long the owner of chunk 0, who also writes the skeleton, took until it had sealed that chunk."""
        return int(self.words[NANOSECONDS])

    @property
    def step(self) -> int | None:
        """The step of which this is the mirror, None if it is not whole."""
        first = int(self.words[0])
        if not 1 <= self.chunks <= MIRROR_CHUNKS or not 0 < first < CLAIM or int(self.words[SKELETON]) != first:
            return None
        return first - 1 if bool((self.words[: self.chunks] == first).all()) else None

    def chunk_digest(self, chunk: int) -> int:
        """Return what the writer of `chunk` found its bytes' digest to be."""
        return int(self.words[DIGESTS + chunk])

    @property
    def digest(self) -> str:
        """One digest of the whole."""
        return combine(self.tensor_bytes, map(self.chunk_digest, range(self.chunks)), self.chunk_digest(SKELETON))


def combine(tensor_bytes: int, chunks: Iterable[int], skeleton: int) -> str:
    """Return one digest, sixteen hexadecimal digits, of those of all chunks."""
    return xxhash.xxh3_64_hexdigest(np.array([tensor_bytes, *chunks, skeleton], dtype=np.uint64).tobytes())
