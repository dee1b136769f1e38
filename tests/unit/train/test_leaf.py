"""A leaf is what `.grad` would hold, whatever way it goes into its slot, and whatever the script does to `.grad`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relume.errors import GradientError
from relume.reduce.layout import SMALL_BYTES, GradientLayout
from relume.reduce.slots import Place
from relume.train.leaf import LeafCatcher

LARGE = SMALL_BYTES // 4 + 1


class Shard:
    """Two parameters, a small and a large one, their catcher, and a slot full of garbage."""

    def __init__(self, *, every=False, whole=None):
        self.large, self.small = nn.Parameter(torch.ones(LARGE)), nn.Parameter(torch.ones(3, 2))
        named = [("large", self.large), ("small", self.small)]
        layout = GradientLayout(named)
        assert [entry.small for entry in layout.entries] == [False, True]
        self.place = Place(layout, torch.full((layout.size,), 0x7F, dtype=torch.uint8))
        self.catcher = LeafCatcher(named, [False, True], lambda: None, every=every, whole=whole)

    def loss(self, scale=1.0):
        return (self.large * scale).sum() + (self.small * scale).sum()

    def close(self, shard=0):
        """Weight, factor, and what stands in the slot of each parameter that has a gradient."""
        leaf = self.catcher.close(shard)
        views = [view.clone() if there else None for view, there in zip(self.place.views, leaf.present, strict=True)]
        return leaf.weight, leaf.factor, views


@pytest.fixture(params=[False, True], ids=["together", "each"])
def shard(request):
    made = Shard(every=request.param)
    made.catcher.open(made.place, 5)
    return made


def holds(view, value):
    return bool((view == value).all())


def test_one_backward(shard):
    shard.loss(3.0).backward()
    assert shard.large.grad is None
    assert shard.small.grad is None
    weight, factor, (large, small) = shard.close()
    assert (weight, factor) == (5.0, 5.0)
    assert holds(large, 3.0)
    assert holds(small, 3.0)


def test_several_backwards_are_added(shard):
    for scale in (3.0, 4.0, 0.5):
        shard.loss(scale).backward()
    _, factor, (large, small) = shard.close()
    assert factor == 5.0
    assert holds(large, 7.5)
    assert holds(small, 7.5)


def test_a_parameter_that_only_the_second_backward_reaches(shard):
    shard.large.sum().backward()
    shard.loss(2.0).backward()
    _, _, (large, small) = shard.close()
    assert holds(large, 3.0)
    assert holds(small, 2.0)


def test_a_parameter_without_gradient_is_absent(shard):
    shard.large.sum().backward()
    assert shard.close()[2][1] is None
    assert shard.small.grad is None, "its place in the slot is nobody's .grad any more"


@pytest.mark.parametrize("value", [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1e-42, -1e-42])
def test_every_bit_comes_through(shard, value):
    shard.small.backward(torch.full((3, 2), value))
    shard.large.backward(torch.full((LARGE,), value))
    expected = torch.tensor(value).view(torch.int32)
    for view in shard.close()[2]:
        assert bool((view.view(torch.int32) == expected).all())


def test_weighted_backwards_count_each_by_its_weight(shard):
    shard.catcher.backward(shard.loss(1.0), 2.0)
    shard.catcher.backward(shard.loss(10.0), 3.0)
    shard.catcher.backward(shard.loss(100.0), 4.0)
    weight, factor, (large, small) = shard.close()
    assert (weight, factor) == (9.0, 1.0)
    assert holds(large, 432.0)
    assert holds(small, 432.0)


def test_a_single_weighted_backward_leaves_the_product_to_who_sums(shard):
    shard.catcher.backward(shard.loss(7.0), 2.0)
    weight, factor, (large, small) = shard.close()
    assert (weight, factor) == (2.0, 2.0)
    assert holds(large, 7.0)
    assert holds(small, 7.0)


def test_both_kinds_of_backward_do_not_mix(shard):
    shard.loss().backward()
    shard.catcher.backward(shard.loss(), 2.0)
    with pytest.raises(GradientError, match=r"mixes loss.backward\(\) with step.backward"):
        shard.close()


def test_gradients_set_to_none_before_backward(shard):
    """As `zero_grad()` does, which is called here by habit."""
    shard.small.grad = shard.large.grad = None
    shard.loss(3.0).backward()
    _, _, (large, small) = shard.close()
    assert holds(large, 3.0)
    assert holds(small, 3.0)


def test_gradients_set_to_zero_before_backward_are_refused():
    """They would make every -0.0 a +0.0."""
    shard = Shard()
    shard.catcher.open(shard.place, 5)
    shard.small.grad.zero_()
    shard.loss().backward()
    with pytest.raises(GradientError, match=r"wrote to .grad inside the inner loop .* zero_grad\(set_to_none=False\)"):
        shard.close()


@pytest.mark.parametrize("name", ["large", "small"])
def test_a_gradient_that_the_script_sets_is_refused(shard, name):
    shard.loss().backward()
    parameter = getattr(shard, name)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(GradientError, match=f"set .grad of {name} itself"):
        shard.close()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_a_gradient_with_a_graph_of_its_own(shard):
    (shard.loss(3.0) ** 2).backward(create_graph=True)
    total = 3.0 * (LARGE + 6)
    _, _, (large, small) = shard.close()
    assert holds(large, 6.0 * total)
    assert holds(small, 6.0 * total)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("broken")


@pytest.mark.parametrize("weight", [None, 2.0])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", ["large", "small"])
def test_going_on_after_a_backward_that_raised_is_refused(shard, name, before, weight):
    """As a script does that has run out of memory and tries again: a part of the gradient would count twice."""
    reached, broken = (shard.large, shard.small) if name == "large" else (shard.small, shard.large)
    if before:
        shard.catcher.backward(shard.loss(), weight)
    with pytest.raises(RuntimeError, match="broken"):
        shard.catcher.backward(Broken.apply(broken * 1.0).sum() + reached.sum(), weight)
    shard.catcher.backward(shard.loss(), weight)
    with pytest.raises(GradientError, match=r"a backward of shard 0 raised, and the script went on"):
        shard.close()


def test_a_shard_whose_backward_raised_may_be_left_out(shard):
    with pytest.raises(RuntimeError, match="broken"):
        (Broken.apply(shard.large * 1.0).sum() + shard.small.sum()).backward()
    assert shard.catcher.close(0, skipped=True) is None
    assert shard.small.grad is None
    shard.catcher.open(shard.place, 5)
    shard.loss(4.0).backward()
    assert holds(shard.close(1)[2][1], 4.0)


def test_a_frozen_parameter(shard):
    shard.small.requires_grad_(False)
    shard.loss(2.0).backward()
    assert shard.close()[2][1] is None


def test_looking_aside_within_a_shard_leaves_it_alone(shard):
    shard.loss(3.0).backward()
    with shard.catcher.ignoring():
        shard.loss(50.0).backward()
        assert holds(shard.small.grad, 50.0)
        shard.catcher.clear_grads()
    shard.loss(1.0).backward()
    _, _, (large, small) = shard.close()
    assert holds(large, 4.0)
    assert holds(small, 4.0)


def test_a_backward_outside_a_shard_is_refused(shard):
    shard.loss().backward()
    shard.close()
    with pytest.raises(GradientError, match="outside the inner loop"):
        shard.loss().backward()


def test_a_slot_is_used_again(shard):
    shard.loss(3.0).backward()
    shard.close()
    shard.catcher.open(shard.place, 5)
    shard.loss(4.0).backward()
    assert holds(shard.close(1)[2][1], 4.0)


def test_what_is_whole_is_told_as_it_comes():
    told = []
    shard = Shard(whole=lambda index, weight: told.append((index, weight)))
    shard.catcher.open(shard.place, 5)
    shard.large.sum().backward()
    assert told == [(0, 5.0)]
    shard.close()
    shard.catcher.open(shard.place, 5)
    shard.catcher.backward(shard.loss(), 2.5)
    assert sorted(told[1:]) == [(0, 2.5), (1, 2.5)]
    with pytest.raises(GradientError, match="a second backward"):
        shard.loss().backward()
