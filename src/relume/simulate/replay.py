"""A joiner's way to the present: a model of `train.replay`, of `Store.kept`, and of the boundary in `train.loop`.

Each guard is a method of its own, so that a test can plant a bug by overriding it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relume.simulate.processes import Way
from relume.simulate.standing import TOUCH_S
from relume.wire.messages import Level

if TYPE_CHECKING:
    from relume.simulate.worker import Worker

COPY_S = 0.0005
"""Copying a part of what a step left."""
Copy = tuple[tuple[Any, ...], tuple[Any, ...], Any]
"""What a step left: cells, notes, buffers."""


class Joiner:
    """`replaying`: not live yet. `ended`: stands where the run's loop has ended. `gone`: the run ended without it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.arena = worker.arena
        self.loaded = 0
        self.said = False
        self.replaying = self.ended = self.gone = False

    def start(self) -> Generator[Any, Any, int]:
        """Return the step before which this worker's loop begins, having loaded the state as it stood there."""
        view, standing = self.worker.standing.view, self.worker.standing
        self.replaying = standing.replay is not None or (view is not None and view.step > 0)
        if self.replaying and self.worker.mirroring.newest()[0] > 0:
            return (yield from self.load())
        return 0

    def load(self) -> Generator[Any, Any, int]:
        """Load the newest mirror."""
        self.loaded = yield from self.worker.mirroring.load()
        self.said = False
        return self.loaded

    def arrive(self, step: int, *, left: bool) -> Generator[Any, Any, tuple[int, Copy | None]]:  # noqa: C901 - as long as the original
        """Stand before `step`, and wait until it is clear how to go on.

        Return the step to go on with, and what is kept of it if it is to be replayed.
        """
        worker, standing, arena = self.worker, self.worker.standing, self.arena
        total = worker.world.settings.steps
        while True:
            if (yield from standing.admitted(step)):
                self.replaying = False
                return step, None
            if standing.replay is not None and 0 <= standing.replay.end <= step:
                self.ended = True
                return step, None
            if standing.closed is not None:
                self.gone = True
                return step, None
            yield TOUCH_S
            newest = arena.newest_complete()
            copy = None if left or step >= total else (yield from self.kept(step))
            if copy is not None:
                return step, copy
            if newest < step:
                if not self.said:
                    self.said = True
                    worker.says_level(step)
                    yield TOUCH_S
                    worker.send(Level(step, self.loaded, ""))
            elif left:
                yield from worker.raises("left in a replay")
            elif worker.mirroring.newest()[0] > step:
                step = worker.step = yield from self.load()
                continue
            if worker.phase != "spare":
                worker.enter("spare")
            yield from standing.wait()

    def kept(self, step: int) -> Generator[Any, Any, Copy | None]:
        """Return a copy of what `step` left; None if it is not complete yet, or not whole any more."""
        arena, place = self.arena, step % self.arena.kept
        if not self.whole(step):
            return None
        copy = []
        for cell in range(arena.cells):
            copy.append(arena.results[place][cell])
            yield COPY_S
        buffers = arena.buffers[place]
        yield COPY_S
        notes = tuple(arena.notes[place])
        yield TOUCH_S
        return (tuple(copy), notes, buffers) if self.still_whole(step) else None

    def whole(self, step: int) -> bool:
        """Return whether all of it stands here, by the seals."""
        return self.arena.whole(step)

    def still_whole(self, step: int) -> bool:
        """Return whether it did all the time (Invariant 8)."""
        return self.arena.whole(step)

    def retake(self, step: int, copy: Copy) -> Way:
        """Take a step that the others took before."""
        self.worker.enter("replay")
        yield TOUCH_S
        self.worker.takes_in(step, copy)
        yield TOUCH_S
