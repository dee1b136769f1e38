"""The main thread's part of a step: which shard next, sealing its leaf, summing blocks, taking the result.

The engine holds the rules of the step (DESIGN.md; the numbers in comments are theirs). It never blocks in a call
that it cannot leave: every wait is on the doorbell, bounded, and followed by a new look (Invariant 6). It does not
know what a model is: it moves leaves and results.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from relume.arena.progress import Progress
from relume.core import ranges
from relume.core.ranges import Range
from relume.core.view import owner, shards_of
from relume.reduce.blocks import Sources, pieces
from relume.reduce.notes import Note, Presence, union
from relume.reduce.slots import Slots
from relume.reduce.tree import fold_leaves
from relume.train.standing import Standing
from relume.train.store import Store
from relume.wire.messages import View


class Engine:
    """One worker's engine. `taken_by(rank)` reads another worker's newest taken step from the arena."""

    def __init__(self, store: Store, standing: Standing, progress: Progress, taken_by: Callable[[int], int]) -> None:
        self._store = store
        self._standing = standing
        self._progress = progress
        self._taken_by = taken_by
        self._rank = standing.rank
        self._shards = store.layout.shape.shards
        self._slots = Slots(
            store.seals.slot(self._rank),
            lambda index: store.own_slot(self._rank, index),
            store.gradient,
            self._shards,
            store.slots,
        )
        self._sealed: set[int] = set()
        self._step = -1

    # Shards ---------------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Start `step`. Leaves of it that stand in this worker's slots are a dead predecessor's, and as good as own."""
        self._step = step
        self._sealed = ranges.leaves(self._slots.held(step))

    def next_shard(self) -> int | None:
        """Return the next shard that this worker shall compute under the newest view, or None if it has none left."""
        view = self._standing.settled()
        if view.step > self._step:
            return None  # the step is complete: only the result is left to take
        mine = shards_of(view, self._rank, self._step)
        return next((shard for shard in mine if shard not in self._sealed), None)

    def slot(self) -> tuple[int, list[torch.Tensor]]:
        """Return a slot for the next leaf, and its views."""
        index = self._slots.acquire(self._step, self._node_presence, self._standing.write)
        return index, self._slots.views(index)

    def publish(self, slot: int, shard: int, note: Note, buffers: Callable[[torch.Tensor], None]) -> None:
        """Seal the leaf of `shard` that stands in `slot`. `buffers` writes the buffers (called for shard 0 only)."""
        step, notes = self._step, self._store.notes

        # Rule 6 lets these places be written: this worker has taken the step before, so that one is complete, so
        # every member has taken the one before that, and what stood here is at least as old. They are other workers'
        # places too, so the pen is needed: one that has left by plan may come by here much later (Invariant 3).
        def write() -> None:
            if shard == 0:
                buffers(self._store.buffers(step))
            notes.write(step, shard, note)

        def seal() -> None:
            notes.seal(step, shard)
            self._slots.seal(slot, step, shard)

        self._progress.spring("publish")
        self._standing.write(lambda: notes.unseal(step, shard))  # for those who replay what stood here
        self._standing.write(write)
        self._standing.write(seal)
        self._sealed.add(shard)
        self._progress.spring("publish")

    def _node_presence(self, node: Range) -> Presence:
        notes = [self._store.notes.read(self._step, shard) for shard in range(*node)]
        return union(notes)

    # The sum --------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Work and wait until the step is complete (True) or this worker has got more shards to compute (False)."""
        self._standing.ring_others()  # what this worker had to seal is sealed: the last one's ring starts the sums
        while True:
            if self._standing.promised:
                self._wait()
                continue
            view = self._standing.settled()
            if self._store.seals.complete(self._step):
                return True
            if view.step <= self._step:
                if self.next_shard() is not None:
                    return False
                if self._sum_own_blocks(view):
                    continue
            if self.overtaken:
                return True
            self._wait()

    @property
    def overtaken(self) -> bool:
        """True if others may be writing where this step's result stood, for a later step.

        That can only happen to a worker that a view has left out and that is late for its last step: nobody waits for
        it any more (rule 6 is about members), and nothing of the step is needed but by itself.
        """
        return self._store.seals.newest_complete() >= self._step + self._store.layout.kept - 1

    def _wait(self) -> None:
        if self._progress.phase != "wait":
            self._progress.enter("wait")
        self._standing.wait()

    def _sum_own_blocks(self, view: View) -> bool:
        """Sum this worker's unsealed blocks if all leaves are sealed; True if it sealed any or was interrupted."""
        step, seals, count = self._step, self._store.seals, len(self._store.bounds)
        mine = [b for b in range(count) if owner(view, b, count) == self._rank and not seals.block_sealed(step, b)]
        if not mine:
            return False
        # Rule 6: every member, also one without shards, has taken the step before.
        if any(self._taken_by(member) < step - 1 for member in view.members):
            return False
        sources = self._sources()
        if sources is None:
            return False
        self._progress.enter("sum")
        if all(self._sum_block(view, block, sources) for block in mine):
            self._standing.ring_others()
        return True

    def _sum_block(self, view: View, block: int, sources: Sources) -> bool:
        """Sum and seal one block, as long as `view` is in force; False if it is not."""
        step, seals, write_if = self._step, self._store.seals, self._standing.write_if
        if not write_if(view, lambda: seals.unseal_block(step, block)):
            return False
        for compute in pieces(self._store.gradient, sources, self._store.bounds[block], self._store.result(step)):
            if not write_if(view, compute):
                return False
            self._progress.spring("sum")
        if not write_if(view, lambda: seals.seal_block(step, block)):
            return False
        self._progress.advance()
        return True

    def _sources(self) -> Sources | None:
        """Return what the step is summed from, or None while a leaf is missing."""
        places = {node: (rank, slot) for rank, slot, node in self._store.seals.sealed(self._step)}
        nodes = ranges.cover(places, self._shards)
        if nodes is None:
            return None
        notes = self.notes()
        weight = fold_leaves({s: note.weight for s, note in notes.items() if note.weight > 0}, self._shards)
        presence = {node: union([notes[shard] for shard in range(*node)]) for node in nodes}
        memory = {node: self._store.slot(*places[node]) for node in nodes}
        return Sources(self._shards, memory, presence, weight if weight is not None else 1.0)

    # The take -------------------------------------------------------------------------------------------------

    def notes(self) -> dict[int, Note]:
        """Return every shard's note, once all leaves are sealed."""
        return {shard: self._store.notes.read(self._step, shard) for shard in range(self._shards)}

    def take(self, notes: dict[int, Note]) -> list[torch.Tensor | None]:
        """Copy the complete result into private memory (rule 5), one tensor per parameter, None where absent."""
        self._progress.enter("take")
        self._standing.write(lambda: None)  # rule 3: a take starts while no ballot is promised
        copy = torch.empty(self._store.gradient.size, dtype=torch.uint8)
        copy.copy_(self._store.result(self._step))
        self._progress.spring("take")
        return self.gradients(copy, notes)

    def gradients(self, result: torch.Tensor, notes: dict[int, Note]) -> list[torch.Tensor | None]:
        """Return the gradients in a private `result`, one tensor per parameter, None where absent."""
        present = union(list(notes.values()))
        views = self._store.gradient.views(result)
        return [view if there else None for view, there in zip(views, present, strict=True)]

    def buffers(self) -> torch.Tensor:
        """Return where the buffers stand that shard 0 left; read them before `taken`."""
        return self._store.buffers(self._step)

    def taken(self, step: int) -> None:
        """Say that nothing of `step` is needed from the arena any more."""
        self._progress.take(step)
        self._standing.ring_others()
