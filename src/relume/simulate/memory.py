"""The arena as symbols: what stands where, and the seals that say so. Every write is shown to the watchers.

Content is an expression and not a number, so that a sum of the wrong leaves, in the wrong order, of two steps, or of
something half written can be told from the right one. A gradient is a row of *cells*, which are written one by one: the
`pieces` of block 0, then those of block 1, and so on.

This models `arena.layout` and `reduce.seals`, whose numbers (RESULTS, SLOTS_EAGER, `slots_max`) are repeated here
because this layer lies below them; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.core.view import owner
from relume.wire.messages import View

RESULTS = 2
SLOTS_EAGER = 2

TORN = "half written"
"""Stands in a cell while it is being written."""

Seal = tuple[int, Range]


def slots_max(shards: int) -> int:
    """Return how many slots a worker has; as `arena.layout.slots_max`."""
    return max(SLOTS_EAGER, shards // 2 + 2)


class Kind(StrEnum):
    """The kinds of shared words."""

    CELL = "cell of a slot"
    SEAL = "seal of a slot"
    NOTE = "note"
    BUFFERS = "buffers"
    RESULT = "cell of a result"
    BLOCK = "seal of a block"
    TAKEN = "taken word"


class Write(NamedTuple):
    """One write: who, what kind, where, of which step, and what stood there before and stands there now."""

    rank: int
    kind: Kind
    place: tuple[int, ...]
    step: int
    before: Any
    after: Any


class Arena:
    """What outlives every worker of one host."""

    def __init__(self, workers: int, shards: int, blocks: int, pieces: int) -> None:
        self.workers, self.shards, self.blocks, self.pieces = workers, shards, blocks, pieces
        self.cells = blocks * pieces
        self.slots = slots_max(shards)
        self.seals: list[list[Seal | None]] = [[None] * self.slots for _ in range(workers)]
        self.content: list[list[list[Any]]] = [[[None] * self.cells for _ in range(self.slots)] for _ in range(workers)]
        self.notes: list[list[Any]] = [[None] * shards for _ in range(RESULTS)]
        self.buffers: list[Any] = [None] * RESULTS
        self.results: list[list[Any]] = [[None] * self.cells for _ in range(RESULTS)]
        self.block_seals: list[list[int]] = [[-1] * blocks for _ in range(RESULTS)]
        self.taken = [-1] * workers
        self.watchers: dict[Kind, list[Callable[[Write], None]]] = {kind: [] for kind in Kind}

    # Reading ------------------------------------------------------------------------------------------------

    def complete(self, step: int) -> bool:
        """Return whether every block of `step` is sealed."""
        return all(seal == step for seal in self.block_seals[step % RESULTS])

    def sealed(self, step: int) -> Iterator[tuple[int, int, Range]]:
        """Yield (rank, slot, node) for every sealed node of `step`."""
        for rank, seals in enumerate(self.seals):
            for slot, seal in enumerate(seals):
                if seal is not None and seal[0] == step:
                    yield rank, slot, seal[1]

    def newest_complete(self) -> int:
        """Return the newest complete step, or -1."""
        steps = {seal for seals in self.block_seals for seal in seals if seal >= 0}
        return max((step for step in steps if self.complete(step)), default=-1)

    def inventory(self) -> Inventory:
        """Read the seals, as the agent does."""
        complete = self.newest_complete()
        sealed: dict[int, list[Range]] = {}
        for rank, _, node in self.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        return Inventory(complete, sealed)

    def owned(self, view: View, rank: int) -> list[int]:
        """Return the blocks that `rank` sums under `view`."""
        return [block for block in range(self.blocks) if owner(view, block, self.blocks) == rank]

    # Writing ------------------------------------------------------------------------------------------------

    def fill(self, rank: int, slot: int, cell: int, step: int, value: object) -> None:
        """Write one cell of an own slot."""
        cells = self.content[rank][slot]
        self._wrote(Write(rank, Kind.CELL, (rank, slot, cell), step, cells[cell], value))
        cells[cell] = value

    def seal(self, rank: int, slot: int, seal: Seal | None, step: int) -> None:
        """Seal or (None) unseal an own slot."""
        seals = self.seals[rank]
        self._wrote(Write(rank, Kind.SEAL, (rank, slot), step, seals[slot], seal))
        seals[slot] = seal

    def note(self, rank: int, shard: int, step: int, value: object) -> None:
        """Write the note of a shard."""
        notes = self.notes[step % RESULTS]
        self._wrote(Write(rank, Kind.NOTE, (step % RESULTS, shard), step, notes[shard], value))
        notes[shard] = value

    def store_buffers(self, rank: int, step: int, value: object) -> None:
        """Write the buffers that shard 0 leaves."""
        self._wrote(Write(rank, Kind.BUFFERS, (step % RESULTS,), step, self.buffers[step % RESULTS], value))
        self.buffers[step % RESULTS] = value

    def put(self, rank: int, step: int, cell: int, value: object) -> None:
        """Write one cell of the result of `step`."""
        cells = self.results[step % RESULTS]
        self._wrote(Write(rank, Kind.RESULT, (step % RESULTS, cell), step, cells[cell], value))
        cells[cell] = value

    def seal_block(self, rank: int, step: int, block: int) -> None:
        """Say that a block of the result of `step` is whole."""
        seals = self.block_seals[step % RESULTS]
        before, seals[block] = seals[block], step  # a watcher sees the step complete
        self._wrote(Write(rank, Kind.BLOCK, (step % RESULTS, block), step, before, step))

    def take(self, rank: int, step: int, copy: object) -> None:
        """Say that `step` is copied out. `copy` is what was read: (cells, notes, buffers)."""
        self._wrote(Write(rank, Kind.TAKEN, (rank,), step, self.taken[rank], copy))
        self.taken[rank] = step

    def _wrote(self, write: Write) -> None:
        for watcher in self.watchers[write.kind]:
            watcher(write)
