"""`with run.aside(...)`: whatever happens inside leaves no trace in training.

That is what lets one worker alone evaluate, sample or draw pictures: random numbers, buffers, gradients and `training`
flags are as before when it ends. Progress is not watched inside, so that it may take as long as it likes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from relume.train import rng
from relume.train.buffers import Buffers

if TYPE_CHECKING:
    from relume.train.loop import Loop
    from relume.train.run import Run


@contextlib.contextmanager
def aside(run: Run, loop: Loop | None, label: str) -> Iterator[None]:
    """Run the block aside; `label` names it in reports."""
    del label  # for whoever reads the script
    progress = run.seat.progress
    phase, state = progress.phase, rng.capture()
    modules = [module for root in run.protected.modules.values() for module in root.modules()]
    modes = [module.training for module in modules]
    put_back = _hold(run, loop)
    progress.enter("aside")
    try:
        yield
    finally:
        progress.enter(phase)
        rng.restore(state)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        put_back.close()


def _hold(run: Run, loop: Loop | None) -> contextlib.ExitStack:
    """Let backward be, and return what puts gradients and buffers back."""
    stack = contextlib.ExitStack()
    if loop is not None:
        stack.enter_context(loop.catcher.ignoring())
    state = loop.state if loop is not None else Buffers(run.protected.buffers())
    parameters = loop.parameters if loop is not None else [each for _, each in run.protected.parameters()]
    stack.callback(state.put_back, state.snapshot())
    for parameter in parameters:
        gradient = parameter.grad
        stack.callback(_put_back, parameter, gradient, None if gradient is None else _Content(gradient))
    return stack


class _Content:
    """What a gradient holds, to be put back if somebody writes to it."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self._version = gradient._version  # noqa: SLF001  (no public spelling)
        self._copy = gradient.clone()

    def put_back(self, gradient: torch.Tensor) -> None:
        if gradient._version != self._version:  # noqa: SLF001
            gradient.copy_(self._copy)


def _put_back(parameter: torch.Tensor, gradient: torch.Tensor | None, content: _Content | None) -> None:
    parameter.grad = gradient
    if gradient is not None and content is not None:
        content.put_back(gradient)  # a backward has added to it in place
