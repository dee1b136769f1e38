"""A joiner's way to the present: the mirror, then the user's own loop over kept results, until it is level.

At every boundary a joiner looks where it is. It is live once a view with it is in force for this step. Else, if the
step's result is kept, the step is replayed: its inner loop yields nothing, and `.grad`, buffers and logged values are
the kept ones. If the result is gone, the others were faster than the mirror that this one came from: it jumps to a
newer one. And if there is no such result yet it is level: it says so, and waits to be admitted, as a spare for ever.

Those who train are not asked and do not wait (DESIGN.md, "Coming back"): all this reads what they write anyway.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from relume.errors import StateError
from relume.wire.messages import Level, Remark

if TYPE_CHECKING:
    from collections.abc import Callable

    from relume.train.mirroring import Mirroring
    from relume.train.seat import Seat
    from relume.train.store import Kept, Store

JUMPS_TOLD = 3
OVERTAKEN_S = 30.0
"""Whoever lacks a result that nobody has any more waits so long for a newer mirror."""


class Way:
    """`replaying`: not live yet. `ended`: stands where the run's loop has ended. `gone`: the run ended without it."""

    def __init__(self, seat: Seat, store: Store, mirroring: Mirroring) -> None:
        self._seat = seat
        self._store = store
        self._mirroring = mirroring
        self._loaded = 0
        self._digest = ""
        self._said = False
        self._jumps = 0
        self.show: Callable[[int], None] = lambda _: None
        self._overtaken_s = 0.0
        view, standing = seat.standing.view, seat.standing
        self.replaying = standing.replay is not None or (view is not None and view.step > 0)
        self.ended = False
        self.gone = False

    def start(self) -> int:
        """Return the step before which this worker's loop begins, having loaded the state as it stood there."""
        if not self.replaying:
            return 0
        if self._mirroring.newest() > 0:
            return self._load()
        self._digest = self._mirroring.digest()
        return 0

    def arrive(self, step: int, total: int, *, left: bool) -> tuple[int, Kept | None]:
        """Stand before `step`, with the loop over at `total`, or now (`left`). Wait until it is clear how to go on.

        Return the step to go on with, which is another one after a jump, and what is kept of it if it is to be
        replayed. Nothing kept: this worker is live from here, or `ended`, or `gone`.
        """
        standing, progress = self._seat.standing, self._seat.progress
        standing.waits = []
        while True:
            if standing.admitted(step):
                self.replaying = False
                standing.waits = []  # no wait of a step, but for being let in
                break
            if standing.replay is not None and 0 <= standing.replay.end <= step:
                self.ended = True
                break
            if standing.closed is not None:
                self.gone = True
                break
            kept = None if left or step >= total else self._store.kept(step)
            if kept is not None:
                self._overtaken_s = 0.0
                self._back_from_wait()
                return step, kept
            if left and self._store.seals.newest_complete() >= step:
                raise StateError(_left_alone(self._seat.rank, step))
            if not self._store.is_gone(step):
                self._say_level(step)
            elif self._mirroring.newest() > step:
                step = self._jump()
                continue
            else:
                self._lag(step)
            if progress.phase != "wait":
                progress.enter("wait")
            standing.wait()
        self._back_from_wait()
        return step, None

    def _jump(self) -> int:
        """Go on from a newer mirror: the others were faster. That may never end, so that somebody has to know."""
        self._jumps += 1
        if self._jumps == JUMPS_TOLD and self._seat.link is not None:
            text = f"worker {self._seat.rank} does not come level: the others are faster than its replay of what the "
            text += "script does between two steps (`if not step.replay:` leaves out what changes no state)"
            self._seat.link.send(Remark("slow_replay", text, self._mirroring.newest()))
        return self._load()

    def _load(self) -> int:
        self._loaded, self._digest = self._mirroring.load()
        self._said = False
        self._seat.progress.take(self._loaded - 1)
        return self._loaded

    def _say_level(self, step: int) -> None:
        """Say once where this worker stands, unless the step's place is just being written for a newer one."""
        if not self._said and self._seat.link is not None and self._store.seals.newest_complete() < step:
            self._said = True
            self.show(step)  # what is compared before anybody lets this worker in
            self._seat.link.send(Level(step, self._loaded, self._digest))

    def _lag(self, step: int) -> None:
        now = time.monotonic()
        self._overtaken_s = self._overtaken_s or now
        if now - self._overtaken_s > OVERTAKEN_S:
            text = f"worker {self._seat.rank} cannot come back: it stands before step {step}, the result of that step "
            newest = self._store.seals.newest_complete()
            text += f"is not kept any more (the newest is that of step {newest}), and no newer mirror came within "
            raise StateError(text + f"{OVERTAKEN_S:.0f} s. Mirror more often (--mirror-every)")

    def _back_from_wait(self) -> None:
        if self._seat.progress.phase == "wait":
            self._seat.progress.enter("between")


def _left_alone(rank: int, step: int) -> str:
    return (
        f"worker {rank} left its loop before step {step} in a replay, and the others went on: what decides when to "
        "stop has to be protected (run.vars), or the same on all (step.mean)"
    )
