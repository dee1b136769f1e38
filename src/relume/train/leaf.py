"""Catching a leaf: what backward gives from `.grad = None`, copied into its slot and freed at once.

A leaf is the shard's gradient times its weight. With plain `loss.backward()` the gradient is what `.grad` would hold
after all backwards of the shard, and the weight is its number of samples; with `step.backward(loss, weight=...)` each
backward counts by its own weight. Gradients are never accumulated into preset zeros, which would turn every -0.0 into
+0.0. Outside a shard a gradient has no meaning and is refused, except in `run.aside`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from relume.errors import GradientError
from relume.reduce.notes import Presence


class LeafCatcher:
    """Hooks on every parameter; `open` and `close` bracket a shard."""

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], moved: Callable[[], None]) -> None:
        """`parameters` in the order of the gradient's layout; `moved` is called on every gradient."""
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._moved = moved
        self._views: list[torch.Tensor] | None = None
        self._present = np.zeros(len(parameters), dtype=bool)
        self._explicit: list[float] = []
        self._collecting = False
        self._plain = False
        self._samples: int | None = None
        self._ignoring = False
        self._handles: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, (_, parameter) in enumerate(parameters)
        ]

    def open(self, views: list[torch.Tensor], samples: int | None) -> None:
        """From here on gradients belong to a shard of `samples` samples, whose slot has `views`."""
        self._views, self._samples = views, samples
        self._present[:] = False
        self._explicit = []
        self._plain = False

    def backward(self, loss: torch.Tensor, weight: float | None) -> None:
        """Run `loss.backward()`, counting for `weight` (None: the shard's number of samples)."""
        views = self._views
        if views is None:
            raise GradientError("step.backward was called outside the inner loop: call it for each batch of the step")
        if weight is None:
            torch.autograd.backward(loss)
            return
        value = float(weight)
        if not 0.0 < value < float("inf"):
            text = f"step.backward(weight={value}): a weight is a positive number."
            raise GradientError(text + " A shard with nothing to count calls step.skip() instead")
        self._explicit.append(value)
        self._collecting = True
        try:
            torch.autograd.backward(loss)
        finally:
            self._collecting = False
        for index, parameter in enumerate(self._parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                self._add(index, torch.mul(self._checked(index, gradient), value), views[index])

    def close(self, shard: int) -> tuple[float, Presence] | None:
        """End the shard; return its weight and presence, or None if no gradient came."""
        views, self._views = self._views, None
        if self._explicit and self._plain:
            text = f"shard {shard} mixes loss.backward() with step.backward(loss, weight=...)."
            raise GradientError(text + " Use one of them for all batches, so that the weights add up")
        if self._explicit:
            total = 0.0
            for weight in self._explicit:
                total += weight
            return total, self._present.copy()
        if not self._plain:
            return None
        if self._samples is None:
            text = f"the number of samples in shard {shard} is unknown, so its gradient has no weight."
            raise GradientError(text + " Call step.backward(loss, weight=...), or give Shards(samples=...)")
        if views is not None and self._samples != 1:  # not before: gradients may cancel that overflow by their weight
            for view, present in zip(views, self._present, strict=True):
                if present:
                    view.mul_(float(self._samples))
        return float(self._samples), self._present.copy()

    def clear_grads(self) -> None:
        """Free every `.grad`: backward starts from None."""
        for parameter in self._parameters:
            parameter.grad = None

    @contextlib.contextmanager
    def ignoring(self) -> Iterator[None]:
        """Let every backward be: `.grad` accumulates as without relume."""
        self._ignoring = True
        try:
            yield
        finally:
            self._ignoring = False

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def caught(parameter: torch.Tensor) -> None:
            if self._ignoring:
                return
            views = self._views
            if self._collecting:
                self._moved()
                return  # `backward` looks at the whole afterwards
            gradient, parameter.grad = parameter.grad, None
            if views is None:
                raise GradientError(
                    f"a backward reached {self._names[index]} outside the inner loop. Gradients are summed over the "
                    "shards of a step: call backward inside `for batch in step`, or inside `with run.aside(...)` if "
                    "the gradient is for looking at only"
                )
            assert gradient is not None
            self._plain = True
            gradient = self._checked(index, gradient)
            self._add(index, gradient, views[index])
            self._moved()

        return caught

    def _checked(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.layout is not torch.strided:
            text = f"the gradient of {self._names[index]} is sparse, which has no fixed place to be summed in."
            raise GradientError(text + " Build the layer with sparse=False")
        return gradient.detach()

    def _add(self, index: int, part: torch.Tensor, into: torch.Tensor) -> None:
        if self._present[index]:
            into.add_(part)
        else:
            into.copy_(part)
            self._present[index] = True
