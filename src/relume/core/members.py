"""What the coordinator knows of each worker."""

from __future__ import annotations

from dataclasses import dataclass

from relume.core.events import Cause, Joined
from relume.core.view import NONE
from relume.wire.messages import Ballot


@dataclass(slots=True)
class Member:
    """A worker as the coordinator sees it. `cause`: why it is out, None while nothing is held against it."""

    joined: Joined | None = None
    joined_s: float = 0.0
    cause: Cause | None = None
    lost_s: float = 0.0
    fenced_s: float | None = None
    promised: Ballot = NONE
    done: int | None = None
    digest: str = ""
    exited: bool = False
    step: int = -1

    @property
    def alive(self) -> bool:
        """True while nothing is held against it."""
        return self.cause is None
