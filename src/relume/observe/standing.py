"""Is a run live, over, or neither? An agent that was killed writes no last line: its silence has to be told apart."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path

from relume.observe.story import Story
from relume.wire.messages import StatusReply

_CLOCK_STEP_S = 2.0
"""The clock may have been set between the agent's start and its first event by so much at most."""


class Standing(StrEnum):
    """How a run stands, seen from outside."""

    LIVE = "live"
    ENDED = "ended"
    DEAD = "dead"  # the agent is gone without a last word
    SILENT = "silent"  # the agent is there and does not answer us


def standing(story: Story, reply: StatusReply | None) -> Standing:
    """Judge by what the events say, what the agent answered, and whether its process is there."""
    if story.ended is not None:
        return Standing.ENDED
    if reply is not None:
        return Standing.LIVE
    if story.started is not None and is_process(story.started.agent_pid, story.started_s):
        return Standing.SILENT
    return Standing.DEAD


def is_process(pid: int, there_at_s: float) -> bool:
    """Return True if process `pid` lives and is the one that did so at `there_at_s` (seconds since 1970)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    state, started_ticks = fields[0], int(fields[19])
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s = booted_s + started_ticks / os.sysconf("SC_CLK_TCK")
    return state not in {"Z", "X"} and started_s <= there_at_s + _CLOCK_STEP_S
