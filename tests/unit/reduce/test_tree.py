"""The order of the sum is the result: the tree against its vectors, and against a recursion of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.reduce.tree import fold, fold_leaves
from tests.unit.core.test_ranges import drawn, nodes
from tests.unit.reduce.vectors import DIVISOR, SHAPES, TREE


def same(a, b):
    """Bit for bit, any NaN being as good as another."""
    return (a is None) == (b is None) and (
        a is None or (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    )


def number(text):
    return None if text is None else float.fromhex(text)


def scalar(dtype, text):
    return torch.tensor(number(text), dtype=getattr(torch, dtype))


def by_hand(values):
    """The sum of `values` (None: absent) in the order that the design gives in a sentence."""
    if len(values) == 1:
        return values[0]
    half = max(1 << power for power in range(13) if 1 << power < len(values))
    left, right = by_hand(values[:half]), by_hand(values[half:])
    return right if left is None else left if right is None else left + right


@pytest.mark.parametrize(("shards", "shape"), SHAPES)
def test_shapes(shards, shape):
    assert drawn(0, shards) == shape


@pytest.mark.parametrize(("dtype", "leaves", "root"), TREE)
def test_vectors_of_the_tree(dtype, leaves, root):
    there = {(shard, shard + 1): scalar(dtype, leaf) for shard, leaf in enumerate(leaves) if leaf is not None}
    total = fold(there, len(leaves), torch.add)
    assert same(None if total is None else total.item(), number(root))


@pytest.mark.parametrize(("dtype", "weights", "total", "root", "mean"), DIVISOR)
def test_vectors_of_the_divisor(dtype, weights, total, root, mean):
    weight = fold_leaves({shard: number(each) for shard, each in enumerate(weights) if each is not None}, len(weights))
    assert same(weight, number(total))
    assert same(torch.div(scalar(dtype, root), weight).item(), number(mean))


numbers = st.floats(width=64, allow_nan=True, allow_infinity=True, allow_subnormal=True)


@given(st.lists(st.none() | numbers, min_size=1, max_size=70))
def test_the_fold_is_the_sentence(values):
    there = {shard: value for shard, value in enumerate(values) if value is not None}
    assert same(fold_leaves(there, len(values)), by_hand(values))


@given(st.lists(st.none() | numbers, min_size=1, max_size=40), st.data())
def test_whoever_summed_a_part_before_the_root_is_the_same(values, data):
    # Partial sums of any nodes, beside leaves that they cover: the widest is read, and gives the same.
    sources = {(shard, shard + 1): value for shard, value in enumerate(values) if value is not None}
    for lo, hi in data.draw(st.lists(st.sampled_from(nodes(len(values))), max_size=8)):
        part = by_hand(values[lo:hi])
        if part is not None:
            sources[lo, hi] = part
    assert same(fold(sources, len(values), lambda a, b: a + b), by_hand(values))


def test_nothing_at_all_is_none_and_not_zero():
    assert fold({}, 5, torch.add) is None
    assert fold_leaves({}, 1) is None


def test_as_many_shards_as_there_may_be():
    assert fold_leaves(dict.fromkeys(range(4095), 1.0), 4095) == 4095.0


def test_the_order_is_left_to_right_within_a_node():
    order = fold({(shard, shard + 1): str(shard) for shard in range(6)}, 6, lambda a, b: f"({a} {b})")
    assert order == dict(SHAPES)[6]


def test_the_decision_record_quotes_the_vectors():
    text = (Path(__file__).parents[3] / "docs/adr/0002-the-numbers-that-decide-bits.md").read_text(encoding="utf-8")
    for shards, order in SHAPES:
        assert f"| {shards} | `{order}` |" in text
    for dtype, *columns in (*TREE, *DIVISOR):
        cells = [column if isinstance(column, tuple) else (column,) for column in columns]
        row = " | ".join(", ".join(f"`{'absent' if each is None else each}`" for each in cell) for cell in cells)
        assert f"| {dtype} | {row} |" in text
