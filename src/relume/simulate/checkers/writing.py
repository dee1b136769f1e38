"""Laws about who may write what, and when a place may be used again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relume.core import ranges
from relume.core.events import Count, Event, Instruction
from relume.core.view import mirror_owner, owner, shards_of
from relume.simulate.checkers.base import Checker
from relume.simulate.checkers.books import Books
from relume.simulate.memory import UNSEALED, Kind, Write
from relume.wire.messages import Ballot

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World

UNGUARDED = frozenset({Kind.CELL, Kind.TAKEN, Kind.LOADED})
"""A slot that is not sealed, and the taken word, are written without the pen. A worker that has fenced itself may still
do so until its process ends: nobody else has them until then."""
OF_BLOCKS = frozenset({Kind.RESULT, Kind.UNSEAL, Kind.BLOCK})
OF_NOTES = frozenset({Kind.NOTE, Kind.NOTE_SEAL})
OF_THE_MIRROR = frozenset({Kind.CLAIM, Kind.MIRROR, Kind.CHUNK})


class RightToWrite(Checker):
    """Nobody writes after its view has ended, nor what its view gives to others, nor after it is fenced or replaced."""

    name = "right to write"
    kinds = tuple(Kind)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._counted: Ballot = (0, 0)
        self.books = Books(world.settings.workers + world.settings.spares)

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """Note when the seals are final, and who is fenced."""
        self.books.told(event, answer)
        for instruction in answer:
            if isinstance(instruction, Count):
                self._counted = max(self._counted, instruction.ballot)

    def wrote(self, write: Write) -> None:
        """See the class."""
        worker, what = self.world.now_at(write.rank), f"worker {write.rank} writes the {write.kind} {write.place}"
        if worker.who != write.who:
            self.fail(f"{what} as life {write.who.life}, and the rank is that of life {worker.life}")
        if not worker.process.alive:
            self.fail(f"{what} and is dead")
        if write.who in self.books.gone:
            own = write.kind in UNGUARDED and self.world.shell.seats[worker].self_fenced
            if not own:
                self.fail(f"{what} of step {write.step}, and is fenced")
        if write.kind not in UNGUARDED:
            self._guarded(worker, write, f"{what} of step {write.step}")

    def _guarded(self, worker: Worker, write: Write, what: str) -> None:
        view, promise = worker.standing.view, worker.standing.promise_made
        if view is None or view.number < promise:
            self.fail(f"{what} under {view and view.number}, and it has promised {promise}")
            return
        if view.number < self._counted:
            self.fail(f"{what} under view {view.number}, and the seals were counted for {self._counted}")
        if write.rank not in view.members:
            self.fail(f"{what} under view {view.number}, which it is not in")
        arena, owned = self.arena, None
        if write.kind in OF_BLOCKS:
            block = write.place[1] // (arena.pieces if write.kind is Kind.RESULT else 1)
            owned = owner(view, block, arena.blocks)
        elif write.kind in OF_THE_MIRROR:
            chunks = max(1, arena.chunks - 1)
            owned = mirror_owner(view, write.place[1] % chunks, chunks)
            if worker.standing.begun != write.step:
                self.fail(f"{what}, and has begun {worker.standing.begun}")
        elif view.step > write.step:
            self.fail(f"{what} under view {view.number}, which begins with step {view.step}")
        if owned is not None and owned != write.rank:
            self.fail(f"{what}, and the owner under view {view.number} is {owned}")
        if write.kind in OF_NOTES and write.place[1] not in shards_of(view, write.rank, write.step):
            self.fail(f"{what}, and that shard belongs to somebody else under view {view.number}")


class Reuse(Checker):
    """A place is never used again while somebody may still need what stands there.

    A member has taken it before, and a joiner sees that it goes: its seal is taken away first.
    """

    name = "reuse"
    kinds = tuple(Kind)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._committed = world.settings.resume_step - 1

    def wrote(self, write: Write) -> None:
        """See the class."""
        kind = write.kind
        if kind is Kind.BLOCK:
            if self.arena.complete(write.step):
                self._committed = max(self._committed, write.step)
        elif kind is Kind.CELL:
            seal = self.arena.seals[write.place[0]][write.place[1]]
            if seal is not None:
                self.fail(f"worker {write.rank} writes into its slot {write.place[1]}, which is sealed as {seal}")
        elif kind is Kind.SEAL:
            self._reseal(write)
        elif kind is Kind.MIRROR:
            if self.arena.mirrors[write.place[0]].seals[write.place[1]] >= 0:
                self.fail(f"worker {write.rank} writes the {kind} {write.place}, which is sealed")
        elif kind in {Kind.NOTE, Kind.BUFFERS, Kind.RESULT, Kind.UNSEAL, Kind.NOTE_SEAL}:
            self._overwrite(write)

    def _reseal(self, write: Write) -> None:
        if write.before is None or write.before == write.after:
            return
        step, node = write.before
        if step <= self._committed:
            return
        if self.world.now_at(write.rank).phase != "merge":
            self.fail(f"worker {write.rank} unseals {node} of step {step}, which is not complete")
        lo, hi = node
        covered = any(low <= lo and hi <= high and (low, high) != node for _, _, (low, high) in self.arena.sealed(step))
        right = ranges.sibling(node, self.arena.shards)
        into = right is not None and right[0] == hi and (step, right) in self.arena.seals[write.rank]
        if not covered and not into:
            self.fail(f"worker {write.rank} unseals {node} of step {step} before the sum that holds it is sealed")

    def _overwrite(self, write: Write) -> None:
        """The place belonged to the step `kept` before: every member has taken that, and its seals are gone."""
        what = f"worker {write.rank} writes the {write.kind} {write.place} of step {write.step}"
        if write.step != self._committed + 1:
            self.fail(f"{what}, and {self._committed} is committed")
        arena, place = self.arena, write.step % self.arena.kept
        seal = UNSEALED
        if write.kind is Kind.RESULT:
            seal = arena.block_seals[place][write.place[1] // arena.pieces]
        elif write.kind in {Kind.NOTE, Kind.BUFFERS}:
            seal = arena.note_seals[place][write.place[1] if write.kind is Kind.NOTE else 0]
        if seal != UNSEALED:
            self.fail(f"{what}, and it is sealed as that of step {seal}")
        view = self.world.now_at(write.rank).standing.view
        for rank in () if view is None else view.members:  # somebody who leaves has taken all that it needs
            worker = self.world.now_at(rank)
            condemned = self.world.shell.seats[worker].condemned
            living = worker.process.alive and not condemned and not worker.doomed and worker.standing.begun >= 0
            if living and arena.taken[worker.rank] < write.step - arena.kept:
                self.fail(f"{what}, and worker {worker.rank} has taken step {arena.taken[worker.rank]} only")


class WayBack(Checker):
    """Should all be lost at once, there is a whole mirror, and all results since, unless two were cut short."""

    name = "way back"
    kinds = (Kind.BLOCK, Kind.UNSEAL, Kind.NOTE_SEAL, Kind.CLAIM, Kind.CHUNK)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._committed = world.settings.resume_step - 1
        self._views = 0
        self.books = Books(world.settings.workers + world.settings.spares)

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """A mirror is cut short by a loss. One such is provided for."""
        self.books.told(event, answer)
        self._views += any(isinstance(each, Count) for each in answer)

    def wrote(self, write: Write) -> None:
        """See the class."""
        if not self.world.settings.every:
            return
        if write.kind is Kind.BLOCK:
            if self.arena.complete(write.step):
                self._committed = max(self._committed, write.step)
        elif write.kind is Kind.CHUNK:
            if self.arena.mirrors[write.place[0]].step == write.step:
                self._views = 0
        elif write.after < 0 and write.before >= 0 and self._views < 2:
            self._goes(write)

    def _goes(self, write: Write) -> None:
        arena, goes = self.arena, write.step - self.arena.kept
        of_mirror = write.kind is Kind.CLAIM
        places = [m.step for g, m in enumerate(arena.mirrors) if not (of_mirror and g == write.place[0])]
        for step in {0, *(step for step in places if step is not None)}:
            needed = range(step, self._committed + 1)
            if all(arena.whole(each) and (of_mirror or each != goes) for each in needed):
                return
        what = f"worker {write.rank} overwrites the {write.kind} {write.place} ({write.before})"
        self.fail(f"{what}, mirrors are of {places}, and {self._committed} is committed: that was the last way back")
