"""A block of the result is the tree over its bytes, whatever is sealed, absent, or cut in the middle of a parameter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relume.arena.layout import ALIGNMENT, block_bounds
from relume.core import ranges
from relume.reduce.blocks import PIECE_BYTES, Sources, pieces
from relume.reduce.layout import GradientLayout
from tests.unit.core.test_ranges import nodes
from tests.unit.reduce.test_tree import by_hand

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 3e38, -3e38, 1.0])


def same(one, other):
    """Bit for bit, NaNs too."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class Case:
    """Leaves of random shards, some of them already summed into nodes, and the reference's mean."""

    def __init__(self, layout, present, weight, *, generator=None, special=0.0):
        """`present` is shard by parameter; `special` is how many values are infinities, NaNs, zeros with a sign."""
        self.layout, self.present, self.weight = layout, present, weight
        self.shards = shards = len(present)
        generator = generator or torch.Generator().manual_seed(1)
        self.leaves = []
        for shard in range(shards):
            memory = torch.randint(0, 256, (layout.size,), dtype=torch.uint8, generator=generator)  # padding is garbage
            for index, view in enumerate(layout.views(memory)):
                if present[shard][index]:
                    value = torch.randn(view.shape, generator=generator)
                    mask = torch.rand(view.shape, generator=generator) < special
                    chosen = SPECIAL[torch.randint(0, len(SPECIAL), view.shape, generator=generator)]
                    view.copy_(torch.where(mask, chosen, value))
            self.leaves.append(memory)

    def node(self, lo, hi):
        """The partial sum of a node as it stands in a slot; garbage where it is absent."""
        memory = self.leaves[lo].clone()
        for index, view in enumerate(self.layout.views(memory)):
            total = by_hand([self.leaf(shard, index) for shard in range(lo, hi)])
            if total is not None:
                view.copy_(total)
        return memory

    def leaf(self, shard, index):
        return self.layout.views(self.leaves[shard])[index] if self.present[shard][index] else None

    def sources(self, sealed):
        presence = {node: np.logical_or.reduce([self.present[shard] for shard in range(*node)]) for node in sealed}
        return Sources(self.shards, {node: self.node(*node) for node in sealed}, presence, self.weight)

    def means(self):
        for index in range(len(self.layout.entries)):
            total = by_hand([self.leaf(shard, index) for shard in range(self.shards)])
            yield None if total is None else torch.div(total, self.weight)


def summed(case, sealed, bounds, order=None):
    result = torch.randint(0, 256, (case.layout.size,), dtype=torch.uint8)
    blocks = list(bounds)
    for block in order(blocks) if order else blocks:
        for compute in pieces(case.layout, case.sources(sealed), block, result):
            compute()
    return result


def check(case, result):
    for view, mean, entry in zip(case.layout.views(result), case.means(), case.layout.entries, strict=True):
        assert mean is None or same(view, mean), f"{entry.name} differs"


def fitting(sealed, shards):
    """The widest of `sealed` that do not stand over each other, and the single leaves beside them."""
    return ranges.cover([*sealed, *((shard, shard + 1) for shard in range(shards))], shards)


@st.composite
def cases(draw):
    shards = draw(st.integers(1, 9))
    named = []
    for index in range(draw(st.integers(1, 5))):
        shape = draw(st.sampled_from([(), (1,), (7,), (3, 5), (0,), (16,), (5, 13), (11, 23)]))
        value = torch.zeros(shape, dtype=draw(st.sampled_from(DTYPES)))
        named.append((f"p{index}", value.t() if value.dim() == 2 and draw(st.booleans()) else value))
    layout = GradientLayout(named)
    row = st.lists(st.booleans(), min_size=len(named), max_size=len(named))
    everywhere = draw(st.booleans())
    present = np.array([[True] * len(named) if everywhere else draw(row) for _ in range(shards)], dtype=bool)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = draw(st.sampled_from([1.0, 8.0, 3.0, 7.7, 16777219.0]))
    case = Case(layout, present, weight, generator=generator, special=draw(st.sampled_from([0.0, 0.3])))
    sealed = fitting(draw(st.lists(st.sampled_from(nodes(shards)), max_size=4)), shards)
    # Blocks as small as may be cut parameters in the middle; a real run's are larger and no different.
    size = draw(st.sampled_from([1, 2, 3, 512])) * ALIGNMENT
    bounds = [(start, min(start + size, layout.size)) for start in range(0, max(layout.size, 1), size)]
    return case, sealed, bounds


