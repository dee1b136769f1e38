"""Who should be in the next view, and from which step on: the pure part of rule 10.

A view that brings somebody in, or lets somebody go, begins with a step that nobody has begun. Members promise not to
start it without that view; until all have, nothing is decided, and nobody waits who has not come to that step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from relume.wire.messages import View

AHEAD_MAX = 10
PATIENCE_S = 0.5
"""A proposal that is not decided by then is withdrawn: a member that does not answer holds up nobody."""
RETRY_S = 0.2
GATHER_S = 0.5
"""A run that pauses and has enough again waits so long for others that are about to be level: a step of few is long."""
BEHIND_MAX = 16
"""A joiner that was level and is further behind now is not proposed: the members would wait for it."""


@dataclass(slots=True)
class Proposal:
    """A view that is not decided yet, and who has accepted it."""

    view: View
    made_s: float
    accepted: set[int] = field(default_factory=set)


def next_members(now: Collection[int], leaving: Collection[int], level: Iterable[int], target: int) -> tuple[int, ...]:
    """Return the members of the next view: those that stay, and joiners (lowest rank first) up to `target`."""
    members = [rank for rank in now if rank not in leaving]
    for rank in sorted(level):
        if len(members) >= target:
            break
        members.append(rank)
    return tuple(sorted(members))


def first_step(newest: int, attempt: int) -> int:
    """Return the first step of a proposed view, when `newest` is the newest step that anybody is known to have begun.

    The next one, at first; each refusal doubles the distance, so that a few rounds do for steps of any length.
    """
    return newest + (1 << min(attempt, AHEAD_MAX))
