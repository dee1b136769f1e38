"""A worker's slots: a death between any two words leaves a shard missing or whole, and never a wrong sum (rule 8)."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relume.arena.layout import SLOT_WORDS, SLOTS_EAGER, slots_max
from relume.core import ranges
from relume.core.ranges import SHARDS_MAX
from relume.reduce.layout import GradientLayout
from relume.reduce.seals import UNSEALED, pack, unpack
from relume.reduce.slots import Slots
from tests.unit.reduce.test_blocks import same
from tests.unit.reduce.test_tree import by_hand

STEP = 5
FACTORS = (1.0, 3.0, 0.7)
"""What leaves are multiplied by: they stand in their slots as backward made them."""


class Dead(Exception):
    """The worker was killed here."""


class Words:
    """Seals that end the worker after so many writes, and note how far it got."""

    def __init__(self, count, lives=None):
        self.words = np.zeros(count, dtype=np.uint64)
        self.lives = lives
        self.writes = 0

    def __setitem__(self, place, word):
        if self.lives is not None and self.writes == self.lives:
            raise Dead
        self.writes += 1
        self.words[place] = word

    def tolist(self):
        return self.words.tolist()


class Holder:
    """A worker that computes shards one after the other; leaves are functions of the shard alone."""

    def __init__(self, shards, present=None, lives=None, sizes=(3, 40)):
        self.layout = GradientLayout([(f"p{n}", torch.zeros(n)) for n in sizes])
        self.shards = shards
        self.present = np.ones((shards, len(sizes)), dtype=bool) if present is None else present
        self.seals = Words(SLOT_WORDS, lives)
        self.memory = {}
        self.slots = Slots(self.seals, self._slot, self.layout, shards, slots_max(shards))

    def _slot(self, index):
        return self.memory.setdefault(index, torch.full((self.layout.size,), 0x7F, dtype=torch.uint8))

    def leaf(self, shard):
        chance = torch.Generator().manual_seed(shard)
        return [torch.randn(len(view), generator=chance) for view in self.layout.views(self._slot(0))]

    def content(self, node):
        present = np.logical_or.reduce([self.present[shard] for shard in range(*node)])
        return present, FACTORS[node[0] % len(FACTORS)] if node[1] - node[0] == 1 else 1.0

    def scaled(self, part, shard):
        return None if part is None else part * FACTORS[shard % len(FACTORS)]

    def compute(self, shard):
        slot = self.slots.acquire(STEP, self.content, lambda action: action())
        for view, value, there in zip(self.slots.views(slot), self.leaf(shard), self.present[shard], strict=True):
            view.fill_(float("nan"))  # half written
            if there:
                view.copy_(value)
        self.slots.seal(slot, STEP, shard)

    def live(self, todo):
        """Compute shards until death; return those that were sealed before it."""
        done = []
        with contextlib.suppress(Dead):
            for shard in todo:
                self.compute(shard)
                done.append(shard)
        return done

    def check(self):
        """Whatever is sealed is what it says; return the shards that stand."""
        held = self.slots.held(STEP)
        for node, slot in held.items():
            for index, view in enumerate(self.layout.views(self.memory[slot])):
                alone = node[1] - node[0] == 1
                parts = [self.leaf(s)[index] if self.present[s][index] else None for s in range(*node)]
                total = parts[0] if alone else by_hand([self.scaled(part, node[0] + n) for n, part in enumerate(parts)])
                assert total is None or same(view, total), f"{node} in slot {slot} is wrong in parameter {index}"
        return ranges.leaves(held)


@st.composite
def orders(draw, most=24):
    shards = draw(st.integers(1, most))
    todo = draw(st.permutations(range(shards)))[: draw(st.integers(1, shards))]
    if draw(st.booleans()):
        todo = sorted(todo)
    return shards, todo


def presence_for(chance, shards):
    return np.array([[chance.random() < 0.7, chance.random() < 0.7] for _ in range(shards)], dtype=bool)


@given(orders(), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_shards_in_whatever_order_all_stand_and_are_right(order, mixed, chance):
    shards, todo = order
    holder = Holder(shards, presence_for(chance, shards) if mixed else None)
    for place, shard in enumerate(todo):
        holder.compute(shard)
        assert holder.check() == set(todo[: place + 1])
    assert max(holder.memory) < slots_max(shards)


@settings(max_examples=60)
@given(orders(most=12), st.booleans(), st.randoms(use_true_random=False))
def test_a_death_between_any_two_words_leaves_every_other_shard_whole(order, mixed, chance):
    shards, todo = order
    present = presence_for(chance, shards) if mixed else None
    whole = Holder(shards, present)
    for shard in todo:
        whole.compute(shard)
    for lives in range(whole.seals.writes):
        holder = Holder(shards, present, lives)
        done = holder.live(todo)
        standing = holder.check()
        assert len(done) < len(todo)
        assert standing <= {*done, todo[len(done)]}
        # In the middle of a merge the left node is missing, which is at most one node.
        missing = set(done) - standing
        assert not missing or missing == set(range(min(missing), max(missing) + 1))
        assert ranges.cover(holder.slots.held(STEP), shards) is None or standing == set(range(shards))


def test_leaves_that_fit_stay_apart():
    holder = Holder(8)
    for shard in range(SLOTS_EAGER):
        holder.compute(shard)
    assert sorted(holder.slots.held(STEP)) == [(0, 1), (1, 2)]
    assert len(holder.memory) == SLOTS_EAGER


@pytest.mark.parametrize("shards", [4, 8, 64, 256])
def test_an_aligned_share_is_a_binary_counter_of_few_slots(shards):
    holder = Holder(2 * shards, sizes=(1,), present=np.ones((2 * shards, 1), dtype=bool))
    for shard in range(shards, 2 * shards):
        holder.compute(shard)
    assert len(holder.memory) <= (shards - 1).bit_length() + 1
    assert holder.check() == set(range(shards, 2 * shards))


@given(st.data())
def test_a_contiguous_share_needs_at_most_two_log_s_slots(data):
    shards = data.draw(st.integers(2, 200))
    lo = data.draw(st.integers(0, shards - 1))
    hi = data.draw(st.integers(lo + 1, shards))
    holder = Holder(shards, sizes=(1,), present=np.ones((shards, 1), dtype=bool))
    for shard in range(lo, hi):
        holder.compute(shard)
    assert len(holder.memory) <= max(SLOTS_EAGER, 2 * shards.bit_length())


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 31, 33, 200, 252])
def test_every_second_shard_is_the_worst_and_fits(shards):
    holder = Holder(shards, sizes=(1,), present=np.ones((shards, 1), dtype=bool))
    for shard in [*range(0, shards, 2), *range(1, shards, 2)]:
        holder.compute(shard)
    assert holder.check() == set(range(shards))


def test_a_share_of_as_many_shards_as_there_may_be_fits():
    holder = Holder(SHARDS_MAX, sizes=(1,), present=np.ones((SHARDS_MAX, 1), dtype=bool))
    highest = 0
    for shard in range(1, SHARDS_MAX):
        slot = holder.slots.acquire(STEP, lambda _: (np.ones(1, dtype=bool), 1.0), lambda action: action())
        holder.slots.seal(slot, STEP, shard)
        highest = max(highest, slot)
    assert highest < 24, "2 log2 S"
    assert ranges.leaves(holder.slots.held(STEP)) == set(range(1, SHARDS_MAX))


def test_slots_of_the_step_before_are_free_again():
    holder = Holder(4)
    for shard in (0, 1):
        holder.compute(shard)
    slot = holder.slots.acquire(STEP + 1, holder.content, lambda action: action())
    assert slot == 0
    assert holder.seals.tolist()[:2] == [UNSEALED, pack(STEP, (1, 2))], "unsealed before it is written"
    assert holder.slots.held(STEP + 1) == {}


def test_a_slot_that_was_acquired_and_never_sealed_is_acquired_again():
    holder = Holder(4)
    first = holder.slots.acquire(STEP, holder.content, lambda action: action())
    assert holder.slots.acquire(STEP, holder.content, lambda action: action()) == first


def test_every_change_of_a_seal_waits_for_the_pen():
    holder, asked = Holder(4), []

    def write(action):
        before = holder.seals.writes
        action()
        asked.append(holder.seals.writes - before)

    for shard in range(4):
        before = holder.seals.writes
        asked.clear()
        slot = holder.slots.acquire(STEP, holder.content, write)
        assert holder.seals.writes - before == sum(asked), "a seal was changed without the pen"
        holder.slots.seal(slot, STEP, shard)


def test_the_wider_seal_comes_before_the_source_is_unsealed():
    holder = Holder(4)
    for shard in (0, 1):
        holder.compute(shard)
    holder.seals.lives = holder.seals.writes + 2  # the destination is unsealed, the wider range sealed
    with pytest.raises(Dead):
        holder.compute(2)
    assert sorted(unpack(word)[1] for word in holder.seals.tolist() if word) == [(0, 2), (1, 2)]
    assert ranges.cover(holder.slots.held(STEP), 4) is None
    assert ranges.cover([*holder.slots.held(STEP), (2, 4)], 4) == [(0, 2), (2, 4)]


def test_absent_parameters_are_not_touched_by_a_merge():
    present = np.array([[True, False], [False, False], [True, True], [True, True]], dtype=bool)
    holder = Holder(4, present)
    for shard in range(4):
        holder.compute(shard)
    assert holder.check() == {0, 1, 2, 3}


def test_signs_of_zero_and_infinities_live_through_a_merge():
    holder = Holder(2, np.array([[True, True], [False, True]]))
    values = {0: [-0.0, float("-inf")], 1: [1.0, -0.0]}
    holder.leaf = lambda shard: [torch.full((3,), values[shard][0]), torch.full((40,), values[shard][1])]
    holder._slot(0)
    for shard in (0, 1):
        holder.compute(shard)
    holder.slots.acquire(STEP, holder.content, lambda action: action())  # merges
    assert sorted(holder.slots.held(STEP)) == [(0, 2)]
    assert holder.check() == {0, 1}
