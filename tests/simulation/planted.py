"""Bugs to be found: each breaks one rule of the real thing, in the place where somebody might break it one day.

A bug is a class that goes in the place of a part of the simulated world, and the law that it breaks. Only that law's
checker watches, so that finding the bug shows that the law is held by its own checker.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from relume.core.coordinator import Coordinator, State
from relume.core.events import Cause, Counted, Lost
from relume.core.plan import Inventory
from relume.core.verdict import Outcome
from relume.simulate import checkers
from relume.simulate.engine import Engine
from relume.simulate.memory import TORN
from relume.simulate.shell import Shell
from relume.simulate.slots import Slots
from relume.simulate.standing import TOUCH_S, Standing
from relume.simulate.world import Parts

# One content ----------------------------------------------------------------------------------------------------


class SealFirst(Engine):
    """Rule 1: the seal of a block before its last piece."""

    def sum_block(self, step, view, block, sources, notes):
        arena, standing = self.arena, self.worker.standing
        yield from standing.write_if(view, lambda: arena.seal_block(self.rank, step, block))
        return (yield from super().sum_block(step, view, block, sources, notes))


class TakesEarly(Engine):
    """Rule 5: a step is taken when some block is sealed."""

    def complete(self, step):
        return any(seal == step for seal in self.arena.block_seals[step % 2])


# None lost ------------------------------------------------------------------------------------------------------


class Skips(Coordinator):
    """The step that was under way is taken for complete."""

    def handle(self, event, now):
        if isinstance(event, Counted):
            event = Counted(event.ballot, Inventory(event.inventory.complete + 1, {}))
        return super().handle(event, now)


# Exactly once ---------------------------------------------------------------------------------------------------


class Forgetful(Engine):
    """Invariant 3: a seal is read without its step."""

    def look(self, step):
        places = yield from super().look(step)
        for rank, seals in enumerate(self.arena.seals):
            for slot, seal in enumerate(seals):
                if seal is not None:
                    places.setdefault(seal[1], (rank, slot))
        return places


class MergesSealed(Slots):
    """Rule 8: the destination of a merge keeps its narrow seal while the sum is made."""

    def merge(self, step, left, right, held):
        worker, arena = self.worker, self.arena
        into, source = held[left], held[right]
        worker.enter("merge")
        for cell in range(arena.cells):
            mine, other = arena.content[self.rank][into][cell], arena.content[self.rank][source][cell]
            arena.fill(self.rank, into, cell, step, TORN)
            yield TOUCH_S
            arena.fill(self.rank, into, cell, step, (mine, other))
            yield TOUCH_S
        yield from worker.standing.write(
            lambda: arena.seal(self.rank, into, (step, (left[0], right[1])), step),
            lambda: arena.seal(self.rank, source, None, step),
        )


class AsTheyCome(Engine):
    """Invariant 1: leaves are added in the order of the ranks that have them."""

    def sum_block(self, step, view, block, sources, notes):
        places = sorted(sources.items(), key=lambda item: (item[1], item[0]))
        mixed = dict(zip(sorted(sources), (place for _, place in places), strict=True))
        return (yield from super().sum_block(step, view, block, mixed, notes))


class StaleNotes(Engine):
    """The weights are read before the leaves are known to be sealed."""

    def sum_own_blocks(self, step, view):
        self.early = tuple(self.arena.notes[step % 2])
        yield 0.01
        return (yield from super().sum_own_blocks(step, view))

    def notes(self, step):
        yield TOUCH_S
        early = self.worker.phase != "take" and hasattr(self, "early")
        return self.early if early else tuple(self.arena.notes[step % 2])


# Right to write -------------------------------------------------------------------------------------------------


class Careless(Standing):
    """Rule 3: a promise is given and not kept."""

    @property
    def promised(self):
        return self.view is None


class Hasty(Shell):
    """Invariant 4: a worker is said to be fenced once it was sent the signal."""

    def is_fenced(self, worker):
        return True


class NoteOutsidePen(Engine):
    """The note is written before the pen is taken, by one that may have lost its right by then."""

    def publish(self, step, shard, slot):
        self.arena.note(self.rank, shard, step, (step, shard))
        yield from super().publish(step, shard, slot)


# Reuse ----------------------------------------------------------------------------------------------------------


class Rushes(Engine):
    """Rule 6: nobody is waited for before the next step is summed."""

    def may_sum(self, step, view):
        return True


class UnsealsSourceFirst(Slots):
    """Rule 8, the other way round: the source is unsealed before the sum that holds it is sealed."""

    def merge(self, step, left, right, held):
        yield from self.freed(held[right], step)
        yield from super().merge(step, left, right, held)


# Progress -------------------------------------------------------------------------------------------------------


class Silent(Engine):
    """Nobody is told of what is new (and nobody looks again by itself: see `wait_s`)."""

    def settle(self, step):
        others, self.worker.ring_others = self.worker.ring_others, lambda: None
        done = yield from super().settle(step)
        self.worker.ring_others = others
        return done


class Devoted(Coordinator):
    """Scenario 1: the promise of a worker is waited for that is known to be dead."""

    def _count(self, now):
        if all(self._members[rank].promised >= self.ballot for rank in self.view.members):
            super()._count(now)


# Rounds ---------------------------------------------------------------------------------------------------------


class OneByOne(Coordinator):
    """Scenario 9: of those that are silent, one is found per limit that is waited out."""

    def _condemn(self, event, now):
        silent = self.state is State.BALLOT and event.cause.kind == "silent"
        return not (silent and self._out) and super()._condemn(event, now)


class InTurn(Coordinator):
    """Scenario 8: a loss during a ballot has to wait until that ballot is over."""

    def handle(self, event, now):
        if isinstance(event, Lost) and self.state in {State.BALLOT, State.COUNTING}:
            self.waiting = [*getattr(self, "waiting", []), event]
            return []
        answer = super().handle(event, now)
        while self.state is State.STEADY and getattr(self, "waiting", []):
            answer = [*answer, *super().handle(self.waiting.pop(0), now)]
        return answer


# Views, frugality, innocence, telling, the end ------------------------------------------------------------------


class CountsEarly(Coordinator):
    """Rule 4: the seals are counted when the lost are fenced, whoever has not promised yet."""

    def _count(self, now):
        for rank in self.alive():
            self._members[rank].promised = max(self._members[rank].promised, self.ballot)
        super()._count(now)


class Wasteful(Coordinator):
    """A finished leaf of a dead worker does not count."""

    def handle(self, event, now):
        if isinstance(event, Counted):
            alive = set(self.alive())
            sealed = {rank: nodes for rank, nodes in event.inventory.sealed.items() if rank in alive}
            event = dataclasses.replace(event, inventory=Inventory(event.inventory.complete, sealed))
        return super().handle(event, now)


class Impatient(Coordinator):
    """Whoever is done first is taken for one that left early."""

    def _close_if_done(self, now):
        ends = {rank: self._members[rank].done for rank in self.view.members} if self.view else {}
        done = [rank for rank, end in ends.items() if end is not None]
        if self.state is State.STEADY and done and None in ends.values():
            self._lost(Lost(done[0], Cause("left_early", "it left")), now)
            return
        super()._close_if_done(now)


class Repeats(Coordinator):
    """A loss is told again with every view."""

    def _report(self, moved, **times):
        told = list(self._open)
        super()._report(moved, **times)
        self._open = told


class GivesUp(Coordinator):
    """One worker fewer than the least there may be is one too many."""

    def _end_if_too_few(self, survivors):
        if len(survivors) == self.min_workers and len(survivors) < self.workers:
            self._end(Outcome.TOO_FEW, "too few")
            return True
        return super()._end_if_too_few(survivors)


@dataclass(frozen=True)
class Bug:
    """A planted bug and the checker that has to find it."""

    checker: type[checkers.Checker]
    part: str
    plant: type
    settings: tuple[tuple[str, float], ...] = ()
    seeds: int = 200

    @property
    def parts(self) -> Parts:
        """The world with the bug in it, and one checker (Views keeps books for Verdict)."""
        watching = (self.checker,) if self.checker is not checkers.Verdict else (checkers.Views, checkers.Verdict)
        return Parts(**{self.part: self.plant}, checkers=watching, **dict(self.settings))


BUGS = [
    Bug(checkers.OneContent, "engine", SealFirst),
    Bug(checkers.OneContent, "engine", TakesEarly),
    Bug(checkers.NoneLost, "coordinator", Skips),
    Bug(checkers.ExactlyOnce, "engine", Forgetful),
    Bug(checkers.ExactlyOnce, "engine", AsTheyCome),
    Bug(checkers.ExactlyOnce, "engine", StaleNotes),
    Bug(checkers.ExactlyOnce, "slots", MergesSealed),
    Bug(checkers.RightToWrite, "standing", Careless),
    Bug(checkers.RightToWrite, "shell", Hasty),
    Bug(checkers.RightToWrite, "engine", NoteOutsidePen),
    Bug(checkers.Reuse, "engine", Rushes),
    Bug(checkers.Reuse, "slots", UnsealsSourceFirst),
    Bug(checkers.Progress, "engine", Silent, (("wait_s", 1e9),)),
    Bug(checkers.Progress, "coordinator", Devoted),
    Bug(checkers.Rounds, "coordinator", OneByOne),
    Bug(checkers.Rounds, "coordinator", InTurn),
    Bug(checkers.Views, "coordinator", CountsEarly),
    Bug(checkers.Frugal, "coordinator", Wasteful),
    Bug(checkers.Innocent, "coordinator", Impatient),
    Bug(checkers.Told, "coordinator", Repeats),
    Bug(checkers.Verdict, "coordinator", GivesUp),
]
