"""When a checkpoint is due, when to try again after trouble, and what of it is told: pure, `now_s` is passed in.

A disk that refuses must cost neither the training nor a person's patience: each sort of trouble is told once, until
something has been written again, and what failed is tried again ever more seldom. The same patience serves a scribe
that keeps dying. It does not know what a checkpoint is, nor how one is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RETRY_S_MIN = 1.0
RETRY_S_MAX = 60.0
SLOW_S = 30.0
"""A checkpoint that has been under way for so long is told: the disk is slow or hangs. Nothing is done about it."""


@dataclass(slots=True)
class Upkeep:
    """Tell it what happened; ask what is due. Steps are those of mirrors: the state before that step.

    `written`: the newest step that is on the disk (0: none; the state before step 0 is the script's own).
    """

    every_steps: int | None
    every_s: float | None
    began_s: float
    written: int = 0
    busy_since_s: float | None = None
    _successes: int = 0
    _retry_s: float = 0.0
    _not_before_s: float = 0.0
    _told: set[str] = field(default_factory=set)

    def due(self, now_s: float, newest: int) -> bool:
        """Return whether the mirror of `newest` shall be written now."""
        if self.busy_since_s is not None or now_s < self._not_before_s or newest <= self.written:
            return False
        if self.every_steps is not None and newest // self.every_steps > self.written // self.every_steps:
            return True
        return self.every_s is not None and now_s >= self.began_s + self.every_s

    def may_start(self, now_s: float) -> bool:
        """Return whether a scribe that is not there may be started (again) now."""
        return now_s >= self._not_before_s

    def begin(self, now_s: float) -> None:
        """A checkpoint is being written from now on."""
        self.busy_since_s = self.began_s = now_s

    def resumed(self, step: int) -> None:
        """The run goes on from the checkpoint of `step`."""
        self.written = step

    def succeed(self, step: int) -> bool:
        """It is on the disk. Return whether that is news: the first one, or the first after trouble."""
        news = not self._successes or bool(self._told)
        self._successes += 1
        self.busy_since_s, self.written = None, max(step, self.written)
        self._retry_s = self._not_before_s = 0.0
        self._told.clear()
        return news

    def fail(self, kind: str, now_s: float) -> bool:
        """It is not, or the scribe died. Return whether to tell: this sort of trouble was not told yet."""
        self.busy_since_s = None
        self._retry_s = min(max(2 * self._retry_s, RETRY_S_MIN), RETRY_S_MAX)
        self._not_before_s = now_s + self._retry_s
        return self.tell(kind)

    def slow(self, now_s: float) -> bool:
        """Return whether to tell that the checkpoint under way takes long."""
        return self.busy_since_s is not None and now_s >= self.busy_since_s + SLOW_S and self.tell("slow")

    def tell(self, kind: str) -> bool:
        """Return whether trouble of this sort is new, and remember that it was told."""
        new = kind not in self._told
        self._told.add(kind)
        return new
