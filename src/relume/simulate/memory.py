"""The arena as symbols: what stands where, and the seals that say so. Every write is shown to the watchers.

Content is an expression and not a number, so that a sum of the wrong leaves, in the wrong order, of two steps, or of
something half written can be told from the right one. A gradient is a row of *cells*, which are written one by one: the
`pieces` of block 0, then those of block 1, and so on. Results, notes and buffers stand in a ring of `kept`.

This models `arena.layout`, `reduce.seals` and `reduce.notes`, whose numbers (RESULTS, KEPT_BEYOND, SLOTS_EAGER,
`slots_max`) are repeated here because this layer lies below them; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.core.view import owner
from relume.simulate.generations import Generation, Piece
from relume.wire.messages import View

RESULTS = 2
KEPT_BEYOND = 4
SLOTS_EAGER = 2
MIRRORS = 2

TORN = "half written"
"""Stands in a cell while it is being written."""
UNSEALED = -1

Seal = tuple[int, Range]


def slots_max(shards: int) -> int:
    """Return how many slots a worker has; as `arena.layout.slots_max`."""
    return max(SLOTS_EAGER, shards // 2 + 2)


def kept_with(every: int) -> int:
    """Return how many results are kept with a mirror every so many steps (0: none); as `agent.arena`."""
    return every + KEPT_BEYOND if every else RESULTS


class Who(NamedTuple):
    """A process: one life of a rank."""

    rank: int
    life: int


class Kind(StrEnum):
    """The kinds of shared words."""

    CELL = "cell of a slot"
    SEAL = "seal of a slot"
    NOTE = "note"
    NOTE_SEAL = "seal of a note"
    BUFFERS = "buffers"
    RESULT = "cell of a result"
    UNSEAL = "seal of a block, taken away"
    BLOCK = "seal of a block"
    TAKEN = "taken word"
    LOADED = "taken word, after loading"
    CLAIM = "claim on a chunk of the mirror"
    MIRROR = "piece of the mirror"
    CHUNK = "seal of a chunk of the mirror"


class Write(NamedTuple):
    """One write: who, what kind, where, of which step, and what stood there before and stands there now."""

    who: Who
    kind: Kind
    place: tuple[int, ...]
    step: int
    before: Any
    after: Any

    @property
    def rank(self) -> int:
        """The writer's rank."""
        return self.who.rank


class Shape(NamedTuple):
    """What decides how much there is in an arena."""

    seats: int
    shards: int
    blocks: int
    pieces: int
    kept: int = RESULTS
    chunks: int = 1


