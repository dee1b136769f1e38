"""A simulated worker's slots: a model of `reduce.slots`, to which a test compares it.

Two slots, then siblings are merged to make room (rule 8), then further slots.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relume.core import ranges
from relume.core.ranges import Range
from relume.simulate.memory import SLOTS_EAGER, TORN
from relume.simulate.processes import Way
from relume.simulate.standing import TOUCH_S

if TYPE_CHECKING:
    from relume.simulate.worker import Worker


class Slots:
    """The slots of one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.arena = worker.arena
        self.rank = worker.rank

    def held(self, step: int) -> dict[Range, int]:
        """Return the nodes of `step` that stand sealed here, and in which slot."""
        seals = self.arena.seals[self.rank]
        return {seal[1]: slot for slot, seal in enumerate(seals) if seal is not None and seal[0] == step}

    def acquire(self, step: int) -> Generator[Any, Any, int]:
        """Return a slot that may be written for `step`."""
        held = self.held(step)
        eager = min(SLOTS_EAGER, self.arena.slots)
        for slot in range(eager):
            if slot not in held.values():
                return (yield from self.freed(slot, step))
        for left in sorted(held):
            right = ranges.sibling(left, self.arena.shards)
            if right in held and right[0] == left[1]:
                yield from self.merge(step, left, right, held)
                return held[right]
        for slot in range(eager, self.arena.slots):
            if slot not in held.values():
                return (yield from self.freed(slot, step))
        raise AssertionError(f"{self.arena.slots} slots cannot hold {sorted(held)}")

    def freed(self, slot: int, step: int) -> Generator[Any, Any, int]:
        """Unseal a slot."""
        yield from self.worker.standing.write(lambda: self.arena.seal(self.worker.who, slot, None, step))
        return slot

    def merge(self, step: int, left: Range, right: Range, held: dict[Range, int]) -> Way:
        """Add the node `right` to the node `left`, which are siblings."""
        worker, arena = self.worker, self.arena
        into, source = held[left], held[right]
        worker.enter("merge", worker.shard)
        yield from self.freed(into, step)
        for node in (left, right):
            for shard in range(*node):
                worker.read_note(step, shard)
        for cell in range(arena.cells):
            mine, other = arena.content[self.rank][into][cell], arena.content[self.rank][source][cell]
            arena.fill(worker.who, into, cell, step, TORN)
            yield TOUCH_S
            arena.fill(worker.who, into, cell, step, (mine, other))
            yield TOUCH_S
        yield from worker.standing.write(
            lambda: arena.seal(worker.who, into, (step, (left[0], right[1])), step),
            lambda: arena.seal(worker.who, source, None, step),
        )
        worker.enter("slot", worker.shard)
