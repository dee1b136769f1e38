"""Before a joiner is taken for level: what it shows of its state is compared with what a member shows (scenario 5).

The mirror's digests say that it loaded the right state; its replay may still go wrong, with a scheduler that was not
protected. Once it computed with the others, its error would be in their sum. So the last look is before that: both show
digests at a step's begin, and here one waits for a step that both have shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from relume.agent.arena import Arena
from relume.agent.worker import Worker
from relume.arena.progress import ASPECTS, Pulse

POLL_S = 0.003
PATIENCE_S = 1.0
"""Steps may be too short to meet in one. What the vigil compares later is the same."""


@dataclass(slots=True)
class Gate:
    """`members()` returns the ranks that may write; `let_in(worker)` and `turn_away(worker, why)` are the answers."""

    arena: Arena
    members: Callable[[], list[int]]
    let_in: Callable[[Worker], None]
    turn_away: Callable[[Worker, str], None]

    def knock(self, worker: Worker) -> None:
        """`worker` says that it is level."""
        self._look(worker, time.monotonic() + PATIENCE_S)

    def _look(self, worker: Worker, end_s: float) -> None:
        if worker.condemned or worker.wait_status is not None:
            return
        others = [rank for rank in self.members() if rank != worker.rank]
        found = compare(self.arena.pulses(worker.rank), [self.arena.pulses(rank) for rank in others])
        if found is None and time.monotonic() < end_s:
            asyncio.get_running_loop().call_later(POLL_S, self._look, worker, end_s)
        elif found:
            self.turn_away(worker, found)
        else:
            self.let_in(worker)


def compare(joiner: list[Pulse], members: list[list[Pulse]]) -> str | None:
    """Say in what a joiner differs ("": in nothing that was shown), None while no step was shown by both."""
    if not joiner or not members:
        return ""
    newest = max(joiner, key=lambda pulse: pulse.step)
    same = [pulse for pulses in members for pulse in pulses if pulse.step == newest.step]
    if not same:
        return None
    for what, name in ASPECTS:
        if all(getattr(pulse, name) != getattr(newest, name) for pulse in same):
            return (
                f"it came back wrong: before step {newest.step}, {what} is not what the others have. Something that "
                "decides a step is not protected, so that it began anew here: give it to run.protect or run.vars"
            )
    return ""
