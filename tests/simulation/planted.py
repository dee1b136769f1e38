"""Bugs to be found: each breaks one rule of the real thing, in the place where somebody might break it one day.

A bug is a class that goes in the place of a part of the simulated world, and the law that it breaks. Only that law's
checker watches, so that finding the bug shows that the law is held by its own checker.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from relume.core.coordinator import Coordinator, State
from relume.core.events import Accepted, Cause, Counted, Lost
from relume.core.plan import Inventory
from relume.core.verdict import Outcome
from relume.simulate import checkers
from relume.simulate.engine import Engine
from relume.simulate.memory import TORN
from relume.simulate.mirroring import Mirroring
from relume.simulate.replay import Joiner
from relume.simulate.shell import Shell
from relume.simulate.slots import Slots
from relume.simulate.standing import TOUCH_S, Standing
from relume.simulate.world import Parts

# One content ----------------------------------------------------------------------------------------------------


class SealFirst(Engine):
    """Rule 1: the seal of a block before its last piece."""

    def sum_block(self, step, view, block, sources, notes):
        arena, standing = self.arena, self.worker.standing
        yield from standing.write_if(view, lambda: arena.seal_block(self.who, step, block))
        return (yield from super().sum_block(step, view, block, sources, notes))


class TakesEarly(Engine):
    """Rule 5: a step is taken when some block is sealed."""

    def complete(self, step):
        return any(seal == step for seal in self.arena.block_seals[step % self.arena.kept])


# None lost ------------------------------------------------------------------------------------------------------


class Skips(Coordinator):
    """The step that was under way is taken for complete."""

    def handle(self, event, now):
        if isinstance(event, Counted):
            event = Counted(event.ballot, Inventory(event.inventory.complete + 1, {}, event.inventory.taken))
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
            arena.fill(worker.who, into, cell, step, TORN)
            yield TOUCH_S
            arena.fill(worker.who, into, cell, step, (mine, other))
            yield TOUCH_S
        yield from worker.standing.write(
            lambda: arena.seal(worker.who, into, (step, (left[0], right[1])), step),
            lambda: arena.seal(worker.who, source, None, step),
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
        self.early = tuple(self.arena.notes[step % self.arena.kept])
        yield 0.01
        return (yield from super().sum_own_blocks(step, view))

    def notes(self, step):
        yield TOUCH_S
        early = self.worker.phase != "take" and hasattr(self, "early")
        return self.early if early else tuple(self.arena.notes[step % self.arena.kept])


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
        self.arena.note(self.who, shard, step, (step, shard))
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


# The same state -------------------------------------------------------------------------------------------------


class ReplaysAnother(Joiner):
    """The result of the step before is replayed once more."""

    def kept(self, step):
        return (yield from super().kept(step - 1 if step and self.arena.whole(step) else step))


class LooksOnce(Joiner):
    """Invariant 8: what is copied is not looked at again, though somebody may have written meanwhile."""

    def still_whole(self, step):
        return True


class TrustsTheMirror(Mirroring):
    """Invariant 8: neither digests nor seals are compared after the mirror is copied."""

    def corrupt(self, found):
        return False

    def untouched(self, before, after):
        return True


# Places used again, and the way back ----------------------------------------------------------------------------


class Unannounced(Engine):
    """A block is written without being unsealed: whoever replays what stood there cannot tell."""

    def unseal(self, step, block):
        pass


class NoteUnannounced(Engine):
    """The same for a note."""

    def publish(self, step, shard, slot):
        yield from self.worker.standing.write(lambda: self.arena.note(self.who, shard, step, (step, shard)))
        yield from super().publish(step, shard, slot)


class Usurper(Slots):
    """A new life takes its dead predecessor's slots for empty ones."""

    def held(self, step):
        mine = {shard for at, shard in self.worker.engine.published if at == step}
        return {node: slot for node, slot in super().held(step).items() if mine & set(range(*node))}


class OneGeneration(Mirroring):
    """The mirror is always written into the same place."""

    def target(self, step):
        return 0


class ForgetsTheCheckpoint(Mirroring):
    """The mirror that a run was resumed from is newer than what `due` goes by, and is taken for an old one."""

    def decided(self, step):
        return self.newest(step - 2)


class WritesAll(Mirroring):
    """Whoever comes first writes every chunk of the mirror."""

    def owns(self, place):
        return True


# Those who come and go ------------------------------------------------------------------------------------------


class TwoAtOnce(Shell):
    """A rank is given away when its worker is fenced, and not when its process is gone."""

    def is_gone(self, worker):
        return True


class Generous(Coordinator):
    """One restart more than is allowed."""

    def __post_init__(self):
        self.max_restarts += 1
        super().__post_init__()


class AcceptsLate(Standing):
    """Rule 10: a view is accepted whose first step this worker has begun."""

    def answer(self, view):
        self.begun, begun = -1, self.begun
        answer = super().answer(view)
        self.begun = begun
        return answer


class LiveTooSoon(Standing):
    """A joiner is live as soon as it hears of the view that it will be in."""

    def includes(self, step):
        return self.view is not None and not self.promised and self.worker.rank in self.view.members


