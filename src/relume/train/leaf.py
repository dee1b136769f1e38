"""Catching a leaf: the gradient of one shard, from backward into its slot, and out of `.grad` again.

A leaf is the shard's gradient times its weight. With plain `loss.backward()` the gradient is what `.grad` would hold
after all backwards of the shard, and the weight is its number of samples; with `step.backward(loss, weight=...)` each
backward counts by its own weight. The slot holds the gradient as it is, and `factor` says what to multiply it by, which
costs least where it is summed; only a second weighted backward forces the product at once.

There are two ways into a slot. A large parameter's `.grad` is None before backward; a hook copies what backward puts
there and frees it, while it is in the cache. Small parameters are many, and a copy each would take longer than their
backward: so `.grad` is their place in the slot already, filled with -0.0, and autograd adds to it. (-0.0 is the one
number that changes nothing when something is added to it; with +0.0 every -0.0 would be lost.) When a backward ends,
`.grad` is None again for either kind: what it showed would be part of the truth.

With `single`, each shard has one backward, so that a gradient is final as soon as it is there: `whole` is called with
its parameter. What would change it afterwards is an error.

Outside a shard a gradient has no meaning and is refused, except in `run.aside`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from relume.errors import GradientError
from relume.reduce.notes import Presence
from relume.reduce.slots import Place

Hook = Callable[[torch.Tensor], None]

_SECOND = (
    "a shard had a second backward, though run.steps(..., single_backward=True) says that each has one: what came "
    "first may be summed already. Add the losses and call backward once, or leave single_backward out"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a shard brought: `present[i]` says whether parameter i has a gradient. See `Note`."""

    weight: float
    factor: float
    present: Presence


