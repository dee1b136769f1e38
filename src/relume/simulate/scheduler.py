"""A clock that moves when nothing is left to do at its present instant, and the one source of chance.

Actions at one instant come in the order in which they were asked for, so that a history follows from its seed alone.
Nothing here knows what is simulated.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class Scheduler:
    """Discrete events. `now` is in seconds and starts at 1.0, so that it is never confused with "never" (0.0)."""

    def __init__(self, seed: int) -> None:
        self.now = 1.0
        self.random = random.Random(seed)
        self.chance = self.random.random
        self.done = 0
        self._queue: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_s: float, action: Action, *arguments: Any) -> None:  # noqa: ANN401 - whatever `action` takes
        """Have `action(*arguments)` done `delay_s` from now. One that has lost its point has to see that itself."""
        self._asked += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._asked, action, arguments))

    def between(self, low_s: float, high_s: float) -> float:
        """Return a time between the two."""
        return low_s + (high_s - low_s) * self.chance()

    def advance(self) -> bool:
        """Do the next action; False if there is none."""
        if not self._queue:
            return False
        self.done += 1
        self.now, _, action, arguments = heapq.heappop(self._queue)
        action(*arguments)
        return True
