"""What each worker is doing right now, in words that outlive it, and what it did just before.

The progress block is where a death is read from: phase, step and shard at the last instant. The flight recorder
is a ring of the latest entries. Both are written by their worker alone; the agent only reads.

A *trap* ends its own process at an exact point, for tests and `relume chaos`: on entering a phase of a step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from relume.arena.layout import PROGRESS_WORDS, RECORDER_ENTRIES, RECORDER_ENTRY_WORDS, ControlLayout

PHASES: Final = (
    "joining",
    "load",
    "forward",
    "backward",
    "publish",
    "wait",
    "sum",
    "take",
    "update",
    "between",
    "view",
    "aside",
    "tail",
    "replay",
    "mirror",
    "admission",
    "early",
)
_BACKGROUND: Final = frozenset({"view", "admission", "early"})
_CODE = {name: code for code, name in enumerate(PHASES)}
_COUNTER, _PHASE, _STEP, _SHARD, _SINCE, _TAKEN, _PID, _KILLED, _LEFT, _PULSES = range(10)
NO_SHARD = -1

STACK_SIGNAL: Final = 43
"""On this signal (SIGRTMIN+9) a worker writes its main thread's stack to standard error, whatever it is stuck in."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A progress block as read. `since_ns` and `killed_ns` (0: not by a trap) are of the monotonic clock.

    `left`: the loop over the steps is left, though its worker may not have said so yet.
    """

    counter: int
    phase: str
    step: int
    shard: int
    since_ns: int
    taken: int
    pid: int
    killed_ns: int
    left: bool = False


@dataclass(frozen=True, slots=True)
class Trap:
    """End this process at the `nth` moment that `rank` has in `phase` of `step`: on entering it, or at a hook within.

    `step` None: in any step. In `view` and `admission` (a loss, and the coming of another, as the background thread
    meets them), which belong to no step, `step` is the earliest; with `later` it is so in any phase, since nobody knows
    beforehand in which step a joiner is admitted. `life`: only the process that so many of its rank came before (None:
    each). With `entry`, moments count only within the entry-th time that the phase is entered in that step (for load to
    publish: in the worker's entry-th shard), and the trap springs at the phase's end if it has fewer than that, so that
    it is never missed.
    """

    rank: int
    phase: str
    step: int | None = None
    nth: int = 0
    action: str = "kill"
    entry: int | None = None
    life: int | None = None
    later: bool = False


def parse_traps(text: str, rank: int, life: int = 0) -> list[Trap]:
    """Return the traps for `rank` in its `life` in the JSON list `text`."""
    traps = [Trap(**entry) for entry in json.loads(text)]
    return [trap for trap in traps if trap.rank == rank and trap.life in {None, life}]


def read(words: memoryview, layout: ControlLayout, rank: int) -> Moment:
    """Return the progress of `rank`."""
    base = layout.progress(rank)
    step = words[base + _STEP] - 1  # before the phase, which is written before it: never an old phase of a new step
    return Moment(
        counter=words[base + _COUNTER],
        phase=PHASES[words[base + _PHASE]],
        step=step,
        shard=words[base + _SHARD] - 1,
        since_ns=words[base + _SINCE],
        taken=words[base + _TAKEN] - 1,
        pid=words[base + _PID],
        killed_ns=words[base + _KILLED],
        left=bool(words[base + _LEFT]),
    )


def taken(words: memoryview, layout: ControlLayout, rank: int) -> int:
    """Return the newest step that `rank` has copied out of the arena, or -1."""
    return words[layout.progress(rank) + _TAKEN] - 1


def in_use(words: memoryview, layout: ControlLayout, rank: int) -> bool:
    """True if a process has taken the seat `rank`, whatever became of it."""
    return words[layout.progress(rank) + _PID] != 0


@dataclass(frozen=True, slots=True)
class Pulse:
    """Digests of what must be equal on all workers at the begin of `step`: plain values, a part of the parameters."""

    step: int
    values: int
    parameters: int


ASPECTS: Final = (("a learning rate, scheduler, scaler or run.vars", "values"), ("a parameter", "parameters"))
"""What each digest of a pulse is of, in words, and its name."""


def pulses(words: memoryview, layout: ControlLayout, rank: int) -> list[Pulse]:
    """Return the pulses of `rank` for its two newest steps, whole ones only."""
    found = []
    for parity in range(2):
        base = layout.progress(rank) + _PULSES + 3 * parity
        step, values, parameters = words[base], words[base + 1], words[base + 2]
        if step and words[base] == step:
            found.append(Pulse(step - 1, values, parameters))
    return found


class Progress:
    """A worker's own progress block and flight recorder. A new life of a rank begins with everything at zero."""

    def __init__(self, words: memoryview, layout: ControlLayout, rank: int, traps: list[Trap]) -> None:
        self._words = words
        self._base = layout.progress(rank)
        self._ring = layout.recorder(rank)
        self._traps = traps
        self._hits = [0] * len(traps)
        self._sprung: set[int] = set()
        self._entered: dict[tuple[int, str], int] = {}
        self._entered_step = -1
        self._entries = 0
        self.step = -1
        self.phase = "joining"
        self.leave: Callable[[], None] | None = None
        for first, count in ((self._base, PROGRESS_WORDS), (self._ring, RECORDER_ENTRIES * RECORDER_ENTRY_WORDS)):
            for word in range(first, first + count):
                words[word] = 0
        words[self._base + _PID] = os.getpid()
        self.enter("joining")

    def enter(self, phase: str, shard: int = NO_SHARD) -> None:
        """Note that the main thread is now in `phase`; a trap may end the process here."""
        if self._traps:
            self._count_entry(phase)
        words, base = self._words, self._base
        now = time.monotonic_ns()
        self.phase = phase
        words[base + _PHASE] = _CODE[phase]
        words[base + _SHARD] = shard + 1
        words[base + _STEP] = self.step + 1
        words[base + _SINCE] = now
        words[base + _COUNTER] += 1
        entry = self._ring + self._entries % RECORDER_ENTRIES * RECORDER_ENTRY_WORDS
        words[entry], words[entry + 1], words[entry + 2], words[entry + 3] = (
            now,
            _CODE[phase],
            self.step + 1,
            shard + 1,
        )
        self._entries += 1
        if self._traps:
            self.spring(phase)

    def advance(self) -> None:
        """Note that something moved within the phase."""
        self._words[self._base + _COUNTER] += 1

    def take(self, step: int) -> None:
        """Note that `step` is copied out: its leaves and its result may be overwritten (rule 5)."""
        self._words[self._base + _TAKEN] = step + 1

    def leave_loop(self) -> None:
        """Note that the script has left its loop over the steps, by a `break` or by an exception that is on its way."""
        self._words[self._base + _LEFT] = 1

    def spring(self, phase: str) -> None:
        """Meet the traps of `phase` without entering it (from hooks, and from the background thread)."""
        for index, trap in enumerate(self._traps):
            if trap.phase == phase and self._is_due(trap, self.step):
                self._hits[index] += 1
                if self._hits[index] == trap.nth + 1:
                    self._end(index)

    def _is_due(self, trap: Trap, step: int) -> bool:
        from_then_on = trap.later or trap.phase in _BACKGROUND
        if trap.step not in {None, step} and not (from_then_on and (trap.step or 0) <= step):
            return False
        return trap.entry is None or trap.entry == self._entered.get((step, trap.phase))

    def _count_entry(self, phase: str) -> None:
        """End the entry before, with the traps that wanted more moments than it had; count this one, of `phase`."""
        for index, trap in enumerate(self._traps):
            begun = trap.entry is not None and trap.phase == self.phase and self._hits[index] > 0
            if begun and self._is_due(trap, self._entered_step):
                self._end(index)
        key = (self.step, phase)
        self._entered[key] = self._entered.get(key, -1) + 1
        self._entered_step = self.step

    def pulse(self, pulse: Pulse) -> None:
        """Show the digests of a step's begin."""
        words, base = self._words, self._base + _PULSES + 3 * (pulse.step % 2)
        words[base] = 0
        words[base + 1], words[base + 2] = pulse.values, pulse.parameters
        words[base] = pulse.step + 1

    def wants(self, phase: str) -> bool:
        """True if a trap waits in `phase`."""
        return any(trap.phase == phase for trap in self._traps)

    def _end(self, index: int) -> None:
        if index in self._sprung:
            return
        self._sprung.add(index)
        trap = self._traps[index]
        self._words[self._base + _PHASE] = _CODE[trap.phase]  # the background thread's traps have a phase of their own
        self._words[self._base + _KILLED] = time.monotonic_ns()
        if trap.action == "leave" and self.leave is not None:
            self.leave()
            while True:  # a CPU burner in the place of the one that left
                pass
        elif trap.action == "raise":
            raise RuntimeError(f"a trap in phase {trap.phase} of step {self.step}")
        elif trap.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # the signal is on its way to this very thread
