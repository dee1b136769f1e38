"""Traps reach into the forward pass, module by module, and nothing is hooked where none waits."""

import pytest
import torch
from torch import nn

from relume.arena.layout import ControlLayout
from relume.arena.progress import Progress, Trap
from relume.train.moments import forward_moments

LAYOUT = ControlLayout(1)


def seat(*traps):
    return Progress(memoryview(bytearray(LAYOUT.size)).cast("Q"), LAYOUT, 0, list(traps))


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


def trap(nth):
    return Trap(0, "forward", step=0, nth=nth, action="raise", entry=0)


def compute(progress, model):
    progress.enter("forward", 0)
    model(torch.ones(1, 2))


@pytest.mark.parametrize("nth", range(5))
def test_the_nth_moment_is_the_nth_module_that_is_called(model, nth):
    called = []
    for part in model:
        part.register_forward_hook(lambda *_: called.append(None))
    progress = seat(trap(nth))
    progress.step = 0
    handles = forward_moments(progress, [model])
    try:
        with pytest.raises(RuntimeError, match="a trap in phase forward"):
            compute(progress, model)
    finally:
        for handle in handles:
            handle.remove()
    assert len(called) == max(0, nth - 2)  # handing out the batch is the first moment, the model itself the second


def test_other_phases_do_not_count(model):
    progress = seat(trap(1))
    progress.step = 0
    (handle,) = forward_moments(progress, [model])
    progress.enter("aside")
    model(torch.ones(1, 2))
    handle.remove()


def test_nothing_is_hooked_without_a_trap_or_beside_compiled_modules(model):
    assert forward_moments(seat(), [model]) == []
    assert forward_moments(seat(Trap(0, "backward")), [model]) == []
    model[0].compile(backend="eager")
    assert forward_moments(seat(trap(1)), [model]) == []
