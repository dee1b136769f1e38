"""The main thread's part of a step: a model of `train.engine` and of the loop in `train.step`.

Each rule of the step that guards shared words is a method of its own, so that a test can plant a bug by overriding it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relume.core import ranges
from relume.core.ranges import Range
from relume.core.view import shards_of
from relume.simulate.memory import TORN, UNSEALED
from relume.simulate.processes import Way
from relume.simulate.standing import TOUCH_S
from relume.simulate.symbols import Symbol, fold
from relume.wire.messages import View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker

TORN_LOOK = 0.1
"""How often something else happens while one rank's seals are read."""
COMPUTE_S = 0.002
"""Each of: loading, the forward pass, a piece of the backward pass, the optimizer's step."""


class Engine:
    """One worker's engine."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.arena = worker.arena
        self.rank = worker.rank
        self.who = worker.who
        self.sealed: set[int] = set()
        self.published: set[tuple[int, int]] = set()
        """What this life has sealed itself."""
        self.value: Symbol = None

    def step(self, step: int) -> Way:
        """Live through one step, up to its result in private memory."""
        self.begin(step)
        while True:
            shard = yield from self.next_shard(step)
            if shard is not None:
                yield from self.compute(step, shard)
            elif (yield from self.settle(step)):
                break
        yield from self.take(step)

    def begin(self, step: int) -> None:
        """Leaves of `step` that stand in this worker's slots are a dead predecessor's, and as good as own."""
        self.sealed = ranges.leaves(self.worker.slots.held(step))

    # Shards -------------------------------------------------------------------------------------------------

    def next_shard(self, step: int) -> Generator[Any, Any, int | None]:
        """Return the next shard that this worker shall compute under the newest view."""
        view = yield from self.worker.standing.settled()
        if view.step > step:
            return None
        return next((s for s in shards_of(view, self.rank, step) if s not in self.sealed), None)

    def compute(self, step: int, shard: int) -> Way:
        """Compute a leaf, cell by cell as gradients come, and seal it."""
        worker, arena = self.worker, self.arena
        compute_s = COMPUTE_S * worker.world.settings.heavy
        worker.enter("load", shard)
        yield compute_s
        worker.enter("slot", shard)
        slot = yield from worker.slots.acquire(step)
        worker.enter("forward", shard)
        yield compute_s
        worker.enter("backward", shard)
        for cell in range(arena.cells):
            arena.fill(self.who, slot, cell, step, TORN)
            yield TOUCH_S
            arena.fill(self.who, slot, cell, step, (step, shard))
            yield compute_s
            worker.advance()
        worker.enter("publish", shard)
        yield from self.publish(step, shard, slot)
        self.sealed.add(shard)
        self.published.add((step, shard))
        yield TOUCH_S

    def publish(self, step: int, shard: int, slot: int) -> Way:
        """Write the note (and shard 0's buffers), then the seals: payload first (rule 1).

        The note is unsealed before: somebody may be reading what stood there, to replay it.
        """
        arena, who, standing = self.arena, self.who, self.worker.standing
        actions = [lambda: arena.note(who, shard, step, (step, shard))]
        if shard == 0:
            actions.insert(0, lambda: arena.store_buffers(who, step, step))
        yield TOUCH_S
        yield from standing.write(lambda: arena.seal_note(who, shard, step, UNSEALED))
        yield from standing.write(*actions)
        yield from standing.write(
            lambda: arena.seal_note(who, shard, step, step),
            lambda: arena.seal(who, slot, (step, (shard, shard + 1)), step),
        )

    # The sum ------------------------------------------------------------------------------------------------

    def settle(self, step: int) -> Generator[Any, Any, bool]:
        """Work and wait until the step is complete (True) or there are more shards to compute (False)."""
        worker = self.worker
        worker.ring_others()
        while True:
            if worker.standing.promised:
                yield from self.wait()
                continue
            view = yield from worker.standing.settled()
            yield TOUCH_S
            if self.complete(step) or self.overtaken(step):
                return True
            if view.step <= step:
                if (yield from self.next_shard(step)) is not None:
                    return False
                if (yield from self.sum_own_blocks(step, view)):
                    continue
            yield from self.wait()

    def complete(self, step: int) -> bool:
        """Rule 5: a step is taken only when all its blocks are sealed."""
        return self.arena.complete(step)

    def overtaken(self, step: int) -> bool:
        """Return whether others may be writing where this step's result stood, for a later step.

        That happens to one that a view has left out and that is late for its last step; nobody waits for it.
        """
        return self.arena.newest_complete() >= step + self.arena.kept - 1

    def wait(self) -> Way:
        """Wait for the doorbell, at most its limit (Invariant 6)."""
        if self.worker.phase != "wait":
            self.worker.enter("wait")
        yield from self.worker.standing.wait()

    def may_sum(self, step: int, view: View) -> bool:
        """Rule 6: every member, also one without shards, has taken the step before."""
        return all(self.arena.taken[member] >= step - 1 for member in view.members)

    def sum_own_blocks(self, step: int, view: View) -> Generator[Any, Any, bool]:
        """Sum this worker's unsealed blocks if all leaves are sealed; True if it sealed any or was interrupted."""
        worker, arena = self.worker, self.arena
        seals = arena.block_seals[step % arena.kept]
        mine = [block for block in arena.owned(view, self.rank) if seals[block] != step]
        if not mine or not self.may_sum(step, view):
            return False
        yield TOUCH_S
        places = yield from self.look(step)
        nodes = ranges.cover(places, arena.shards)
        if nodes is None:
            return False
        notes = yield from self.notes(step)
        worker.enter("sum")
        sources = {node: places[node] for node in nodes}
        for block in mine:
            if not (yield from self.sum_block(step, view, block, sources, notes)):
                return True
            worker.advance()
        worker.ring_others()
        return True

    def look(self, step: int) -> Generator[Any, Any, dict[Range, tuple[int, int]]]:
        """Return where each sealed node stands. The look takes a while: other things happen between two words."""
        places: dict[Range, tuple[int, int]] = {}
        chance = self.worker.world.scheduler.chance
        for rank, seals in enumerate(self.arena.seals):
            for slot, seal in enumerate(seals):
                if seal is not None and seal[0] == step:
                    places[seal[1]] = (rank, slot)
                    if chance() < TORN_LOOK:
                        yield TOUCH_S
            yield TOUCH_S
        return places

    def sum_block(
        self, step: int, view: View, block: int, sources: dict[Range, tuple[int, int]], notes: tuple[Any, ...]
    ) -> Generator[Any, Any, bool]:
        """Sum a block piece by piece, each under the pen, and seal it; False if a ballot came in between."""
        arena, standing = self.arena, self.worker.standing
        if not (yield from standing.write_if(view, lambda: self.unseal(step, block))):
            return False
        for cell in range(block * arena.pieces, (block + 1) * arena.pieces):

            def tear(cell: int = cell) -> None:
                inputs = {node: arena.content[rank][slot][cell] for node, (rank, slot) in sources.items()}
                self.value = (fold(inputs, 0, arena.shards), notes)
                arena.put(self.who, step, cell, TORN)

            def put(cell: int = cell) -> None:
                arena.put(self.who, step, cell, self.value)

            if not (yield from standing.write_if(view, tear, put)):
                return False
        return (yield from standing.write_if(view, lambda: arena.seal_block(self.who, step, block)))

    def unseal(self, step: int, block: int) -> None:
        """Let those who replay what stands there see that it goes."""
        self.arena.unseal_block(self.who, step, block)

    # The take -----------------------------------------------------------------------------------------------

    def notes(self, step: int) -> Generator[Any, Any, tuple[Any, ...]]:
        """Return every shard's note."""
        yield TOUCH_S
        return tuple(self.arena.notes[step % self.arena.kept])

    def take(self, step: int) -> Way:
        """Copy the complete result into private memory (rule 5)."""
        worker, arena = self.worker, self.arena
        notes = yield from self.notes(step)
        worker.enter("take")
        yield from worker.standing.write(lambda: None)  # rule 3: a take starts while no ballot is promised
        copy = []
        for cell in range(arena.cells):
            copy.append(arena.results[step % arena.kept][cell])
            yield TOUCH_S
        buffers = arena.buffers[step % arena.kept]
        yield TOUCH_S
        if self.overtaken(step):
            arena.taken[self.rank] = step
            yield from worker.leave_for_good()
        worker.takes_in(step, (tuple(copy), notes, buffers))
        yield TOUCH_S
        worker.ring_others()
