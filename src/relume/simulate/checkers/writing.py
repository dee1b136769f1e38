"""Laws about who may write what, and when a place may be used again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relume.core import ranges
from relume.core.events import Count, Event, Exited, Fenced, Instruction
from relume.core.view import owner, shards_of
from relume.simulate.checkers.base import Checker
from relume.simulate.memory import RESULTS, Kind, Write
from relume.wire.messages import Ballot

if TYPE_CHECKING:
    from relume.simulate.world import World

UNGUARDED = frozenset({Kind.CELL, Kind.TAKEN})
"""A slot that is not sealed, and the taken word, are written without the pen. Nobody else ever has them, so a worker
that has fenced itself may still do so; once ranks have successors, that will not do until its process is gone."""


class RightToWrite(Checker):
    """Nobody writes after its view has ended, nor what its view gives to others, nor after it is fenced."""

    name = "right to write"
    kinds = tuple(Kind)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._counted: Ballot = (0, 0)
        self._fenced: set[int] = set()

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """Note when the seals are final, and who is fenced."""
        if isinstance(event, Fenced | Exited):
            self._fenced.add(event.rank)
        for instruction in answer:
            if isinstance(instruction, Count):
                self._counted = max(self._counted, instruction.ballot)

    def wrote(self, write: Write) -> None:
        """See the class."""
        worker = self.world.workers[write.rank]
        if not worker.process.alive:
            self.fail(f"worker {write.rank} is dead and writes a {write.kind}")
        if write.rank in self._fenced:
            own = write.kind in UNGUARDED and self.world.shell.seats[write.rank].self_fenced
            if not own:
                self.fail(
                    f"worker {write.rank} is fenced and writes the {write.kind} {write.place} of step {write.step}"
                )
        if write.kind in UNGUARDED:
            return
        view, promise = worker.standing.view, worker.standing.promise_made
        what = f"worker {write.rank} writes the {write.kind} {write.place} of step {write.step}"
        if view is None or view.number < promise:
            self.fail(f"{what} under {view and view.number}, and it has promised {promise}")
            return
        if view.number < self._counted:
            self.fail(f"{what} under view {view.number}, and the seals were counted for {self._counted}")
        if write.kind in {Kind.RESULT, Kind.BLOCK}:
            block = write.place[1] // (self.arena.pieces if write.kind is Kind.RESULT else 1)
            if owner(view, block, self.arena.blocks) != write.rank:
                self.fail(f"{what}, and the owner under view {view.number} is {owner(view, block, self.arena.blocks)}")
        elif write.kind is Kind.NOTE and write.place[1] not in shards_of(view, write.rank, write.step):
            self.fail(f"{what}, and that shard belongs to somebody else under view {view.number}")


class Reuse(Checker):
    """A slot, a note or a result is never used again while somebody may still need what stands there."""

    name = "reuse"
    kinds = (Kind.CELL, Kind.SEAL, Kind.NOTE, Kind.BUFFERS, Kind.RESULT, Kind.BLOCK)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._committed = -1

    def wrote(self, write: Write) -> None:
        """See the class."""
        if write.kind is Kind.BLOCK:
            if self.arena.complete(write.step):
                self._committed = max(self._committed, write.step)
        elif write.kind is Kind.CELL:
            seal = self.arena.seals[write.place[0]][write.place[1]]
            if seal is not None:
                self.fail(f"worker {write.rank} writes into its slot {write.place[1]}, which is sealed as {seal}")
        elif write.kind is Kind.SEAL:
            self._reseal(write)
        else:
            self._overwrite(write)

    def _reseal(self, write: Write) -> None:
        if write.before is None or write.before == write.after:
            return
        step, node = write.before
        if step <= self._committed:
            return
        if self.world.workers[write.rank].phase != "merge":
            self.fail(f"worker {write.rank} unseals {node} of step {step}, which is not complete")
        lo, hi = node
        covered = any(low <= lo and hi <= high and (low, high) != node for _, _, (low, high) in self.arena.sealed(step))
        right = ranges.sibling(node, self.arena.shards)
        into = right is not None and right[0] == hi and (step, right) in self.arena.seals[write.rank]
        if not covered and not into:
            self.fail(f"worker {write.rank} unseals {node} of step {step} before the sum that holds it is sealed")

    def _overwrite(self, write: Write) -> None:
        """The place belonged to the step RESULTS before: every living member has taken that."""
        if write.step != self._committed + 1:
            what = f"worker {write.rank} writes the {write.kind} {write.place} of step {write.step}"
            self.fail(f"{what}, and {self._committed} is committed")
        for worker in self.world.workers:
            seat = self.world.shell.seats[worker.rank]
            living = worker.process.alive and not seat.condemned and not worker.doomed
            if living and self.arena.taken[worker.rank] < write.step - RESULTS:
                text = f"worker {worker.rank} has taken step {self.arena.taken[worker.rank]} only"
                self.fail(f"worker {write.rank} writes the {write.kind} {write.place} of step {write.step}, and {text}")