class FirstComes(Coordinator):
    """Rule 10: a view is decided when the first member has accepted it."""

    def handle(self, event, now):
        if isinstance(event, Accepted) and self._proposal is not None:
            self._proposal.accepted.update(self.party())
        return super().handle(event, now)


class Stubborn(Standing):
    """Rule 10: a proposal that was accepted outlives a ballot."""

    def promise(self, ballot):
        forget, self.forget = self.forget, lambda _: None
        yield from super().promise(ballot)
        self.forget = forget


class Nostalgic(Coordinator):
    """A view that was decided for a later step is kept, though the ballot's view comes before that step."""

    def handle(self, event, now):
        following = self.following
        answer = super().handle(event, now)
        if isinstance(event, Counted) and following is not None and self.view.step < following.step:
            self.following = following
        return answer


class GoesAtOnce(Standing):
    """A worker that is to go goes before the view without it begins."""

    def _enter_planned(self, step):
        super()._enter_planned(max([step, *(view.step for view in self.planned.values())]))


class Loyal(Standing):
    """A proposal is waited for though it was withdrawn."""

    def withdraw(self, number):
        yield TOUCH_S


class WaitsForAll(Engine):
    """Members wait until joiners, too, have taken the step before."""

    def may_sum(self, step, view):
        others = [worker for worker in self.worker.world.newest if worker.process.alive]
        return all(self.arena.taken[worker.rank] >= step - 1 for worker in others)


class Aloof(Coordinator):
    """Nobody is let in unless somebody dies."""

    def _admit(self, now):
        pass


class LeavesEmpty(Coordinator):
    """Nobody comes in the place of the lost."""

    def _staff(self, now):
        pass


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
            event = dataclasses.replace(
                event, inventory=Inventory(event.inventory.complete, sealed, event.inventory.taken)
            )
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
    hint: int = 0
    """A seed that shows it; should that change, others are tried."""

    @property
    def parts(self) -> Parts:
        """The world with the bug in it, and one checker."""
        return Parts(**{self.part: self.plant}, checkers=(self.checker,), **dict(self.settings))


BUGS = [
    Bug(checkers.OneContent, "engine", SealFirst),
    Bug(checkers.OneContent, "engine", TakesEarly),
    Bug(checkers.NoneLost, "coordinator", Skips),
    Bug(checkers.ExactlyOnce, "engine", Forgetful),
    Bug(checkers.ExactlyOnce, "engine", AsTheyCome),
    Bug(checkers.ExactlyOnce, "engine", StaleNotes),
    Bug(checkers.ExactlyOnce, "slots", MergesSealed, hint=27),
    Bug(checkers.RightToWrite, "standing", Careless),
    Bug(checkers.RightToWrite, "shell", Hasty),
    Bug(checkers.RightToWrite, "engine", NoteOutsidePen),
    Bug(checkers.Reuse, "engine", Rushes, hint=11),
    Bug(checkers.Reuse, "slots", UnsealsSourceFirst),
    Bug(checkers.Reuse, "engine", Unannounced),
    Bug(checkers.Reuse, "engine", NoteUnannounced),
    Bug(checkers.Reuse, "slots", Usurper, hint=16),
    Bug(checkers.SameState, "joiner", ReplaysAnother, hint=11),
    Bug(checkers.ExactlyOnce, "joiner", LooksOnce, hint=30),
    Bug(checkers.SameState, "mirroring", TrustsTheMirror, hint=10),
    Bug(checkers.WayBack, "mirroring", OneGeneration),
    Bug(checkers.WayBack, "mirroring", ForgetsTheCheckpoint),
    Bug(checkers.RightToWrite, "mirroring", WritesAll),
    Bug(checkers.Lives, "shell", TwoAtOnce, hint=149),
    Bug(checkers.Lives, "coordinator", Generous),
    Bug(checkers.Admission, "standing", AcceptsLate, hint=57),
    Bug(checkers.Admission, "standing", LiveTooSoon, hint=84),
    Bug(checkers.Admission, "coordinator", FirstComes, hint=57),
    Bug(checkers.Unhindered, "standing", Stubborn, hint=145),
    Bug(checkers.Unhindered, "coordinator", Nostalgic, hint=9),
    Bug(checkers.Leavers, "standing", GoesAtOnce, hint=106),
    Bug(checkers.Unhindered, "standing", Loyal, hint=57),
    Bug(checkers.Unhindered, "engine", WaitsForAll, hint=75),
    Bug(checkers.Whole, "coordinator", Aloof, hint=22),
    Bug(checkers.Whole, "coordinator", LeavesEmpty, hint=72),
    Bug(checkers.Progress, "engine", Silent, (("wait_s", 1e9),), hint=115),
    Bug(checkers.Progress, "coordinator", Devoted),
    Bug(checkers.Rounds, "coordinator", OneByOne),
    Bug(checkers.Rounds, "coordinator", InTurn),
    Bug(checkers.Views, "coordinator", CountsEarly),
    Bug(checkers.Frugal, "coordinator", Wasteful),
    Bug(checkers.Innocent, "coordinator", Impatient),
    Bug(checkers.Told, "coordinator", Repeats),
    Bug(checkers.Verdict, "coordinator", GivesUp),
]
