"""The shape of the tree: fixed by the number of shards, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.core.ranges import SHARDS_MAX, cover, leaves, parent, sibling, split

sizes = st.one_of(st.integers(1, 40), st.integers(1, SHARDS_MAX), st.just(SHARDS_MAX))


def nodes(shards):
    """Every node of the tree over `shards` leaves, by the sentence that defines it."""
    found, pending = [], [(0, shards)]
    while pending:
        lo, hi = pending.pop()
        found.append((lo, hi))
        if hi - lo > 1:
            half = max(1 << power for power in range(13) if 1 << power < hi - lo)
            pending += [(lo, lo + half), (lo + half, hi)]
    return found


def drawn(lo, hi):
    if hi - lo == 1:
        return str(lo)
    middle = split(lo, hi)
    return f"({drawn(lo, middle)} {drawn(middle, hi)})"


@pytest.mark.parametrize(
    ("shards", "shape"),
    [
        (1, "0"),
        (2, "(0 1)"),
        (3, "((0 1) 2)"),
        (4, "((0 1) (2 3))"),
        (5, "(((0 1) (2 3)) 4)"),
        (6, "(((0 1) (2 3)) (4 5))"),
        (7, "(((0 1) (2 3)) ((4 5) 6))"),
        (8, "(((0 1) (2 3)) ((4 5) (6 7)))"),
    ],
)
def test_the_documented_shapes(shards, shape):
    assert drawn(0, shards) == shape


@given(shards=sizes, data=st.data())
def test_a_node_knows_its_parent_and_its_sibling(shards, data):
    everything = nodes(shards)
    node = data.draw(st.sampled_from(everything))
    above, beside = parent(node, shards), sibling(node, shards)
    if node == (0, shards):
        assert above is None
        assert beside is None
        return
    assert above in everything
    assert beside in everything
    assert sorted([node, beside]) == [(above[0], split(*above)), (split(*above), above[1])]
    assert sibling(beside, shards) == node


@pytest.mark.parametrize("node", [(1, 3), (0, 3), (4, 7), (0, 9), (-1, 1), (3, 3), (5, 4), (8, 9)])
def test_what_is_no_node_has_no_parent(node):
    with pytest.raises(ValueError, match="is no node of the tree over 8 shards"):
        parent(node, 8)


@given(shards=st.integers(1, 40), data=st.data())
def test_a_cover_is_the_widest_seals_from_left_to_right_or_none(shards, data):
    everything = nodes(shards)
    sealed = data.draw(st.lists(st.sampled_from(everything), max_size=30))
    if data.draw(st.booleans()):
        sealed += [(shard, shard + 1) for shard in range(shards)]
    found = cover(sealed, shards)
    if found is None:
        assert leaves(sealed) != set(range(shards)), "all shards are sealed, and no cover was found"
        return
    assert [lo for lo, _ in found] == [0, *(hi for _, hi in found[:-1])], "neighbours touch"
    assert found[-1][1] == shards
    for lo, hi in found:
        wider = [node for node in sealed if node[0] <= lo and hi <= node[1] and node != (lo, hi)]
        assert not wider, f"{(lo, hi)} was taken, and {wider} is sealed too"


def test_what_is_no_node_of_this_tree_covers_nothing():
    assert cover([(0, 3), (3, 8)], 8) is None
    assert cover([], 1) is None
    assert cover([(0, 1)], 1) == [(0, 1)]


def test_leaves_under_nodes_count_once():
    assert leaves([(0, 4), (2, 4), (6, 7)]) == {0, 1, 2, 3, 6}
    assert leaves([]) == set()


@given(shards=sizes)
def test_the_tree_is_as_deep_as_the_logarithm(shards):
    depth, node = 0, (shards - 1, shards)
    while (node := parent(node, shards)) is not None:
        depth += 1
    assert depth <= 12
    deepest, node = 0, (0, 1)
    while (node := parent(node, shards)) is not None:
        deepest += 1
    assert deepest == (shards - 1).bit_length()
