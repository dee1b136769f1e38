"""Where everything stands in the arena: offsets computed once, alike in the agent and in every worker.

The arena has two parts. The *control* part exists from the start: per worker a progress block, seals of its slots
and a flight recorder; and the seals of the blocks. The *data* part is made when the workers have told what they
protect: results, buffers, leaf notes, and every worker's slots.

This module knows sizes and offsets, not memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.core.ranges import SHARDS_MAX
from relume.wire.messages import Shape

WORD = 8
PAGE = 4096
ALIGNMENT = 128
"""Slot and result views, and blocks, start on this. MKL's bits depend on alignment to 64 (DESIGN.md); twice that keeps
any cut through a half-precision parameter at whole vectors of torch's loop (`GradientLayout.spans`)."""

SLOTS_EAGER = 2
SLOT_WORDS = SHARDS_MAX // 2 + 2
BLOCKS_MAX = 64
BLOCK_BYTES_MIN = 64 << 10
RESULTS = 2
"""Results kept without a mirror. Rule 6 would do with one; with two a slow member copies while the next is summed."""
KEPT_BEYOND = 4
"""With a mirror every K steps, K + 4 results are kept: K to reach the next mirror, two until a mirror that a death cut
short is written again, and two for whoever reads an old one while the next is under way."""
MIRRORS = 2
"""Generations of the mirror: a death in the middle of writing one leaves the other whole."""
MIRROR_CHUNKS = 64
"""Tensors are mirrored in so many chunks at most, each by one worker; one more holds what is no tensor."""
NOTE_LOG_BYTES = 4096
"""Room for what one shard logs."""

HEADER_WORDS = 8
PROGRESS_WORDS = 24
OPEN_WORDS = 4
"""What is whole of the leaf that a worker is at (`reduce.opened`)."""
RECORDER_ENTRIES = 512
RECORDER_ENTRY_WORDS = 4
MIRROR_WORDS = 2 * (MIRROR_CHUNKS + 1) + 6
"""A seal and a digest per chunk, and a few words about the whole."""
_WORKER_WORDS = PROGRESS_WORDS + SLOT_WORDS + OPEN_WORDS + RECORDER_ENTRIES * RECORDER_ENTRY_WORDS


def round_up(size: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class ControlLayout:
    """The control part for `workers` seats; all offsets are in words of eight bytes. `kept`: results in the ring."""

    workers: int
    kept: int = RESULTS

    def progress(self, rank: int) -> int:
        """Return where the progress block of `rank` starts."""
        return self.mirror(MIRRORS) + rank * _WORKER_WORDS

    def mirror(self, generation: int) -> int:
        """Return where the words of a generation of the mirror start."""
        return HEADER_WORDS + self.kept * BLOCKS_MAX + generation * MIRROR_WORDS

    def seals(self, rank: int) -> int:
        """Return where the slot seals of `rank` start."""
        return self.progress(rank) + PROGRESS_WORDS

    def opened(self, rank: int) -> int:
        """Return where the words about the leaf that `rank` is at start."""
        return self.seals(rank) + SLOT_WORDS

    def recorder(self, rank: int) -> int:
        """Return where the flight recorder of `rank` starts."""
        return self.opened(rank) + OPEN_WORDS

    def blocks(self, result: int) -> int:
        """Return where the block seals of result buffer `result` start."""
        return HEADER_WORDS + result * BLOCKS_MAX

    @property
    def size(self) -> int:
        """Bytes, in whole pages."""
        return round_up(self.progress(self.workers) * WORD, PAGE)


def slots_max(shards: int) -> int:
    """Return for how many slots a worker has address space.

    A contiguous range needs at most 2 log2 S (DESIGN.md). What a worker inherits from several dead ones in one step
    may be scattered; half of the shards is then the worst that does not merge. Slots take memory when first used.
    """
    return max(SLOTS_EAGER, shards // 2 + 2)


def block_bounds(gradient_bytes: int) -> list[tuple[int, int]]:
    """Return the blocks as byte ranges: fixed for the run (rule 2), at least 64 KiB, at most 64 of them."""
    size = max(BLOCK_BYTES_MIN, round_up(-(-gradient_bytes // BLOCKS_MAX), ALIGNMENT))
    starts = range(0, max(gradient_bytes, 1), size)
    return [(start, min(start + size, gradient_bytes)) for start in starts]


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The data part for `workers` seats; all offsets are in bytes and on page boundaries."""

    shape: Shape
    workers: int
    kept: int = RESULTS

    def __post_init__(self) -> None:
        if not 1 <= self.shape.shards <= SHARDS_MAX:
            raise ValueError(f"{self.shape.shards} shards: between 1 and {SHARDS_MAX} are possible")

    @property
    def gradient_size(self) -> int:
        """Bytes of one gradient, in whole pages."""
        return round_up(max(self.shape.gradient_bytes, 1), PAGE)

    @property
    def buffers_size(self) -> int:
        """Bytes of all buffers of the protected modules, in whole pages."""
        return round_up(max(self.shape.buffer_bytes, 1), PAGE)

    @property
    def note_size(self) -> int:
        """Bytes of one leaf's note: seal, weight, factor, length of its logs, presence bits, logs."""
        return round_up(4 * WORD + -(-self.shape.parameters // 8) + NOTE_LOG_BYTES, WORD)

    def result(self, index: int) -> int:
        """Return where result buffer `index` starts."""
        return index * self.gradient_size

    def buffers(self, index: int) -> int:
        """Return where the buffers that belong to result `index` start."""
        return self.kept * self.gradient_size + index * self.buffers_size

    def note(self, index: int, shard: int) -> int:
        """Return where the note of `shard` for result `index` starts."""
        notes = self.kept * (self.gradient_size + self.buffers_size)
        return notes + (index * self.shape.shards + shard) * self.note_size

    @property
    def slots_start(self) -> int:
        """Where the slots start, after all that is shared."""
        return round_up(self.note(self.kept, 0), PAGE)

    def slot(self, rank: int, index: int) -> int:
        """Return where slot `index` of `rank` starts."""
        return self.slots_start + (rank * slots_max(self.shape.shards) + index) * self.gradient_size

    @property
    def size(self) -> int:
        """Bytes of address space; slots beyond the eager ones take memory only when they are first used."""
        return self.slot(self.workers, 0)

    def eager_bytes(self, seats: int) -> int:
        """Bytes that are allocated at the start, when so many seats are taken."""
        return self.slots_start + seats * SLOTS_EAGER * self.gradient_size
