"""Both sides begin with the same weights and see the same samples, and what they train neither diverges nor stands."""

import numpy as np
import pytest
import torch

from relume.bench.models import build
from relume.bench.orders import Terms
from relume.bench.sizes import gradient_bytes
from relume.chaos.shipped import shipped

CHARLM = str(shipped("charlm.py"))


def terms(**changes):
    return Terms(
        **({"workers": 3, "model": "linear", "size_mb": 0.1, "seed": 5, "charlm": CHARLM, "batch": 4} | changes)
    )


@pytest.mark.parametrize("model", ["linear", "charlm", "tiny-1000"])
def test_the_weights_are_a_function_of_the_terms(model):
    torch.manual_seed(99)
    first = build(terms(model=model)).weights()
    torch.randn(3)
    assert np.array_equal(first, build(terms(model=model)).weights())
    assert not np.array_equal(first, build(terms(model=model, seed=6)).weights())


def test_a_step_s_samples_are_shared_out_among_the_workers():
    task = build(terms())
    bound = task.bound
    for step in range(40):  # over the end of the data, where an epoch's last batch must not be smaller
        shares = [list(bound.indices(step, rank)) for rank in range(3)]
        assert [len(share) for share in shares] == [4, 4, 4]
        assert len(set().union(*shares)) == 12


def test_the_thousand_are_a_thousand():
    assert len(list(build(terms(model="tiny-1000")).model.parameters())) == 1000


def test_linear_has_the_bytes_that_were_asked_for():
    model = build(terms()).model
    assert 4 * sum(parameter.numel() for parameter in model.parameters()) == gradient_bytes("linear", 0.1)


@pytest.mark.parametrize(("size_mb", "batch"), [(0.05, 1), (0.25, 32)])
def test_training_gets_somewhere_with_any_batch(size_mb, batch):
    task = build(terms(workers=1, size_mb=size_mb, batch=batch))
    bound, losses = task.bound, []
    for step in range(60):
        task.optimizer.zero_grad()
        loss = task.loss(task.model, task.load(bound.indices(step, 0)))
        loss.backward()
        task.update()
        losses.append(loss.detach().item())
    assert np.mean(losses[-16:]) < np.mean(losses[:16])
