"""The main thread's part of a step: which shard next, sealing its leaf, summing blocks, taking the result.

The engine holds the rules of the step (DESIGN.md; the numbers in comments are theirs). It never blocks in a call
that it cannot leave: every wait is on the doorbell, bounded, and followed by a new look (Invariant 6). It does not
know what a model is: it moves leaves and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from relume.arena.progress import Progress
from relume.core import ranges
from relume.core.ranges import Range
from relume.core.view import owner, shards_of
from relume.reduce.blocks import Scratch, Sources, pieces
from relume.reduce.notes import Note, Presence, union
from relume.reduce.slots import Place, Slots
from relume.reduce.tree import fold_leaves
from relume.train.opening import Opening
from relume.train.standing import Standing
from relume.train.store import Store
from relume.train.summer import Summer
from relume.train.taken import Taken
from relume.wire.messages import View

STRETCH_BYTES = 1 << 20
"""So much of a result is summed and sealed at a time, unless a block alone is larger."""


class Engine:
    """One worker's engine. `taken_by(rank)` reads another worker's newest taken step from the arena.

    `single`: each shard has one backward, so that others may sum what is there of a leaf before all of it is.
    """

    def __init__(
        self,
        store: Store,
        standing: Standing,
        progress: Progress,
        taken_by: Callable[[int], int],
        *,
        single: bool = False,
    ) -> None:
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
        self._opening = Opening(store, standing, single=single)
        self._summer: Summer | None = None
        self._sealed: set[int] = set()
        self._notes: dict[int, Note] = {}
        self._scratch = Scratch()
        self._taken = Taken(store)
        self._everywhere = np.ones(len(store.gradient.entries), dtype=bool)
        self._step = -1

    def overlap(self) -> None:
        """From here on a thread sums while this worker is in backward."""
        self._summer = Summer(lambda: self.sum_early("early"))
        self._opening.on_more = self._summer.look

    # Shards ---------------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Start `step`. Leaves of it that stand in this worker's slots are a dead predecessor's, and as good as own."""
        self._step = step
        self._notes = {}
        self._sealed = ranges.leaves(self._slots.held(step))

    def next_shard(self) -> int | None:
        """Return the next shard that this worker shall compute under the newest view, or None if it has none left."""
        view = self._standing.settled()
        if view.step > self._step:
            return None  # the step is complete: only the result is left to take
        mine = shards_of(view, self._rank, self._step)
        return next((shard for shard in mine if shard not in self._sealed), None)

    def slot(self, shard: int) -> tuple[int, Place]:
        """Return a slot for the leaf of `shard`."""
        self._opening.close()  # before anything in this worker's slots is moved
        index = self._slots.acquire(self._step, self._content, self._standing.write)
        self._opening.begin(self._step, shard, index)
        return index, self._slots.place(index)

    @property
    def shown(self) -> bool:
        """True if others may have used a part of the leaf that this worker is at."""
        return self._opening.shown

    def whole(self, parameter: int, weight: float | None) -> None:
        """The gradient of `parameter` is in the slot of the leaf of this `weight`, and will not change any more."""
        self._opening.came(parameter, weight)

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
        self._notes[shard] = note
        self._sealed.add(shard)
        self._progress.spring("publish")

    def _content(self, node: Range) -> tuple[Presence, float]:
        notes = [self._note(shard) for shard in range(*node)]
        return union(notes), notes[0].factor if len(notes) == 1 else 1.0

    def _note(self, shard: int) -> Note:
        """Return the note of a shard whose leaf is sealed: it is final, so that it is read once."""
        if shard not in self._notes:
            self._notes[shard] = self._store.notes.read(self._step, shard)
        return self._notes[shard]

    # The sum --------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Work and wait until the step is complete (True) or this worker has got more shards to compute (False)."""
        if self._summer is not None:
            self._summer.pause()
        if self._standing.rings_always or self._nodes() is not None:
            self._standing.ring_others()  # the last one's leaf: its ring starts the sums
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
                if self._sum_own_blocks(view) or self.sum_early("sum"):
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

    def _own_blocks(self, view: View) -> list[int]:
        """Return this worker's unsealed blocks, if they may be written."""
        # Rule 6: every member, also one without shards, has taken the step before.
        if any(self._taken_by(member) < self._step - 1 for member in view.members):
            return []
        count = len(self._store.bounds)
        mine = [block for block in range(count) if owner(view, block, count) == self._rank]
        return self._store.seals.unsealed(self._step, mine)

    def _sum_own_blocks(self, view: View) -> bool:
        """Sum this worker's unsealed blocks if all leaves are sealed; True if it sealed any or was interrupted."""
        mine = self._own_blocks(view)
        sources = self._sources() if mine else None
        if sources is None:
            return False
        self._progress.enter("sum")
        summed = all(self._sum_blocks(view, blocks, sources, "sum") for blocks in self._stretches(mine))
        if summed:
            self._ring_if_complete()
        return True

    def sum_early(self, phase: str) -> bool:
        """Sum some of this worker's blocks that are whole in every leaf, though not every leaf is; True if any were.

        Never block 0: a step whose blocks are all sealed is complete, and it is not before all leaves and notes are.
        """
        view = self._standing.view
        if not self._opening.single or view is None or self._standing.promised or view.step > self._step:
            return False
        blocks = [block for block in self._own_blocks(view) if block] if self._rank in view.members else []
        early = self._early(view) if blocks else None
        if early is None:
            return False
        sources, whole = early
        stretch = next(self._stretches([block for block in blocks if whole >> block & 1]), None)
        if stretch is None:
            return False
        if self._sum_blocks(view, stretch, sources, phase):
            self._ring_if_complete()  # the last leaf, and all other blocks, may have been sealed meanwhile
        return True

    def _ring_if_complete(self) -> None:
        """Ring if what this worker has just sealed is the last block: now the step can be taken."""
        if self._standing.rings_always or self._store.seals.complete(self._step):
            self._standing.ring_others()

    def _stretches(self, blocks: list[int]) -> Iterator[range]:
        """Yield `blocks`, neighbours together as long as they are small: each sum has a price of its own."""
        bounds, first = self._store.bounds, 0
        for place, block in enumerate(blocks):
            after = blocks[place + 1] if place + 1 < len(blocks) else None
            if after != block + 1 or bounds[after][1] - bounds[blocks[first]][0] > STRETCH_BYTES:
                yield range(blocks[first], block + 1)
                first = place + 1

    def _sum_blocks(self, view: View, blocks: range, sources: Sources, phase: str) -> bool:
        """Sum and seal neighbouring blocks, as long as `view` is in force; False if it is not."""
        step, seals, write_if = self._step, self._store.seals, self._standing.write_if
        if not write_if(view, lambda: seals.unseal_blocks(step, blocks)):
            return False
        bounds = (self._store.bounds[blocks[0]][0], self._store.bounds[blocks[-1]][1])
        for compute in pieces(self._store.gradient, sources, bounds, self._store.result(step), self._scratch):
            if not write_if(view, compute):
                return False
            self._progress.spring(phase)
        if not write_if(view, lambda: seals.seal_blocks(step, blocks)):
            return False
        self._progress.advance()
        return True

    def _sealed_nodes(self) -> dict[Range, tuple[int, int]]:
        return {node: (rank, slot) for rank, slot, node in self._store.seals.sealed(self._step)}

    def _nodes(self) -> dict[Range, tuple[int, int]] | None:
        """Return the sealed nodes that the step is summed from, with (rank, slot); None if a leaf is missing."""
        places = self._sealed_nodes()
        nodes = ranges.cover(places, self._shards)
        return None if nodes is None else {node: places[node] for node in nodes}

    def _sources(self) -> Sources | None:
        """Return what the step is summed from, or None while a leaf is missing."""
        nodes = self._nodes()
        if nodes is None:
            return None
        weights = {shard: note.weight for shard, note in self.notes().items() if note.weight > 0}
        weight = fold_leaves(weights, self._shards)
        content = {node: self._content(node) for node in nodes}
        return Sources(
            self._shards,
            {node: self._store.slot(*place) for node, place in nodes.items()},
            {node: present for node, (present, _) in content.items()},
            weight if weight is not None else 1.0,
            {node: factor for node, (_, factor) in content.items()},
        )

    def _early(self, view: View) -> tuple[Sources, int] | None:
        """Return the sources of what is whole in every leaf, and which blocks that is, as bits; None if nothing is.

        An open leaf counts where `view` has it computed: then whoever computes moves nothing in its slots any more
        in this step, since it opens its last leaf after that. Where every shard counts, nobody does.
        """
        sealed = self._sealed_nodes()
        leaves = self._opening.leaves(view, self._step)
        nodes = ranges.cover([*sealed, *leaves], self._shards)
        if nodes is None or all(node in sealed for node in nodes):
            return None
        whole = -1
        weights: dict[int, float] = {}
        memory, presence, factors = {}, {}, {}
        for node in nodes:
            if node in sealed:
                place = sealed[node]
                presence[node], factors[node] = self._content(node)
                if not bool(presence[node].all()):
                    return None  # what is absent in which block is known when all is there
                weights |= {shard: self._note(shard).weight for shard in range(*node)}
            else:
                rank, leaf = leaves[node]
                place = (rank, leaf.slot)
                presence[node], factors[node] = self._everywhere, leaf.weight
                weights[leaf.shard] = leaf.weight
                whole &= leaf.blocks
            memory[node] = self._store.slot(*place)
        weight = fold_leaves(weights, self._shards)
        assert weight is not None
        return Sources(self._shards, memory, presence, weight, factors), whole

    # The take -------------------------------------------------------------------------------------------------

    def notes(self) -> dict[int, Note]:
        """Return every shard's note, once all leaves are sealed."""
        return {shard: self._note(shard) for shard in range(self._shards)}

    def take(self, notes: dict[int, Note]) -> list[torch.Tensor | None]:
        """Return the complete result as this worker's own (rule 5), one tensor per parameter, None where absent."""
        self._progress.enter("take")
        self._standing.write(lambda: None)  # rule 3: a take starts while no ballot is promised
        gradients = self._present(self._taken.take(self._step), notes)
        self._progress.spring("take")
        return gradients

    def gradients(self, result: torch.Tensor, notes: dict[int, Note]) -> list[torch.Tensor | None]:
        """Return a private copy of `result`, one tensor per parameter, None where absent."""
        return self._present(self._taken.copy(result), notes)

    def _present(self, views: list[torch.Tensor], notes: dict[int, Note]) -> list[torch.Tensor | None]:
        present = union(list(notes.values()))
        if bool(present.all()):
            return list(views)
        return [view if there else None for view, there in zip(views, present.tolist(), strict=True)]

    def give_back(self) -> None:
        """No `.grad` is left of the step that was taken last."""
        self._taken.give_back()

    def buffers(self) -> torch.Tensor:
        """Return where the buffers stand that shard 0 left; read them before `taken`."""
        return self._store.buffers(self._step)

    def end(self) -> None:
        """There are no more steps."""
        if self._summer is not None:
            self._summer.end()

    def taken(self, step: int) -> None:
        """Say that nothing of `step` is needed from the arena any more."""
        self._progress.take(step)
        view = self._standing.view
        if self._standing.rings_always or view is None or view.step == step or len(view.members) > view.shards:
            self._standing.ring_others()  # else nobody waits for it: a leaf of the next step will say so too (rule 6)
