"""Every sample once per epoch, and a place that depends on nothing but (seed, step, shard) (Invariant 2)."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.train.order import EPOCHS_KEPT, Order, permutation, shard_bounds
from relume.train.rng import derive

orders = st.builds(
    lambda samples, batch, shards, seed, shuffle, drop_last: Order(
        samples=max(samples, batch) if drop_last else samples,
        batch=batch,
        shards=shards,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
    ),
    st.integers(1, 200),
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(-5, 2**40),
    st.booleans(),
    st.booleans(),
)


def seen(order, step):
    return [index for shard in range(order.shards) for index in order.indices(step, shard)]


@given(order=orders, epoch=st.integers(0, 3))
def test_every_sample_is_seen_once_per_epoch(order, epoch):
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    assert {order.epoch(step) for step in steps} == {epoch}
    indices = [index for step in steps for index in seen(order, step)]
    assert len(set(indices)) == len(indices), "a sample was seen twice"
    assert set(indices) <= set(range(order.samples))
    assert len(indices) == (len(steps) * order.batch if order.drop_last else order.samples)


@given(order=orders, step=st.integers(0, 500))
def test_a_global_batch_is_cut_evenly_and_in_order(order, step):
    batch = seen(order, step)
    sizes = [order.size(step, shard) for shard in range(order.shards)]
    assert sizes == [len(order.indices(step, shard)) for shard in range(order.shards)]
    assert sizes == sorted(sizes, reverse=True), "the first shards get the remainder"
    assert sizes[0] - sizes[-1] <= 1
    epoch, position = divmod(step, order.steps_per_epoch)
    plain = permutation(order.samples, order.seed, epoch).tolist() if order.shuffle else list(range(order.samples))
    assert batch == plain[position * order.batch : (position + 1) * order.batch]


@given(order=orders, randomness=st.randoms(use_true_random=False))
def test_where_a_sample_is_does_not_depend_on_who_asked_for_what_before(order, randomness: random.Random):
    keys = [(step, shard) for step in range(0, 4 * order.steps_per_epoch, 3) for shard in range(order.shards)][:200]
    first = {key: list(order.indices(*key)) for key in keys}
    again = Order(
        samples=order.samples,
        batch=order.batch,
        shards=order.shards,
        seed=order.seed,
        shuffle=order.shuffle,
        drop_last=order.drop_last,
    )
    randomness.shuffle(keys)
    torch.manual_seed(randomness.getrandbits(32))
    assert all(list(again.indices(*key)) == first[key] for key in keys)


def test_the_order_of_an_epoch_is_the_documented_one():
    generator = torch.Generator().manual_seed(derive(3, 2, "order"))
    assert torch.equal(permutation(50, 3, 2), torch.randperm(50, generator=generator))
    assert not torch.equal(permutation(50, 3, 2), permutation(50, 3, 1)), "each epoch has its own"


def test_ten_samples_in_four_shards_are_three_three_two_two():
    assert [shard_bounds(10, 4, shard) for shard in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]


def test_more_shards_than_samples_leave_the_last_ones_empty():
    order = Order(samples=10, batch=4, shards=6, seed=0, shuffle=True, drop_last=False)
    assert [order.size(0, shard) for shard in range(6)] == [1, 1, 1, 1, 0, 0]
    assert [order.size(2, shard) for shard in range(6)] == [1, 1, 0, 0, 0, 0], "the last batch has two samples"


def test_a_dataset_smaller_than_the_batch_is_one_short_step_per_epoch():
    order = Order(samples=5, batch=64, shards=2, seed=0, shuffle=True, drop_last=False)
    assert order.steps_per_epoch == 1
    assert sorted(seen(order, 0)) == sorted(seen(order, 9)) == [0, 1, 2, 3, 4]


def test_asking_for_the_order_leaves_the_users_randomness_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    permutation(100, 0, 0)
    assert torch.equal(torch.rand(1), expected)


def test_a_default_device_does_not_move_the_order():
    with torch.device("meta"):
        assert sorted(permutation(5, 0, 0).tolist()) == [0, 1, 2, 3, 4]


def test_long_runs_keep_few_orders_in_memory():
    order = Order(samples=10, batch=5, shards=1, seed=0, shuffle=True, drop_last=False)
    for step in range(40):
        order.indices(step, 0)
    assert len(order._orders) == EPOCHS_KEPT


@pytest.mark.parametrize("key", [(-1, 0), (0, -1), (0, 4)])
def test_a_shard_that_does_not_exist_is_no_shard(key):
    order = Order(samples=10, batch=5, shards=4, seed=0, shuffle=True, drop_last=False)
    with pytest.raises(IndexError, match="there is no shard"):
        order.indices(*key)
