"""What follows from a view is the same for everybody who holds it, and shares out everything exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.layout import BLOCKS_MAX
from relume.core.ranges import SHARDS_MAX
from relume.core.view import NONE, first, mirror_owner, owner, shards_of, spread
from relume.wire.messages import View

fleets = st.sets(st.integers(0, 63), min_size=1, max_size=40).map(sorted)
sizes = st.one_of(st.integers(1, 20), st.integers(1, SHARDS_MAX))


@given(members=fleets, shards=sizes)
def test_shards_are_spread_evenly_in_order_and_once(members, shards):
    parts = spread(members, shards)
    assert len(parts) == len(members)
    assert [shard for part in parts for shard in part] == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(members=fleets, shards=sizes, step=st.integers(0, 10**9))
def test_from_the_step_after_the_view_each_member_computes_what_was_spread(members, shards, step):
    odd = (tuple(range(shards)), *(() for _ in members[1:]))  # as after losses: one has all of it
    view = View((1, 7), tuple(members), step, shards, odd)
    assert [shards_of(view, rank, step) for rank in members] == list(odd)
    assert [shards_of(view, rank, step + 1) for rank in members] == list(spread(members, shards))


@given(members=fleets, blocks=st.integers(1, BLOCKS_MAX))
def test_every_block_has_one_owner_and_the_work_is_even(members, blocks):
    view = first(1, members, 4)
    owners = [owner(view, block, blocks) for block in range(blocks)]
    assert owners == sorted(owners), "neighbouring blocks have neighbouring owners"
    counts = [owners.count(rank) for rank in members]
    assert max(counts) - min(counts) <= 1


def test_the_first_view_is_above_no_view_and_sorted():
    view = first(3, [2, 0, 1], 4)
    assert view.number > NONE
    assert view.members == (0, 1, 2)
    assert (view.main, view.step) == (0, 0)


def test_who_is_not_in_the_view_computes_nothing():
    with pytest.raises(ValueError, match="not in"):
        shards_of(first(1, [0, 2], 4), 1, 0)


def test_who_has_no_shards_mirrors_nothing():
    view = first(1, [0, 3, 4, 6, 9], 2)
    working = {rank for rank, shards in zip(view.members, view.assigned, strict=True) if shards}
    owners = [mirror_owner(view, chunk, 7) for chunk in range(7)]
    assert set(owners) == working == {4, 9}
    assert owners == sorted(owners), "neighbours are written by one"