class LeafCatcher:
    """Hooks on every parameter; `open` and `close` bracket a shard.

    `parameters` are in the order of the gradient's layout, `small[i]` says which of the two ways parameter i goes.
    `moved` is called as gradients come: for each one if `every`, else small ones count together. `whole`: each shard
    has one backward, and this is called with a parameter's index and the leaf's weight once its gradient is there.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        small: Sequence[bool],
        moved: Callable[[], None],
        *,
        every: bool = False,
        whole: Callable[[int, float | None], None] | None = None,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._small = [index for index, is_small in enumerate(small) if is_small and not every]
        self._moved = moved
        self._whole = whole
        self._place: Place | None = None
        self._present = bytearray(len(parameters))
        self._pending: list[int] = []
        self._under_way = False
        self._writes = 0
        self._explicit: list[float] = []
        self._weighing = False
        self._plain = False
        self._samples: int | None = None
        self._catching = False
        self._ignoring = False
        hooks = [self._small_hook if is_small and not every else self._hook for is_small in small]
        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(hook(index))
            for index, (parameter, hook) in enumerate(zip(self._parameters, hooks, strict=True))
        ]

    # A shard --------------------------------------------------------------------------------------------------

    def open(self, place: Place, samples: int | None) -> None:
        """From here on gradients belong to a shard of `samples` samples, whose slot is `place`."""
        self._place, self._samples = place, samples
        self._present = bytearray(len(self._parameters))
        self._pending = []
        self._under_way = False
        self._writes = 0
        self._explicit = []
        self._plain = False
        place.blank()
        for index in self._small:
            self._parameters[index].grad = place.views[index]
        self._catching = True

    def backward(self, loss: torch.Tensor, weight: float | None) -> None:
        """Run `loss.backward()`, counting for `weight` (None: the shard's number of samples)."""
        if self._place is None:
            raise GradientError("step.backward was called outside the inner loop: call it for each batch of the step")
        if weight is None:
            torch.autograd.backward(loss)
            return
        value = float(weight)
        if not 0.0 < value < float("inf"):
            text = f"step.backward(weight={value}): a weight is a positive number."
            raise GradientError(text + " A shard with nothing to count calls step.skip() instead")
        self._explicit.append(value)
        if self._whole is not None and (len(self._explicit) > 1 or self._plain):
            raise GradientError(_SECOND)
        if len(self._explicit) == 1 and not self._plain:
            self._weighing = True
            try:
                torch.autograd.backward(loss)
            finally:
                self._weighing = False
        else:
            self._add_weighted(loss, value, self._place)

    def close(self, shard: int, *, skipped: bool = False) -> Leaf | None:
        """End the shard; return what it brought, or None if no gradient came or it is `skipped`."""
        place = self._place
        assert place is not None
        self._place, self._catching = None, False
        if skipped:
            self.clear_grads()
            return None
        if self._under_way:
            text = f"a backward of shard {shard} raised, and the script went on: what had come of it would count too."
            raise GradientError(text + " Let the exception through, or leave the shard out with step.skip()")
        self._check_untouched(place, shard)
        if self._explicit and self._plain:
            text = f"shard {shard} mixes loss.backward() with step.backward(loss, weight=...)."
            raise GradientError(text + " Use one of them for all batches, so that the weights add up")
        present = np.frombuffer(self._present, dtype=bool)
        if self._explicit:
            total = 0.0
            for weight in self._explicit:
                total += weight
            return Leaf(total, total if len(self._explicit) == 1 else 1.0, present)
        if not self._plain:
            return None
        if self._samples is None:
            text = f"the number of samples in shard {shard} is unknown, so its gradient has no weight."
            raise GradientError(text + " Call step.backward(loss, weight=...), or give Shards(samples=...)")
        return Leaf(float(self._samples), float(self._samples), present)

    # Around it ------------------------------------------------------------------------------------------------

    def clear_grads(self) -> None:
        """Free every `.grad`: backward starts from None."""
        for parameter in self._parameters:
            parameter.grad = None

    @contextlib.contextmanager
    def ignoring(self) -> Iterator[None]:
        """Let every backward be: `.grad` accumulates as without relume."""
        self._disarm()
        self._ignoring, self._catching = True, False
        try:
            yield
        finally:
            self._ignoring, self._catching = False, self._place is not None

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    # The hooks ------------------------------------------------------------------------------------------------

    def _hook(self, index: int) -> Hook:
        def caught(parameter: torch.Tensor) -> None:
            if not self._catching:
                self._let_be(index)
                return
            if not self._under_way:
                self._begin_backward()
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            self._add(index, gradient)
            self._moved()

        return caught

    def _small_hook(self, index: int) -> Hook:
        def caught(_: torch.Tensor) -> None:
            if not self._catching:
                self._let_be(index)
                return
            if not self._under_way:
                self._begin_backward()
            self._pending.append(index)

        return caught

    def _begin_backward(self) -> None:
        """The first gradient of a backward has come: see to it that its end is noticed."""
        self._under_way = True
        if not self._weighing:
            self._plain = True
        self._moved()
        torch.autograd.Variable._execution_engine.queue_callback(self._gather)  # noqa: SLF001  (as DDP does)

    def _let_be(self, index: int) -> None:
        """A gradient that goes into no slot now. Raises `GradientError` if it has no meaning at all."""
        if self._place is not None:
            self._moved()  # `_add_weighted` looks at the whole afterwards
        elif not self._ignoring:
            self._parameters[index].grad = None
            raise GradientError(
                f"a backward reached {self._names[index]} outside the inner loop. Gradients are summed over the "
                "shards of a step: call backward inside `for batch in step`, or inside `with run.aside(...)` if "
                "the gradient is for looking at only"
            )

    def _gather(self) -> None:
        """A backward ends: its small gradients stand in the slot, unless the script had replaced `.grad`."""
        pending, self._pending = self._pending, []
        place, parameters, present = self._place, self._parameters, self._present
        self._under_way = False
        if place is None:
            return
        views = place.views
        for index in pending:
            parameter = parameters[index]
            gradient = parameter.grad
            if gradient is views[index]:
                present[index] = 1
                self._writes += 1
                if self._whole is not None:
                    self._whole(index, self._weight)
            elif gradient is not None:
                self._add(index, gradient)
            else:
                self._writes += 1  # twice in one backward (reentrant checkpointing), and seen the first time
            parameter.grad = None
        self._moved()

    # Within ---------------------------------------------------------------------------------------------------

    def _add_weighted(self, loss: torch.Tensor, weight: float, place: Place) -> None:
        """A further weighted backward: what is there becomes a product first."""
        if len(self._explicit) == 2:
            for view, present, small in zip(place.views, self._present, place.is_small, strict=True):
                if present:
                    view.mul_(self._explicit[0])
                    self._writes += small
        self._disarm()
        self._catching = False
        try:
            torch.autograd.backward(loss)
        except BaseException:
            self._under_way = True
            raise
        finally:
            self._catching = True
        for index, parameter in enumerate(self._parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                self._add(index, torch.mul(self._dense(index, gradient), weight))

    def _add(self, index: int, gradient: torch.Tensor) -> None:
        assert self._place is not None
        into, part = self._place.views[index], self._dense(index, gradient)
        if self._present[index]:
            if self._whole is not None:
                raise GradientError(_SECOND)
            into.add_(part)
        else:
            into.copy_(part)
            self._present[index] = 1
        if self._place.is_small[index]:
            self._writes += 1
        if self._whole is not None:
            self._whole(index, self._weight)

    def _dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.layout is not torch.strided:
            text = f"the gradient of {self._names[index]} is sparse, which has no fixed place to be summed in."
            raise GradientError(text + " Build the layer with sparse=False")
        return gradient.detach()

    @property
    def _weight(self) -> float | None:
        """The weight of the leaf that has one backward; None if it cannot be known yet."""
        if self._explicit:
            return self._explicit[0]
        return None if self._samples is None else float(self._samples)

    def _disarm(self) -> None:
        """Take the slot out of `.grad`: what has come stays, what comes is added to it the other way."""
        if self._place is not None:
            for index in self._small:
                if self._parameters[index].grad is self._place.views[index]:
                    self._parameters[index].grad = None

    def _check_untouched(self, place: Place, shard: int) -> None:
        """Refuse what the script has done to `.grad` itself: it would be lost, or has spoilt what stood there."""
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is not None:
                parameter.grad = None
                if gradient is not place.views[index]:
                    text = f"the script set .grad of {self._names[index]} itself inside the inner loop (shard {shard})."
                    raise GradientError(text + " Only what backward gives is summed: change .grad below the loop")
        if not place.written(self._writes):
            text = f"the script wrote to .grad inside the inner loop (shard {shard}), as zero_grad(set_to_none=False)"
            text += " does."
            raise GradientError(text + " Leave it out: every shard starts without gradients")
