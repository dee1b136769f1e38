"""The coordinator's states; `coordinator` draws how they follow each other."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where the coordinator stands."""

    FORMING = "forming"
    STEADY = "steady"
    BALLOT = "ballot"
    COUNTING = "counting"
    PAUSED = "paused"
    CLOSED = "closed"
    ENDED = "ended"