class Arena:
    """What outlives every worker of one host. `base`: the run began with this step, as far as the arena knows."""

    def __init__(self, shape: Shape, base: int = 0) -> None:
        self.seats, self.shards, self.blocks, self.pieces, self.kept, self.chunks = shape
        self.base = base
        self.cells = self.blocks * self.pieces
        self.slots = slots_max(self.shards)
        seats, slots = range(self.seats), range(self.slots)
        self.seals: list[list[Seal | None]] = [[None] * self.slots for _ in seats]
        self.content: list[list[list[Any]]] = [[[None] * self.cells for _ in slots] for _ in seats]
        self.notes: list[list[Any]] = [[None] * self.shards for _ in range(self.kept)]
        self.note_seals: list[list[int]] = [[UNSEALED] * self.shards for _ in range(self.kept)]
        self.buffers: list[Any] = [None] * self.kept
        self.results: list[list[Any]] = [[None] * self.cells for _ in range(self.kept)]
        self.block_seals: list[list[int]] = [[UNSEALED] * self.blocks for _ in range(self.kept)]
        self.taken = [-1] * self.seats
        self.mirrors = [Generation(self.chunks) for _ in range(MIRRORS)]
        self.watchers: dict[Kind, list[Callable[[Write], None]]] = {kind: [] for kind in Kind}

    # Reading ------------------------------------------------------------------------------------------------

    def complete(self, step: int) -> bool:
        """Return whether every block of `step` is sealed."""
        return all(seal == step for seal in self.block_seals[step % self.kept])

    def whole(self, step: int) -> bool:
        """Return whether all that `step` left stands here: for those who replay."""
        return self.complete(step) and all(seal == step for seal in self.note_seals[step % self.kept])

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

    def inventory(self, ranks: Sequence[int] = ()) -> Inventory:
        """Read the seals, as the agent does, and what `ranks` have taken."""
        complete = max(self.newest_complete(), self.base - 1)
        sealed: dict[int, list[Range]] = {}
        for rank, _, node in self.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        return Inventory(complete, sealed, {rank: self.taken[rank] for rank in ranks})

    def owned(self, view: View, rank: int) -> list[int]:
        """Return the blocks that `rank` sums under `view`."""
        return [block for block in range(self.blocks) if owner(view, block, self.blocks) == rank]

    # Writing ------------------------------------------------------------------------------------------------

    def begin_life(self, rank: int) -> None:
        """A new process has the seat: its progress block begins with zeros."""
        self.taken[rank] = -1

    def fill(self, who: Who, slot: int, cell: int, step: int, value: object) -> None:
        """Write one cell of an own slot."""
        cells = self.content[who.rank][slot]
        self._wrote(Write(who, Kind.CELL, (who.rank, slot, cell), step, cells[cell], value))
        cells[cell] = value

    def seal(self, who: Who, slot: int, seal: Seal | None, step: int) -> None:
        """Seal or (None) unseal an own slot."""
        seals = self.seals[who.rank]
        self._wrote(Write(who, Kind.SEAL, (who.rank, slot), step, seals[slot], seal))
        seals[slot] = seal

    def note(self, who: Who, shard: int, step: int, value: object) -> None:
        """Write the note of a shard."""
        notes = self.notes[step % self.kept]
        self._wrote(Write(who, Kind.NOTE, (step % self.kept, shard), step, notes[shard], value))
        notes[shard] = value

    def seal_note(self, who: Who, shard: int, step: int, seal: int) -> None:
        """Seal (`seal` is the step) or unseal the note of a shard, and with shard 0's the buffers."""
        seals = self.note_seals[step % self.kept]
        self._wrote(Write(who, Kind.NOTE_SEAL, (step % self.kept, shard), step, seals[shard], seal))
        seals[shard] = seal

    def store_buffers(self, who: Who, step: int, value: object) -> None:
        """Write the buffers that shard 0 leaves."""
        self._wrote(Write(who, Kind.BUFFERS, (step % self.kept,), step, self.buffers[step % self.kept], value))
        self.buffers[step % self.kept] = value

    def put(self, who: Who, step: int, cell: int, value: object) -> None:
        """Write one cell of the result of `step`."""
        cells = self.results[step % self.kept]
        self._wrote(Write(who, Kind.RESULT, (step % self.kept, cell), step, cells[cell], value))
        cells[cell] = value

    def unseal_block(self, who: Who, step: int, block: int) -> None:
        """Say that a block is about to be written for `step`: what stands there is old."""
        seals = self.block_seals[step % self.kept]
        self._wrote(Write(who, Kind.UNSEAL, (step % self.kept, block), step, seals[block], UNSEALED))
        seals[block] = UNSEALED

    def seal_block(self, who: Who, step: int, block: int) -> None:
        """Say that a block of the result of `step` is whole."""
        seals = self.block_seals[step % self.kept]
        before, seals[block] = seals[block], step  # a watcher sees the step complete
        self._wrote(Write(who, Kind.BLOCK, (step % self.kept, block), step, before, step))

    def take(self, who: Who, step: int, copy: object) -> None:
        """Say that `step` is copied out. `copy` is what was read: (cells, notes, buffers)."""
        self._wrote(Write(who, Kind.TAKEN, (who.rank,), step, self.taken[who.rank], copy))
        self.taken[who.rank] = step

    def load(self, who: Who, step: int, state: object) -> None:
        """Say that the mirror of `step`, which holds `state`, is loaded: all steps before it are as good as taken."""
        self._wrote(Write(who, Kind.LOADED, (who.rank,), step, self.taken[who.rank], state))
        self.taken[who.rank] = step - 1

    def claim_chunk(self, who: Who, place: Piece, step: int, claim: int) -> None:
        """Say that a chunk of the mirror is about to be written."""
        seals = self.mirrors[place.generation].seals
        self._wrote(Write(who, Kind.CLAIM, tuple(place[:2]), step, seals[place.chunk], claim))
        seals[place.chunk] = claim

    def mirror(self, who: Who, place: Piece, step: int, value: object) -> None:
        """Write one piece of a chunk of the mirror."""
        pieces = self.mirrors[place.generation].content[place.chunk]
        self._wrote(Write(who, Kind.MIRROR, tuple(place), step, pieces[place.piece], value))
        pieces[place.piece] = value

    def seal_chunk(self, who: Who, place: Piece, step: int, digest: object) -> None:
        """Say that a chunk of the mirror of `step` is whole, and what its digest is."""
        generation = self.mirrors[place.generation]
        before = generation.seals[place.chunk]
        generation.digests[place.chunk] = digest
        generation.seals[place.chunk] = step  # a watcher sees the generation complete
        self._wrote(Write(who, Kind.CHUNK, tuple(place[:2]), step, before, step))

    def _wrote(self, write: Write) -> None:
        for watcher in self.watchers[write.kind]:
            watcher(write)
