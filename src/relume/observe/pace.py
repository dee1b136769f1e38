"""How fast steps go, from looks at a step counter: pure, and robust against looks that come late."""

from __future__ import annotations

from collections import deque

WINDOW_S = 6.0
"""Long enough for a few steps, short enough to show that something has changed."""


class Pace:
    """Give it (now, steps done); it tells the seconds a step takes."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, int]] = deque()

    def look(self, now_s: float, steps: int) -> None:
        """Take a look. The first step of all is not counted: it warms up."""
        if steps < 1:
            return
        if not self._changes or self._changes[-1][1] != steps:
            self._changes.append((now_s, steps))
        while len(self._changes) > 2 and now_s - self._changes[0][0] > WINDOW_S:
            self._changes.popleft()

    @property
    def step_s(self) -> float | None:
        """Seconds per step, None while unknown."""
        if len(self._changes) < 2:
            return None
        (from_s, first), (to_s, last) = self._changes[0], self._changes[-1]
        return (to_s - from_s) / (last - first) if last > first else None
