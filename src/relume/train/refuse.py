"""Guards on the protected optimizers: an update inside the inner loop, or with a closure, cannot be exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relume.errors import StepError

if TYPE_CHECKING:
    import torch

    from relume.train.run import Run


def guard_optimizers(run: Run) -> list[Any]:
    """Hook every protected optimizer; return the handles, each with `remove()`."""

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del optimizer
        if kwargs.get("closure") is not None or any(callable(argument) for argument in args[1:]):
            text = "optimizer.step(closure) evaluates the loss again, outside the shards of the step."
            raise StepError(text + " Call optimizer.step() without a closure, after the inner loop")
        if run.left_inside:
            raise StepError(run.left_inside)
        if run.in_step:
            text = "optimizer.step() was called inside the inner loop, where other shards are still missing."
            raise StepError(text + " Move it below the loop `for batch in step`: .grad holds the mean there")
        run.seat.progress.spring("update")

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del optimizer, args, kwargs
        run.seat.progress.spring("update")

    handles: list[Any] = []
    for optimizer in run.protected.optimizers.values():
        handles += [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
    return handles
