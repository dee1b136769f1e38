"""Writing and loading the mirror: a model of `state.mirror` and `train.mirroring`.

The last chunk is the skeleton, written first, by the owner of chunk 0. Each guard is a method of its own, so that a
test can plant a bug by overriding it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from relume.core.view import mirror_owner
from relume.simulate.generations import PIECES, Piece
from relume.simulate.memory import TORN
from relume.simulate.processes import Way
from relume.simulate.standing import TOUCH_S

if TYPE_CHECKING:
    from relume.simulate.worker import Worker

LOAD_S = 0.0005
"""Loading the mirror."""


class Mirroring:
    """One worker's part in the mirror."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.arena = worker.arena
        self.every = worker.world.settings.every
        self.last = False

    def newest(self, before: int | None = None) -> tuple[int, int | None]:
        """Return the newest complete step, at most `before`, and its generation; (0, None) if there is none."""
        steps = [(mirror.step, index) for index, mirror in enumerate(self.arena.mirrors)]
        whole = [(step, index) for step, index in steps if step is not None and (before is None or step <= before)]
        return max(whole) if whole else (0, None)

    def due(self, step: int) -> bool:
        """Return whether a mirror is to be written at the boundary before `step`."""
        if not self.every:
            return False
        first = self.decided(step)[0] + self.every
        return step >= first and (step - first) % 2 == 0

    def target(self, step: int) -> int:
        """Return the generation that may be overwritten."""
        holder = self.decided(step)[1]
        return 0 if holder is None else 1 - holder

    def decided(self, step: int) -> tuple[int, int | None]:
        """Return the newest mirror that is decided for all who stand before `step`, and its generation."""
        decided = (0, None) if self.last else self.newest(step - 2)
        return decided if decided[1] is not None else self.newest(step - 1)

    def has(self, step: int) -> bool:
        """Return whether a complete mirror of exactly this step is there."""
        return any(mirror.step == step for mirror in self.arena.mirrors)

    # Writing ------------------------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> Way:
        """Before `step`: write this worker's part if a mirror is due."""
        if self.due(step):
            yield from self.write(step)

    def at_end(self, step: int) -> Way:
        """The loop ended before `step`: see to it that this very state is mirrored."""
        self.last = True
        if self.every and not self.has(step):
            yield from self.until_all_took(step - 1)
            yield from self.write(step)

    def until_all_took(self, step: int) -> Way:
        """Wait until every member has: then the mirror before `step` is decided, and may be the one to keep."""
        worker, standing = self.worker, self.worker.standing
        while True:
            view = yield from standing.settled()
            if all(self.arena.taken[member] >= step for member in view.members):
                return
            if worker.phase != "wait":
                worker.enter("wait")
            yield from standing.wait()

    def write(self, step: int) -> Way:
        """Write this worker's chunks."""
        worker = self.worker
        phase = worker.phase
        worker.enter("mirror")
        yield TOUCH_S
        if not self.has(step):
            target, last = self.target(step), self.arena.chunks - 1
            for chunk in (last, *range(last)):
                yield from self.chunk(step, Piece(target, chunk))
        worker.enter(phase)

    def chunk(self, step: int, place: Piece) -> Way:
        """Write one chunk, as long as it is this worker's."""
        arena, worker, value = self.arena, self.worker, (self.worker.state(), place.chunk)
        claim = -2 - int(worker.world.scheduler.chance() * (1 << 60))
        if not self.owns(place):
            return
        yield TOUCH_S

        def begin() -> None:
            if arena.mirrors[place.generation].seals[place.chunk] != step:
                arena.claim_chunk(worker.who, place, step, claim)

        if not (yield from self.do(place, None, begin)):
            return
        for piece in range(PIECES):
            here = place._replace(piece=piece)
            pieces = (
                lambda here=here: arena.mirror(worker.who, here, step, TORN),
                lambda here=here: arena.mirror(worker.who, here, step, value),
            )
            if not (yield from self.do(place, claim, *pieces)):
                return
        yield from self.do(place, claim, lambda: arena.seal_chunk(worker.who, place, step, (value,) * PIECES))

    def owns(self, place: Piece) -> bool:
        """Return whether the chunk is this worker's under the view in force, and it is not about to go.

        Others may begin that step as soon as it has agreed, and write the next mirror without waiting for it.
        """
        view, chunks = self.worker.standing.view, max(1, self.arena.chunks - 1)
        return view is not None and mirror_owner(view, place.chunk % chunks, chunks) == self.worker.rank

    def do(self, place: Piece, claim: int | None, *actions: Callable[[], None]) -> Generator[Any, Any, bool]:
        """Do `actions` under the pen if the chunk is still this worker's; False if it was not."""
        worker, standing = self.worker, self.worker.standing
        while True:
            yield worker.pen
            if not standing.promised:
                mine = self.owns(place) and self.holds(place, claim)
                for action in actions if mine else ():
                    action()
                    yield TOUCH_S
                worker.pen.release()
                worker.advance()
                yield TOUCH_S
                return mine and (claim is not None or self.arena.mirrors[place.generation].seals[place.chunk] < 0)
            worker.pen.release()
            yield from standing.wait()

    def holds(self, place: Piece, claim: int | None) -> bool:
        """Return whether nobody else has claimed the chunk since."""
        return claim is None or self.arena.mirrors[place.generation].seals[place.chunk] == claim

    # Loading ------------------------------------------------------------------------------------------------

    def load(self) -> Generator[Any, Any, int]:
        """Load the newest mirror: whole, by its digests, and by its seals as they were before and are after."""
        worker, arena = self.worker, self.arena
        worker.enter("replay")
        faults: set[tuple[int, int]] = set()
        while True:
            steps = [(mirror.step, index) for index, mirror in enumerate(arena.mirrors)]
            whole = [(s, i) for s, i in steps if s is not None and (s, i) not in faults]
            if not whole:
                yield from worker.raises("no mirror can be trusted")
            step, index = max(whole)
            mirror = arena.mirrors[index]
            seals, found = list(mirror.seals), []
            for chunk in range(arena.chunks):
                copied = []
                for piece in range(PIECES):
                    yield LOAD_S
                    copied.append(mirror.content[chunk][piece])
                found.append((tuple(copied), mirror.digests[chunk]))
            yield TOUCH_S
            corrupt = self.corrupt(found)
            if not self.untouched(seals, mirror.seals):
                continue
            if corrupt:
                faults.add((step, index))
                continue
            state = found[0][0][0][0]
            if any(value != (state, chunk) for chunk, (copied, _) in enumerate(found) for value in copied):
                state = (step, ", mixed")
            worker.loads(step, state)
            yield TOUCH_S
            return step

    def corrupt(self, found: list[tuple[tuple[Any, ...], Any]]) -> bool:
        """Return whether some chunk is not what its digest says."""
        return any(copied != digest for copied, digest in found)

    def untouched(self, before: list[int], after: list[int]) -> bool:
        """Return whether nothing was written meanwhile."""
        return before == after
