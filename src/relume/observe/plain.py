"""A run in progress as plain lines, for pipes and logs: what happened, when it happens, and now and then how far."""

from __future__ import annotations

import math

from relume.core.words import plural
from relume.observe.observer import Snapshot
from relume.observe.standing import Standing
from relume.observe.tale import told
from relume.observe.wording import clock, duration, named

EVERY_S = 5.0


class Lines:
    """Give it snapshots; it returns the lines to print, each of them once."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._begun = False
        self._training = False
        self._told = 0
        self._ended = False
        self._told_s = -math.inf
        self._told_steps = 0
        self._uptime_s = 0.0

    def look(self, snapshot: Snapshot) -> list[str]:
        """Return what is new."""
        story, lines = snapshot.story, []
        if snapshot.reply is not None:
            self._uptime_s = snapshot.reply.uptime_s
        if not self._begun and story.started is not None:
            self._begun = True
            lines.append(f"run {snapshot.run}: {plural(story.started.workers, 'worker')}, {story.script}")
        if not self._training and story.views:
            self._training = True
            self._told_s = snapshot.now_s
            who = named(list(story.views[0].members))
            shards = f", {plural(story.shards, 'shard')} each" if story.shards else ""
            steps = plural(snapshot.total, "step") if snapshot.total else "steps"
            lines.append(f"training begins: {steps}{shards}, {who}")
        lines += [told(event) for _, event in story.tale[self._told :]]
        self._told = len(story.tale)
        if self._training and snapshot.steps > self._told_steps and snapshot.now_s - self._told_s >= self._every_s:
            lines.append(self._progress(snapshot))
        if not self._ended and snapshot.standing in {Standing.ENDED, Standing.DEAD}:
            self._ended = True
            if snapshot.steps > self._told_steps:
                lines.append(self._progress(snapshot))
            lines.append(f"{story.ended.reason} [{story.ended.outcome}]" if story.ended else "the agent is gone")
        return [f"{clock(self._uptime_s):>5}  {line}" for line in lines]

    def _progress(self, snapshot: Snapshot) -> str:
        self._told_s, self._told_steps = snapshot.now_s, snapshot.steps
        text = f"step {snapshot.steps} of {snapshot.total or '?'}"
        if not math.isnan(snapshot.loss):
            text += f", loss {snapshot.loss:.4f}"
        return f"{text}, {duration(snapshot.step_s)} a step" if snapshot.step_s is not None else text
