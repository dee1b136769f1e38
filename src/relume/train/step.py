"""One step as the script sees it: iterate over its batches, then find the mean gradient in `.grad`.

The reading order of a step: `__iter__` yields a batch per shard until every shard of the step is in, whoever died
meanwhile; around each batch, `_compute` sets buffers, randomness and a slot, and publishes the leaf; at the end `_take`
copies the result out. What the user sees is the gradient-accumulation loop that people already write. In a replay there
is nothing to compute: the loop over batches ends at once, with what is kept of the step in `.grad`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from relume.errors import StepError
from relume.reduce.notes import Note
from relume.reduce.tree import fold_leaves
from relume.train import rng

if TYPE_CHECKING:
    from relume.train.loop import Loop
    from relume.train.store import Kept
    from relume.wire.messages import View


class Step:
    """A step of `run.steps`. `number` counts from 0; `epoch` too (0 for streams).

    `replay`: this worker comes back, and the others took the step before it; then there are no batches.
    """

    def __init__(self, loop: Loop, number: int, kept: Kept | None, begin_ns: int) -> None:
        self._loop = loop
        self.number = number
        self.epoch: int = loop.data.epoch(number)
        self.replay = kept is not None
        self.begin_ns = begin_ns
        self.taken_ns = 0
        self.times: list[tuple[int, int, int]] = []
        self.complete = False
        self.entered = False
        self.shard: int | None = None
        self.waits: list[tuple[int, int]] = []
        self.view: View | None = None
        self._skipped = False
        self._logs: dict[str, list[float]] = {}
        self._notes: dict[int, Note] = {}
        self._kept = kept

    @property
    def is_main(self) -> bool:
        """True on the one worker that prints and saves."""
        return self._loop.run.is_main

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches. After the last one `.grad` holds the mean over the whole global batch."""
        if self.entered:
            raise StepError(f"step {self.number} was iterated twice: its batches are handed out once")
        self.entered = True
        loop, engine = self._loop, self._loop.engine
        if self._kept is not None:
            self._take_kept(self._kept)
        else:
            engine.begin(self.number)
            while True:
                shard = engine.next_shard()
                if shard is not None:
                    yield from self._compute(shard)
                elif engine.settle():
                    break
            self._take()
        rng.seed_all(rng.derive(loop.run.seed, self.number, "update"))
        self.complete = True
        loop.seat.progress.enter("update")

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """Run `loss.backward()` for the current batch, with `loss` a mean over `weight` units (such as tokens).

        Without `weight` the batch counts for its number of samples. Raises `GradientError` outside the inner loop.
        """
        self._loop.catcher.backward(loss, weight)

    def skip(self) -> None:
        """Leave the current batch out: it has no gradient and no weight."""
        if self.shard is None:
            raise StepError("step.skip() was called outside the inner loop: call it for the batch that is left out")
        self._skipped = True

    def log(self, **values: float | torch.Tensor) -> None:
        """Log numbers for the current batch; `mean` gives their weighted mean over the whole global batch."""
        if self.shard is None:
            raise StepError("step.log() was called outside the inner loop: log in `for batch in step`")
        for name, value in values.items():
            try:
                number = float(value.detach().item() if isinstance(value, torch.Tensor) else value)
                name.encode()
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                raise StepError(f"step.log({name!a}=...): one real number is needed, not {value!r:.80}") from error
            self._logs.setdefault(name, []).append(number)

    def mean(self, name: str) -> float:
        """Return the mean of what the shards logged as `name`, each by its weight: the same on every worker."""
        if not self.complete:
            raise StepError(f"step.mean({name!r}) is known when every shard is in: call it after the inner loop")
        logged = {s: note for s, note in self._notes.items() if name in note.logs and note.weight > 0}
        weight = fold_leaves({s: note.weight for s, note in logged.items()}, len(self._notes))
        total = fold_leaves({s: note.weight * note.logs[name] for s, note in logged.items()}, len(self._notes))
        if weight is None or total is None:
            names = sorted({key for note in self._notes.values() for key in note.logs})
            raise StepError(f"no shard of step {self.number} logged {name!r}; logged: {', '.join(names) or 'nothing'}")
        return total / weight

    def means(self) -> dict[str, float]:
        """Return the mean of every name that was logged."""
        names = sorted({name for note in self._notes.values() if note.weight > 0 for name in note.logs})
        return {name: self.mean(name) for name in names}

    # Within -------------------------------------------------------------------------------------------------

    def _compute(self, shard: int) -> Iterator[Any]:
        loop, progress = self._loop, self._loop.seat.progress
        progress.enter("load", shard)
        start_ns = time.monotonic_ns()
        loop.state.restore_buffers()  # the loader's dataset may share modules with the model
        loaded = None if loop.data.size(self.number, shard) == 0 else loop.loader.get(self.number, shard)
        slot, place = loop.engine.slot(shard)
        leaf = None
        self._logs, self._skipped = {}, False
        if loaded is not None and loaded.samples != 0:
            loop.catcher.open(place, loaded.samples)
            rng.seed_all(rng.derive(loop.run.seed, self.number, shard))
            self.shard = shard
            progress.enter("forward", shard)
            over = False
            try:
                yield loaded.batch
                over = True
            finally:
                self.shard = None
                leaf = loop.catcher.close(shard, skipped=self._skipped or not over)
            loop.still.check(self.number)
            progress.enter("publish", shard)
            if self._skipped and loop.engine.shown:
                raise StepError(
                    f"step.skip() was called after backward for shard {shard} of step {self.number}, and with "
                    "single_backward=True others may have summed what came: call it before backward"
                )
            if leaf is None and not self._skipped:
                raise StepError(
                    f"shard {shard} of step {self.number} brought no gradient: call loss.backward() for every batch, "
                    "or step.skip() to leave this one out"
                )
        logs = {name: _mean(values) for name, values in self._logs.items()}
        note = Note(0.0, loop.nothing, logs) if leaf is None else Note(leaf.weight, leaf.present, logs, leaf.factor)
        loop.engine.publish(slot, shard, note, loop.state.store_buffers)
        self.times.append((shard, start_ns, time.monotonic_ns()))

    def _take(self) -> None:
        loop, engine = self._loop, self._loop.engine
        gradients: list[torch.Tensor | None] = []
        try:
            self._notes = engine.notes()
            gradients = engine.take(self._notes)
            loop.state.load_buffers(engine.buffers())
        except msgspec.MsgspecError:
            if not engine.overtaken:
                raise
        late = engine.overtaken  # then what was copied may be another step's, and this worker was to go after this one
        engine.taken(self.number)
        if late:
            loop.leave_for_good()
        self._hand_out(gradients)

    def _take_kept(self, kept: Kept) -> None:
        loop, self._kept = self._loop, None
        loop.seat.progress.enter("replay")
        self._notes = kept.notes
        loop.state.load_buffers(kept.buffers)
        loop.engine.taken(self.number)
        self._hand_out(loop.engine.gradients(kept.gradient, kept.notes))

    def _hand_out(self, gradients: list[torch.Tensor | None]) -> None:
        loop = self._loop
        self.waits, self.view = loop.seat.standing.waits, loop.seat.standing.view
        self.taken_ns = time.monotonic_ns()
        if loop.on_host:
            for parameter, gradient in zip(loop.parameters, gradients, strict=True):
                parameter.grad = gradient
            return
        for parameter, gradient in zip(loop.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)
