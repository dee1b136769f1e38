"""The run as the script sees it: `relume.init`, `run.protect`, `run.vars`, `run.aside`, `run.steps`.

Under `relume run` a run spans many workers; under plain `python train.py` or in a notebook it is a run of one, with
the same bits for the same number of shards.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from relume.errors import ConfigError, ProtectError, RelumeError, StepError, UsageError
from relume.train import leaving, numerics, rng, seat, unprotected
from relume.train.aside import aside
from relume.train.loop import Loop
from relume.train.moments import forward_moments
from relume.train.protect import Protected
from relume.train.refuse import guard_optimizers
from relume.train.shards import Shards
from relume.train.variables import Vars
from relume.wire.messages import Leaving, Raised, Remark

_current: Run | None = None
_OURS = str(Path(__file__).parents[1])


class Run:
    """One training run. Made by `relume.init`; see there."""

    def __init__(self, *, seed: int, exact: bool, threads: int) -> None:
        self.seed = seed
        self.exact = exact
        numerics.apply(threads=threads, exact=exact)
        self.profile = numerics.profile(exact=exact)
        self.seat = seat.from_environment(self.profile) or seat.solo()
        self.protected = Protected()
        self.vars = Vars()
        self.failed = False
        self._owner = os.getpid()
        self._last_error = getattr(sys, "last_value", None)
        self._loop: Loop | None = None
        self._looped = False
        self._guards: list[Any] = []
        self._unhandle: Callable[[], None] = lambda: None
        self._hook = sys.excepthook
        if self.seat.link is not None:
            sys.excepthook = self._excepthook
        rng.seed_all(seed)

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self.seat.rank

    @property
    def is_main(self) -> bool:
        """True on the one worker that prints and saves: the lowest rank alive. False while it comes back."""
        self._settle()
        loop, seat = self._loop, self.seat
        if seat.link is not None and (self.failed or (loop is not None and loop.gone)):
            return False
        if seat.standing.closed is not None:
            return seat.rank == seat.standing.closed.main
        if loop is not None and loop.replaying:
            return False
        view = seat.standing.view
        return seat.rank == view.main if view is not None else seat.rank == 0 and not seat.began

    def protect(self, *unnamed: object, **objects: Any) -> None:  # noqa: ANN401  (anything with a state_dict)
        """Protect modules, optimizers, schedulers, scalers: anything with `state_dict` and `load_state_dict`.

        All that decides a step must be protected. Raises `ProtectError` for what has no exact meaning here, and when
        called after `run.steps`.
        """
        self._check_current()
        if unnamed:
            text = f"protect: a {type(unnamed[0]).__name__} was given without a name: "
            raise ProtectError(text + "write run.protect(model=model, optimizer=optimizer, ...)")
        if self._looped:
            names = ", ".join(objects)
            raise ProtectError(
                f"protect({names}) was called after run.steps(): protect everything before the first step"
            )
        self.protected.add(objects)

    def steps(
        self, data: Shards, *, total: int | None = None, epochs: int | None = None, single_backward: bool = False
    ) -> Loop:
        """Return the iterator over the run's steps: `total` steps, or `epochs` times through the data.

        `single_backward` says that the script calls backward once for each batch, so that a gradient is final as soon
        as it is there: summing then begins while backward goes on, where there are cores for it. A second backward
        for a batch is an error. Bits are the same with it and without.

        Under `relume run` it waits until every worker stands here, and starts where the fleet is. Raises
        `StepError` when called twice, `DataError` for data that makes no steps.
        """
        self._check_current()
        if self._looped:
            raise StepError(
                "run.steps() was called twice: a run has one loop. Call relume.init() again for another run"
            )
        if not isinstance(data, Shards):
            raise ConfigError(f"run.steps() needs relume.Shards(dataset, ...), not a {type(data).__name__}")
        self.protected.check_complete()
        self.protected.wake_scalers()
        self._warn(sys._getframe(1))  # noqa: SLF001  (there is no other way to the loop that it stands in)
        shards = os.environ.get("RELUME_SHARDS")
        bound = data.bind(seed=self.seed, default_shards=_positive("RELUME_SHARDS", shards) if shards else None)
        count = _total(total, epochs, bound.steps_per_epoch)
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and self.exact:
            numerics.guard_compiled(dynamo)
        self._looped = True
        self._guards = [
            *guard_optimizers(self),
            *forward_moments(self.seat.progress, self.protected.modules.values()),
        ]
        self._loop = Loop(self, bound, count, single_backward=single_backward, on_end=self._ended)
        link = self.seat.link
        if link is not None:
            self._unhandle = leaving.install(lambda: link.send(Leaving("SIGTERM")))
        return self._loop

    @contextlib.contextmanager
    def aside(self, label: str) -> Iterator[None]:
        """Do something between steps that must not change training: evaluation, sampling, printing pictures.

        Random numbers, buffers, gradients and `training` flags are put back afterwards, so that it may run on one
        worker only. It may take as long as it likes: progress is not watched inside. `label` says what for.
        """
        self._check_current()
        self._settle()
        with aside(self, self._loop, label):
            yield

    @property
    def left_inside(self) -> str:
        """What is wrong if the script left the inner loop before its end; "" if it did not."""
        return "" if self._loop is None else self._loop.left_inside

    def state(self) -> dict[str, Any]:
        """Return all protected state, `run.vars` included: what two workers must agree on after a step."""
        return {**self.protected.state(), "vars": self.vars.state_dict()}

    @property
    def in_step(self) -> bool:
        """True from a step's begin until its result is in `.grad`."""
        return self._loop is not None and self._loop.in_step

    # Within -------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """A newer `relume.init` takes over (a notebook cell that is run again)."""
        if self._loop is not None:
            self._loop.abandon()
        self._ended()

    def leave(self) -> None:
        """The process ends: leave the loop if the script did not, and the fleet."""
        if os.getpid() != self._owner:
            return
        error: BaseException | None = getattr(sys, "last_value", None)
        loop_left = self._loop is not None and not self._loop.ended
        if error is not None and error is not self._last_error and not self.failed and loop_left:
            self._tell(error)  # nobody caught it, and the script has put an excepthook of its own over ours
        link = self.seat.link
        if self._loop is not None and not self.failed:
            if link is not None and link.stopped:
                self._loop.abandon()
            else:
                self._loop.end()
        if link is not None:
            link.leave()

    def fail(self, error: RelumeError) -> None:
        """Go on no longer, where nothing can be raised: the script left the loop in a way that cannot be made good."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"relume: {error}\n")
        self._tell(error)

    def _settle(self) -> None:
        """End a loop that was left by a `break`: from here on all have to agree on who is main."""
        raised = sys.exc_info()[0] is not None  # not a break: this is a `finally` or `except` of the script
        if self._loop is not None and self._loop.left and not raised:
            self._loop.end()

    def _warn(self, caller: FrameType) -> None:
        """Say, once and on main, what is allowed and probably meant otherwise."""
        if self.seat.rank or self.seat.life or self.seat.began:
            return
        texts = []
        if not self.protected.optimizers:
            texts.append("no optimizer is protected: if the script has one, give it to run.protect too")
        if dist.is_available() and dist.is_initialized():
            text = "torch.distributed is initialised: its collectives wait for dead workers, and gradients are summed "
            texts.append(text + "already. Leave out init_process_group, all_reduce, barrier and DistributedSampler")
        if self.seat.link is not None and self.seat.every:  # somebody may come back
            found = unprotected.warn(caller, self.protected, self.vars)
            if found:
                texts.append("\n  ".join([unprotected.HEAD, *found]))
                self.seat.link.send(Remark("unprotected", f"{unprotected.HEAD} {'; '.join(found)}", -1))
        for text in texts:
            sys.stderr.write(f"relume: {text}\n")

    def _ended(self) -> None:
        for guard in self._guards:
            guard.remove()
        self._guards = []
        self._unhandle()

    def _check_current(self) -> None:
        if _current is not self:
            raise UsageError("this run was replaced by a newer relume.init(): use what that returned")

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self._owner:
            self._hook(kind, error, trace)
            return
        if isinstance(error, NameError) and self._looped:
            error.add_note(
                "relume: a worker that computes no shard in a step, or that comes back and replays it, does not run "
                "the inner loop's body, so names that only the inner loop sets are unset there. Log with "
                "step.log(x=...) and read step.mean('x')"
            )
        try:
            self._hook(kind, error, trace)
        finally:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        """Tell the agent that the script failed: others go on, this worker writes nothing any more."""
        self.failed = True
        if self.seat.link is None:
            return
        everything = list(traceback.extract_tb(error.__traceback__))
        frames = [frame for frame in everything if not frame.filename.startswith(_OURS)] or everything
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        trace = "".join(traceback.format_exception(error))[-20_000:]
        summary = traceback.format_exception_only(error)[0].strip()[:2000]
        self.seat.standing.retire()
        summary, where, trace = (text.encode("utf-8", "replace").decode() for text in (summary, where, trace))
        self.seat.link.send(Raised(summary, where, trace))


def init(seed: int = 0, *, exact: bool = True, threads: int | None = None) -> Run:
    """Join the fleet that `relume run` started; under plain `python`, begin a run of one worker.

    Args:
        seed: seeds torch, CUDA, numpy and `random`, here and at every shard and update.
        exact: set the numerics profile so that bits are the same in every run of the same script. False withdraws
            that promise, for code that has no deterministic form; everything else still holds.
        threads: intra-op threads per worker; default `--threads`, else 1. Bits depend on it.

    Raises:
        ConfigError: a setting that cannot work.
        UsageError: a second run in one process under `relume run`.
    """
    global _current  # noqa: PLW0603  (one run per process is the point)
    if type(seed) is not int or seed < 0:
        raise ConfigError(f"relume.init(seed={seed!r}): the seed is a whole number from 0")
    if _current is not None:
        if _current.seat.link is not None:
            raise UsageError("relume.init() was called twice in one process: a worker takes part in one run")
        _current.retire()
    count = threads if threads is not None else _positive("RELUME_THREADS", os.environ.get("RELUME_THREADS", "1"))
    if count < 1:
        raise ConfigError(f"relume.init(threads={threads!r}): at least 1")
    _current = Run(seed=seed, exact=exact, threads=count)
    if not exact:
        sys.stderr.write("relume: exact=False: this run's bits are not guaranteed to be reproducible\n")
    return _current


@atexit.register
def _at_exit() -> None:
    if _current is not None:
        _current.leave()


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text!r}: a whole number from 1 is needed")
    return int(text)


def _total(total: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if (total is None) == (epochs is None):
        raise ConfigError("run.steps(data, total=N) or run.steps(data, epochs=N): give one of the two")
    if epochs is not None:
        if steps_per_epoch is None:
            raise ConfigError("run.steps(data, epochs=...): a stream has no epochs; give total=")
        total = epochs * steps_per_epoch
    if isinstance(total, bool) or not isinstance(total, int) or total < 0:
        raise ConfigError(f"run.steps: {total!r} steps: a whole number from 0 is needed")
    return total