@settings(max_examples=150)
@given(cases(), st.randoms(use_true_random=False))
def test_blocks_are_the_tree_bit_for_bit_in_whatever_order_they_are_summed(drawn, chance):
    case, sealed, bounds = drawn
    check(case, summed(case, sealed, bounds, order=lambda blocks: chance.sample(blocks, len(blocks))))


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_larger_than_a_piece_and_blocks_that_cut_them(dtype, everywhere):
    count = (3 * PIECE_BYTES) // dtype.itemsize + 13
    layout = GradientLayout([("a", torch.zeros(5, dtype=dtype)), ("b", torch.zeros(count, dtype=dtype))])
    present = np.array([[True, True], [everywhere, True], [True, everywhere]], dtype=bool)
    case = Case(layout, present, 6.0, special=0.01)
    check(case, summed(case, [(0, 2), (2, 3)], block_bounds(layout.size)))


def test_no_piece_holds_the_pen_for_more_than_256_kib():
    layout = GradientLayout([("a", torch.zeros(PIECE_BYTES)), ("b", torch.zeros(PIECE_BYTES, dtype=torch.float64))])
    case = Case(layout, np.ones((1, 2), dtype=bool), 1.0)
    result = torch.zeros(layout.size, dtype=torch.uint8)
    before, ends = result.clone(), 0
    for compute in pieces(layout, case.sources([(0, 1)]), (0, layout.size), result):
        compute()
        changed = (result != before).nonzero()
        first, last = int(changed.min()), int(changed.max())
        assert ends <= first, "from left to right, nothing twice"
        assert last - first < PIECE_BYTES
        before, ends = result.clone(), last + 1
    assert ends > layout.size - 64


def test_absent_everywhere_is_left_as_it_was():
    layout = GradientLayout([("a", torch.zeros(4)), ("b", torch.zeros(4))])
    case = Case(layout, np.array([[True, False]] * 2), 2.0)
    result = torch.full((layout.size,), 9, dtype=torch.uint8)
    for compute in pieces(layout, case.sources([(0, 1), (1, 2)]), (0, layout.size), result):
        compute()
    a, b = layout.views(result)
    assert same(a, torch.div(case.leaf(0, 0) + case.leaf(1, 0), 2.0))
    assert b.contiguous().view(torch.uint8).unique().tolist() == [9]


def test_sources_are_never_written():
    layout = GradientLayout([("a", torch.zeros(100)), ("b", torch.zeros(100))])
    for present in ([[True, True]] * 7, [[True, False], *[[True, True]] * 6]):
        case = Case(layout, np.array(present), 7.0)
        sources = case.sources(fitting([(4, 6)], 7))
        before = {node: memory.clone() for node, memory in sources.memory.items()}
        result = torch.zeros(layout.size, dtype=torch.uint8)
        for compute in pieces(layout, sources, (0, layout.size), result):
            compute()
        assert all(torch.equal(sources.memory[node], before[node]) for node in before)


def test_a_gradient_of_no_bytes_has_one_block_and_nothing_to_do():
    layout = GradientLayout([("empty", torch.zeros(0, 3))])
    [block] = block_bounds(layout.size)
    sources = Sources(1, {(0, 1): torch.zeros(0, dtype=torch.uint8)}, {(0, 1): np.ones(1, dtype=bool)}, 1.0)
    for compute in pieces(layout, sources, block, torch.zeros(0, dtype=torch.uint8)):
        compute()
