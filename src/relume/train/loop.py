"""The loop over steps: `for step in run.steps(data, total=...)`, from joining the fleet to the last step.

Leaving it early, by a `break`, is allowed: all workers do it in the same step, as they decide on equal values.

Between two steps is the boundary. There a joiner finds out whether it replays or is live, a view that was planned takes
force (and a worker that it leaves out goes), and the mirror is written.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from relume.core.view import first, shards_of
from relume.errors import StateError, StepError
from relume.reduce.layout import GradientLayout
from relume.train import rng, summer
from relume.train.buffers import Buffers
from relume.train.engine import Engine
from relume.train.leaf import LeafCatcher
from relume.train.mirroring import Mirroring
from relume.train.protect import Trained
from relume.train.record import Recorder
from relume.train.replay import Way
from relume.train.step import Step
from relume.train.stilllife import StillLife
from relume.train.store import Store
from relume.verify.digests import digest
from relume.wire.messages import Finished, Join, Remark, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relume.train.run import Run
    from relume.train.shards import BoundShards
    from relume.train.store import Kept

Key = tuple[int, int]


class Loop:
    """See the module's docstring; made by `run.steps`."""

    def __init__(
        self, run: Run, data: BoundShards, total: int, *, single_backward: bool, on_end: Callable[[], None]
    ) -> None:
        self.run, self.data, self.seat = run, data, run.seat
        self._total = total
        self._single = single_backward
        self._on_end = on_end
        self._step: Step | None = None
        self._way: Way | None = None
        self._next = 0
        self._ended = False
        self._at_end = False
        self.gone = False
        self._begun = False
        self._owner = os.getpid()
        self.left = False
        self._nonfinite: set[str] = set()
        named = run.protected.parameters()
        gradient = GradientLayout(named)
        self._named = [named[index] for index in gradient.order]
        self.parameters = [parameter for _, parameter in self._named]
        self.on_host = all(parameter.is_cpu for parameter in self.parameters)
        self.nothing = np.zeros(len(self._named), dtype=bool)
        self._trained = Trained(run.protected.optimizers, self.parameters)
        self.state = Buffers(run.protected.buffers())
        self.still = StillLife(run.protected, run.vars, self._named)
        shape = Shape(gradient.size, self.state.size, len(self._named), data.shards)
        self.loader = data.open(self._next_key)
        self.seat.standing.on_view = self.loader.look
        self._join(shape)
        store = Store(self.seat.words, self.seat.control, shape, gradient, self.seat.data)
        seat = self.seat
        self.engine = Engine(store, seat.standing, seat.progress, seat.taken_by, single=single_backward)
        if single_backward and seat.link is not None and summer.is_worth_it(seat.workers, torch.get_num_threads()):
            self.engine.overlap()
        self._mirroring = Mirroring(run)
        self._recorder = Recorder.from_environment(self.seat.run_id, self.seat.rank, self.seat.life)
        self._way = Way(self.seat, store, self._mirroring)
        self._way.show = self._show
        sparse = run.protected.sparse()  # has to be seen before it is added to anything
        small = [e.small and id(p) not in sparse for e, p in zip(gradient.entries, self.parameters, strict=True)]
        every = self.seat.progress.wants("backward")
        # Before a parameter may come back frozen.
        whole = self.engine.whole if single_backward else None
        self.catcher = LeafCatcher(self._named, small, self._gradient_came, every=every, whole=whole)
        try:
            self._next = self._way.start()
        except BaseException:
            self.loader.close()
            raise

    @property
    def in_step(self) -> bool:
        """True from a step's begin until its result is in `.grad`."""
        return self._step is not None and not self._step.complete

    @property
    def replaying(self) -> bool:
        """True for a joiner until it is admitted."""
        return self._way is not None and self._way.replaying

    @property
    def left_inside(self) -> str:
        """What is wrong if the current step's inner loop was left before its end; "" if it was not."""
        step = self._step
        left = step is not None and step.entered and not step.complete and step.shard is None
        return _left_inside(step) if step is not None and left else ""

    @property
    def ended(self) -> bool:
        """True once nothing of the loop is left to do."""
        return self._ended

    def __iter__(self) -> Iterator[Step]:
        """Hand out the steps, once."""
        if self._begun:
            raise StepError(
                "the loop over run.steps() was begun twice: a run has one. What is to be done between two steps is "
                "done inside it, in `with run.aside(...)` if it must not change training"
            )
        self._begun = True
        return _Steps(self)

    def advance(self) -> Step:
        """Finish the step before and return the next one."""
        self._finish_step()
        self._step = None
        if self._ended:
            raise StopIteration
        progress = self.seat.progress
        if self._next < self._total:
            progress.step = self._next
            progress.enter("between")
        begin_ns = time.monotonic_ns()
        kept = self._come_to_boundary(left=False)
        if self.gone:
            self.leave_for_good()
        if self._at_end:
            self.end()
            raise StopIteration
        number = self._next
        self._next += 1
        self._trained.check()
        if number == 0:
            rng.seed_all(rng.derive(self.run.seed, "begin"))
        self.catcher.clear_grads()
        self.engine.give_back()
        self.state.begin()
        self.still.begin()
        self._show(number)
        self._step = Step(self, number, kept, begin_ns)
        return self._step

    def end(self) -> None:
        """Leave the loop: wait until every member has, so that all agree on who is main for the rest."""
        if self._ended or os.getpid() != self._owner:
            return
        self.left = False  # the run asks no more
        step, seat = self._step, self.seat
        if step is not None and step.entered and not step.complete:
            self.abandon()
            self.run.fail(StepError(_left_inside(step)))
            return
        if step is not None and not step.entered:
            self._next, seat.progress.step = step.number, step.number - 1
        else:
            self._finish_step()
        self._step = None
        try:
            if not self._at_end:
                self._come_to_boundary(left=True)
        except StateError as error:
            self.abandon()
            self.run.fail(error)
            return
        if self.gone:
            self.abandon()
            return
        self._ended = True
        self.engine.end()
        if self._recorder is not None:
            self._recorder.final(self._next - 1, self.run.protected.state())
        self.loader.close()
        self.catcher.remove()
        if seat.link is not None:
            seat.progress.enter("wait")
            seat.link.send(Finished(self._next, digest(self.run.state()) if self.run.exact else ""))
            while seat.standing.closed is None:
                seat.standing.wait()
        seat.progress.enter("tail")
        self._on_end()

    def abandon(self) -> None:
        """Take the loop down without waiting for anybody: the script failed, or a notebook began anew."""
        if not self._ended:
            self._ended = True
            self.engine.end()
            self.loader.close()
            self.catcher.remove()
            self._on_end()

    def dropped(self) -> None:
        """The `for` statement is over early: by a `break`, or by an exception, which cannot be told apart here.

        So nobody is told yet: the run does it when the script asks it for something or exits, the agent when neither
        comes for a while.
        """
        if not self._ended and os.getpid() == self._owner:
            self.left = True
            self.seat.progress.leave_loop()

    # Within -------------------------------------------------------------------------------------------------

    def _come_to_boundary(self, *, left: bool) -> Kept | None:
        """Stand before the next step, or after the last one, also if the loop was `left` before its end.

        Return what is kept of the step if it is to be replayed. May find out that it is `gone`, or `_at_end`.
        """
        way = self._way
        assert way is not None
        if way.replaying:
            self._next, kept = way.arrive(self._next, self._total, left=left)
            self._at_end, self.gone = left or way.ended or self._next >= self._total, way.gone
            if way.replaying:
                return kept
        step = self._next
        if self.seat.standing.begin(step) is None:
            self.gone = True
            return None
        self._at_end = left or step >= self._total
        if self._at_end:
            self.seat.standing.ring_others()  # there they wait until all have taken the last step
            self._mirroring.at_end(step)
        else:
            self._mirroring.at_boundary(step)
        return None

    def _show(self, step: int) -> None:
        """Show digests of what must be equal on all workers before `step`."""
        if self.run.exact:
            self.seat.progress.pulse(self.still.pulse(step))

    def leave_for_good(self) -> NoReturn:
        """A view without this worker begins: it goes, by plan, and says nothing more."""
        self.seat.standing.retire()
        self.abandon()
        self.seat.progress.enter("tail")
        raise SystemExit(0)

    def _join(self, shape: Shape) -> None:
        seat = self.seat
        if seat.link is None:
            seat.standing.install(first(1, [0], shape.shards))
            return
        profile = [f"{name}: {value}" for name, value in self.run.profile.items()]
        state = rng.capture()  # looking at the data must not move what the script draws next
        terms = [*profile, *self.data.identity(), f"first sample: {self.loader.fingerprint()}", f"total: {self._total}"]
        terms.append(f"single_backward: {self._single}")
        rng.restore(state)
        seat.link.send(Join((*terms, *self.run.protected.terms()), shape, self._total))
        seat.progress.spring("joining")
        seat.standing.joined()
        seat.progress.enter("between")  # from here on others wait for this worker, so it is watched

    def _finish_step(self) -> None:
        step = self._step
        if step is None:
            return
        if not step.complete:
            raise StepError(_left_inside(step))
        means = step.means()
        self._remark_nonfinite(step.number, means)
        if self._recorder is not None:
            times: dict[str, Any] = {
                "begin_ns": step.begin_ns,
                "shards": [list(entry) for entry in step.times],
                "waits": [list(entry) for entry in step.waits],
                "taken_ns": step.taken_ns,
                "end_ns": time.monotonic_ns(),
            }
            state = self.run.state()
            self._recorder.step(step, state=state, means=means, times=times)

    def _remark_nonfinite(self, step: int, means: dict[str, float]) -> None:
        bad = {name: value for name, value in means.items() if not math.isfinite(value)}
        news, self._nonfinite = bad.keys() - self._nonfinite, set(bad)
        if news and self.seat.link is not None and self.run.is_main:
            text = ", ".join(f"{name} = {value}" for name, value in bad.items())
            self.seat.link.send(Remark("nonfinite", text, step))

    def _gradient_came(self) -> None:
        progress = self.seat.progress
        if progress.phase != "backward":
            progress.enter("backward", self._step.shard if self._step and self._step.shard is not None else -1)
        else:
            progress.advance()
            progress.spring("backward")

    def _next_key(self, previous: Key | None) -> Key | None:
        """Return what this worker will want to load after `previous`, as far as views are known. Any thread may ask."""
        step, after = (max(self._next - 1, 0), -1) if previous is None else previous
        standing = self.seat.standing
        while step < self._total:
            view = standing.foreseen(step)
            if view is None:
                return None
            if step < view.step:  # one that replays is foreseen from its admission on
                step, after = view.step, -1
                continue
            mine = shards_of(view, standing.rank, step)
            rest = mine[mine.index(after) + 1 :] if after in mine else mine
            for shard in rest:
                if self.data.size(step, shard) != 0:
                    return (step, shard)
            if not mine and len(view.members) > view.shards:
                return None
            step, after = step + 1, -1
        return None


class _Steps:
    """What the `for` statement holds, and nobody else: it goes away when the statement ends, however that comes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Step:
        return self._loop.advance()

    def __del__(self) -> None:
        self._loop.dropped()


def _left_inside(step: Step) -> str:
    return (
        f"step {step.number} was left before every shard was in. Let `for batch in step` run to its end: no break, "
        "return, exit or next step inside it"
    )
