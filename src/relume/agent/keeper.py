"""The keeper: has the mirror written to the disk now and then, off the training path, and read back with `--resume`.

Disk is the last rung of the ladder. Nothing that a disk does (full, read-only, slow, hanging, gone) may reach the
training: all of it happens in another process, the scribe; the keeper asks for one checkpoint at a time, waits for
nothing, and tells each sort of trouble once. When and what is told is decided in `upkeep`; this is its shell. It has
no torch, and does not know what is in a state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relume.agent.scribe import Scribe
from relume.agent.upkeep import SLOW_S, Upkeep
from relume.errors import ConfigError
from relume.state import errands, folder
from relume.wire.events import CheckpointFailed, CheckpointWritten, Event

POLL_S = 0.2
READING_S = 10.0
"""While a checkpoint is being read, a person is told so often that it goes on."""
DISMISS_S = 2.0
NO_SCRIBE = "scribe"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the mirror's generation 0 holds: the state before `step`, from `path`, and what was passed over (with why).

    `facts` are those of the run that wrote it.
    """

    step: int
    path: str
    facts: dict[str, Any]
    passed_over: tuple[errands.PassedOver, ...]


class Keeper:
    """One run's keeper, for its agent's loop.

    How the supervisor uses it, with an arena that is there before any worker::

        keeper = Keeper(directory, every_steps=100, every_s=None, keep=3, mirror=arena.words, descriptors=arena.fds,
                        newest=arena.newest_mirror, facts=lambda: self._facts, emit=self._event, say=terminal.say)
        keeper.check(resume=settings.resume)        # before anything starts; ConfigError
        keeper.hold()                               # the folder is this run's alone; ConfigError
        if settings.resume:
            resumed = await keeper.resume()         # before the workers start; ConfigError
        ... start the workers ...
        keeper.start()                              # from here on checkpoints are written when they are due
        await self._over.wait()
        ... end the workers (nobody writes the mirror any more; the arena must still be there) ...
        await keeper.finish(30.0)                   # in a `finally`: bounded, and nothing of it is left afterwards
        # a second Ctrl-C meanwhile, or the first during `resume`: keeper.cut_short()

    `mirror`: the scribe's words about the arena, `control=6 mirrors=8,9 seats=8 kept=12` (see `state/scribe.py`), and
    `descriptors`: those named in it, which the scribe inherits. `newest()` returns the step of the newest whole mirror
    (0: none) from the control part's words. `facts()` returns what goes into the manifest, plain JSON: the run's id,
    shards, seed, numerics profile. `emit` takes `CheckpointWritten` and `CheckpointFailed`, `say` a sentence.
    """

    def __init__(  # noqa: PLR0913 - plain values and callables: it knows nothing of who gives them
        self,
        directory: Path,
        *,
        every_steps: int | None,
        every_s: float | None,
        keep: int,
        mirror: str,
        descriptors: Sequence[int],
        newest: Callable[[], int],
        facts: Callable[[], dict[str, Any]],
        emit: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._arguments = [str(directory), str(keep), *mirror.split()]
        self._descriptors = list(descriptors)
        self._newest, self._facts, self._emit, self._say = newest, facts, emit, say
        self._upkeep = Upkeep(every_steps, every_s, time.monotonic())
        self._scribe: Scribe | None = None
        self._ready = self._finishing = self._finished = self._hangs = False
        self._ticker: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[errands.Reply | str | None] | None = None
        self._cut = False

    @property
    def written(self) -> int:
        """The newest step that is on the disk; 0: none."""
        return self._upkeep.written

    # Before the run -------------------------------------------------------------------------------------------------

    def check(self, *, resume: bool) -> None:
        """Look at the folder before anything starts. Raises `ConfigError`."""
        where = self._directory
        try:
            if not resume:
                folder.make(where)
            found = folder.steps(where)
        except OSError as error:
            text = f"the checkpoint folder {where} cannot be used ({error.strerror}):"
            raise ConfigError(f"{text} choose another --checkpoint-dir") from error
        if found and not resume:
            text = f"{where} holds checkpoints already, the newest of step {found[0]}: --resume goes on from there."
            raise ConfigError(f"{text} For a run of its own choose another --checkpoint-dir")
        if resume and not found:
            text = f"there is no checkpoint in {where}, so there is nothing to resume."
            raise ConfigError(f"{text} Check --checkpoint-dir, or start without --resume")

    def hold(self) -> None:
        """Have the folder for this run alone, until `finish`. Raises `ConfigError` if another run has it."""
        try:
            self._hold = folder.hold(self._directory)
        except BlockingIOError as error:
            text = f"another run writes its checkpoints into {self._directory}: give each its own --checkpoint-dir"
            raise ConfigError(text) from error

    async def resume(self) -> Resumed:
        """Put the newest checkpoint that verifies into the mirror, for the workers to load. Raises `ConfigError`."""
        self._begin_scribe()
        answer = await self._ask(errands.Load(), None)
        if isinstance(answer, errands.Loaded):
            for passed in answer.passed_over:
                self._emit(CheckpointFailed(_step_of(passed.path), passed.path, passed.reason))
                self._say(f"the checkpoint {passed.path} cannot be trusted and is passed over: {passed.reason}")
            self._upkeep.resumed(answer.step)
            return Resumed(answer.step, answer.path, answer.facts, answer.passed_over)
        await self._end_scribe()
        if isinstance(answer, errands.NothingLoaded):
            listed = "".join(f"\n  {passed.path}: {passed.reason}" for passed in answer.passed_over)
            text = f"no checkpoint in {self._directory} can be loaded:{listed or ' none is there'}"
            raise ConfigError(f"{text}\n`relume checkpoint verify` says more; without --resume a run starts anew")
        reason = answer.reason if isinstance(answer, errands.Failed) else answer or "it was interrupted"
        raise ConfigError(f"no checkpoint in {self._directory} could be read: {reason}")

    def start(self) -> None:
        """Have checkpoints written when they are due, from now on."""
        self._upkeep.began_s = time.monotonic()
        self._tick()

    # During the run -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s, newest = time.monotonic(), self._newest()
        if self._scribe is None:
            if self._upkeep.may_start(now_s):
                self._begin_scribe_anyway(now_s)
        elif self._ready and self._upkeep.due(now_s, newest):
            self._request(now_s)
        if self._upkeep.slow(now_s):
            text = f"a checkpoint has been under way for {SLOW_S:.0f} s"
            self._say(f"{text}: the disk of {self._directory} is slow or hangs; training goes on")
        self._ticker = asyncio.get_running_loop().call_later(POLL_S, self._tick)

    def _request(self, now_s: float) -> None:
        assert self._scribe is not None
        self._upkeep.begin(now_s)
        self._scribe.ask(errands.Save(self._facts()))  # if it takes none it is about to be seen to have ended

    def _on_reply(self, reply: errands.Reply) -> None:
        if isinstance(reply, errands.Ready):
            self._ready = True
            return
        if isinstance(reply, errands.Saved):
            self._on_saved(reply)
        elif isinstance(reply, errands.Failed):
            self._on_trouble(reply.kind, reply.reason, reply.step)
        self._resolve(reply)

    def _on_saved(self, saved: errands.Saved) -> None:
        self._emit(CheckpointWritten(saved.step, saved.path, saved.size, saved.seconds))
        if self._upkeep.succeed(saved.step) or self._finishing:
            cost = f"{_size(saved.size)}, {saved.seconds:.1f} s"
            self._say(f"checkpoint of step {saved.step} is in {saved.path} ({cost})")
        if saved.note and self._upkeep.tell(saved.note):
            self._say(saved.note)

    def _on_trouble(self, kind: str, reason: str, step: int) -> None:
        path = str(self._directory / folder.name(step)) if step > 0 else str(self._directory)
        self._emit(CheckpointFailed(step, path, reason))
        if self._upkeep.fail(kind, time.monotonic()):
            stands = f"; the one of step {self.written} stands" if self.written else ""
            goes_on = "" if self._finishing else "; training goes on"
            self._say(f"no checkpoint was written: {reason}{stands}{goes_on}")

    def _on_end(self, cause: str) -> None:
        was_busy = self._upkeep.busy_since_s is not None
        self._scribe, self._ready = None, False
        if was_busy or not self._finishing:
            self._on_trouble(NO_SCRIBE, f"the process that writes checkpoints is gone: {cause}", self._newest())
        self._resolve(f"the process that was asked is gone: {cause}")

    def _begin_scribe(self) -> None:
        """Start a scribe. Raises `ConfigError`."""
        try:
            self._scribe = Scribe(self._arguments, self._descriptors, self._on_reply, self._on_end)
        except OSError as error:
            text = f"the process that handles checkpoints cannot be started ({error.strerror})."
            raise ConfigError(text + " Raise the limits on processes and open files (ulimit -a)") from error

    def _begin_scribe_anyway(self, now_s: float) -> None:
        try:
            self._begin_scribe()
        except ConfigError as error:
            if self._upkeep.fail(NO_SCRIBE, now_s):
                self._say(f"{error}; training goes on without checkpoints, and it is tried again")

    # The run's end --------------------------------------------------------------------------------------------------

    async def finish(self, deadline_s: float, *, write: bool = True) -> int:
        """Write what is newest, `deadline_s` at most, end the scribe; return the newest step on the disk (0: none).

        Call it when no worker writes the mirror any more and the arena is still there. `write` False: the state is not
        worth keeping (replicas that drifted apart), so only end the scribe. It raises nothing; a second call does
        nothing.
        """
        self._finishing = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        end_s = time.monotonic() + deadline_s
        try:
            if write and not self._finished:
                await self._write_last(end_s)
        finally:
            self._finished = True
            await self._end_scribe()
        return self.written

    def cut_short(self) -> None:
        """End whatever is waited for, at once: a person has asked twice."""
        self._cut = True
        self._resolve(None)

    async def _write_last(self, end_s: float) -> None:
        if self._upkeep.busy_since_s is not None and await self._answered(end_s) is None:
            self._tell_unfinished()
            return
        newest = self._newest()
        if newest <= self.written:
            if self.written:
                self._say(f"the newest checkpoint is of step {self.written}, in {self._directory}")
            return
        if self._scribe is None:
            self._begin_scribe_anyway(time.monotonic())
        if self._scribe is not None:
            self._upkeep.begin(time.monotonic())
            if await self._ask(errands.Save(self._facts()), end_s) is None:
                self._tell_unfinished()

    def _tell_unfinished(self) -> None:
        self._hangs = True
        why = "it was cut short" if self._cut else "the disk is too slow or hangs"
        self._on_trouble("unfinished", f"the last one was not written in time: {why}", self._newest())

    async def _ask(self, request: errands.Request, end_s: float | None) -> errands.Reply | str | None:
        """Send `request`; return the answer, why there is none, or None if `end_s` passed or it was cut short."""
        assert self._scribe is not None
        self._scribe.ask(request)
        while (answer := await self._answered(end_s or time.monotonic() + READING_S)) is None:
            if end_s is not None or self._cut:
                return None
            self._say(f"still reading the checkpoint in {self._directory}")
        return answer

    async def _answered(self, end_s: float) -> errands.Reply | str | None:
        """Wait for the answer to what was asked; None if `end_s` passes or it is cut short."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            return None if self._cut else await asyncio.wait_for(self._answer, max(0.0, end_s - time.monotonic()))
        except TimeoutError:
            return None
        finally:
            self._answer = None

    def _resolve(self, answer: errands.Reply | str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    async def _end_scribe(self) -> None:
        scribe = self._scribe
        if scribe is None:
            return
        self._finishing = True
        if self._upkeep.busy_since_s is None and not self._cut and not self._hangs:
            scribe.dismiss()
            await scribe.until_gone(DISMISS_S)
        scribe.kill()
        if not await scribe.until_gone(DISMISS_S):
            self._say(f"the process that writes checkpoints (pid {scribe.pid}) is stuck in the kernel and was left")
            scribe.abandon()
        self._scribe = None


def _step_of(path: str) -> int:
    digits = Path(path).name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{count / 2**10:.1f} KiB"
