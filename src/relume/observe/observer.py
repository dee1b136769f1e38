"""One look after another at a run: its agent is asked, its files are read, and a `Snapshot` comes out.

The agent answers from memory in microseconds; all else is read from files. Nothing here writes, signals, or holds
anything that the run could wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from relume.agent.status import ask
from relume.observe.journal import Journal
from relume.observe.pace import Pace
from relume.observe.records import Records
from relume.observe.standing import Standing, standing
from relume.observe.story import Story
from relume.observe.tail import Tail
from relume.wire.messages import StatusReply

ANSWER_S = 2.0
"""How long the agent may take to answer before it counts as silent."""
_LAST_WORDS_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one instant. `steps` are done, of `total` (0: unknown); `loss` is NaN and `step_s` None if unknown."""

    folder: Path
    run: str
    standing: Standing
    story: Story
    reply: StatusReply | None
    steps: int
    total: int
    loss: float
    step_s: float | None
    says: str
    problems: tuple[str, ...]
    now_s: float

    @property
    def main(self) -> int | None:
        """The rank that prints."""
        if self.reply is not None and self.reply.view is not None:
            return self.reply.view.main
        return self.story.view.members[0] if self.story.view is not None else None


class Observer:
    """Looks at the run in `folder`. `records` is the folder that RELUME_RECORD named, if one is known."""

    def __init__(
        self,
        folder: Path,
        records: Path | None = None,
        asking: Callable[[str, float], StatusReply | None] = ask,
    ) -> None:
        self._folder = folder
        self._journal = Journal(folder)
        self._records = Records(records) if records is not None else None
        self._ask = asking
        self._story = Story()
        self._pace = Pace()
        self._facts: dict[str, Any] = {}
        self._logs: dict[int, Tail] = {}
        self._says = ""
        self._steps = 0
        self._total = 0

    def look(self) -> Snapshot:
        """Return how the run stands now. Raises `ConfigError` if the events may not be read."""
        self._read()
        run = self._story.started.run if self._story.started is not None else self._folder.name
        reply = None
        if self._story.ended is None:
            reply = self._ask(run, ANSWER_S)
            if reply is None:
                self._read()  # it may have ended between the two
        stands = standing(self._story, reply)
        self._count(reply)
        now = time.monotonic()
        self._pace.look(now, self._steps)
        return Snapshot(
            folder=self._folder,
            run=run,
            standing=stands,
            story=self._story,
            reply=reply,
            steps=self._steps,
            total=self._total,
            loss=self._records.loss if self._records is not None else math.nan,
            step_s=self._pace.step_s,
            says=self._listen(reply),
            problems=tuple(self._journal.problems(ended=stands is not Standing.LIVE)),
            now_s=now,
        )

    def _read(self) -> None:
        for line in self._journal.read():
            self._story.take(line)
        if self._records is not None:
            self._records.read()
            self._steps = max(self._steps, self._records.steps)

    def _count(self, reply: StatusReply | None) -> None:
        """Find out how many steps are done, and of how many."""
        if reply is not None:
            self._total = max(self._total, reply.total)
            done = max((w.step for w in reply.workers), default=0) + (reply.state == "closed")
            self._steps = max(self._steps, min(done, self._total or done))
            return
        if not self._total:
            self._total = self._recorded("steps")
        done = self._recorded("steps_done")  # told at a run's end: an early one has fewer than it set out for
        if done:
            self._steps = done
            return
        if self._story.ended is not None and self._story.ended.outcome == "completed":
            self._steps = max(self._steps, self._total)
        heard = [view.step for view in self._story.views] + [incident.step for incident in self._story.incidents]
        self._steps = max([self._steps, *heard])

    def _recorded(self, name: str) -> int:
        try:
            facts = msgspec.json.decode((self._folder / "run.json").read_bytes())
            return max(0, int(facts[name]))
        except (OSError, msgspec.MsgspecError, ValueError, KeyError, TypeError):
            return 0

    def _listen(self, reply: StatusReply | None) -> str:
        """Return the last line that the main worker printed."""
        if reply is None or reply.view is None:
            return self._says
        main = reply.view.main
        log = self._logs.setdefault(main, Tail(self._folder / f"worker-{main}.log", _LAST_WORDS_BYTES))
        try:
            lines = [line for line in log.lines() if line.strip()]
        except OSError:
            lines = []
        if lines:
            self._says = lines[-1].decode(errors="replace").strip()
        return self._says
