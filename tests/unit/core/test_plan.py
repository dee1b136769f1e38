"""What is sealed stands, what is missing gets one new worker, and nobody alive loses what it has begun (rule 4)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relume.core import ranges
from relume.core.plan import Inventory, _bequeath, replan
from relume.core.view import first, shards_of
from tests.unit.core.test_ranges import nodes


def test_the_lost_shards_of_the_dead_go_to_who_has_least_to_do():
    old = first(1, [0, 1, 2, 3], 8)
    plan = replan(old, (1, 2), [0, 1, 3], Inventory(4, {0: [(0, 1), (1, 2)], 1: [(2, 3)], 2: [(4, 5)]}))
    assert plan.view.step == 5
    assert plan.view.assigned == ((0, 1, 5), (2, 3), (6, 7))
    assert plan.moved == {2: {5: 0}}


def test_a_leaf_of_the_dead_that_is_sealed_counts():
    old = first(1, [0, 1], 2)
    plan = replan(old, (1, 2), [0], Inventory(0, {1: [(1, 2)]}))
    assert plan.view.assigned == ((0,),)
    assert plan.moved == {}


def test_a_complete_step_is_not_redone():
    old = first(1, [0, 1], 4)
    plan = replan(old, (1, 2), [1], Inventory(0, {}))
    assert plan.view.step == 1
    assert plan.view.assigned == ((2, 3, 0, 1),)


def test_each_lost_shard_is_told_with_whose_it_was():
    old = first(1, [0, 1, 2], 6)
    plan = replan(old, (1, 2), [1], Inventory(-1, {0: [(0, 1)]}))
    assert plan.moved == {0: {1: 1}, 2: {4: 1, 5: 1}}


def test_more_workers_than_shards_and_the_idle_ones_inherit():
    old = first(1, range(5), 2)
    assert old.assigned == ((), (), (0,), (), (1,))
    plan = replan(old, (1, 2), [0, 1, 3], Inventory(-1, {}))
    assert plan.view.assigned == ((0,), (1,), ())


def test_what_an_heir_inherited_is_inherited_again():
    old = first(1, [0, 1, 2], 6)
    second = replan(old, (1, 2), [0, 1], Inventory(2, {0: [(0, 2)], 1: [(2, 4)]}))
    assert second.view.assigned == ((0, 1, 4), (2, 3, 5))
    third = replan(second.view, (1, 3), [1], Inventory(2, {0: [(0, 2)], 1: [(2, 4)]}))
    assert third.view.assigned == ((2, 3, 5, 4),)
    assert third.moved == {0: {4: 1}}


@st.composite
def losses(draw):
    """A run's first view, and then rounds of losses, each with what the arena might hold by then."""
    workers, shards = draw(st.integers(1, 9)), draw(st.integers(1, 24))
    rounds, alive, complete = [], list(range(workers)), -1
    for _ in range(draw(st.integers(1, 5))):
        survivors = draw(st.sets(st.sampled_from(alive), min_size=1).map(sorted))
        ahead = draw(st.integers(0, 2))
        rounds.append((survivors, ahead, draw(st.randoms(use_true_random=False))))
        alive, complete = survivors, complete + ahead
    return workers, shards, rounds


@given(losses())
def test_after_any_losses_every_shard_stands_or_has_exactly_one_worker(story):
    workers, shards, rounds = story
    view, complete, n = first(1, range(workers), shards), -1, 1
    standing: dict[int, list] = {}
    for survivors, ahead, chance in rounds:
        if ahead:
            complete, standing = complete + ahead, {}
        step = complete + 1
        # What is sealed by now: some of what each member was to compute, singly or as a node that is whole.
        for rank in view.members:
            mine = set(shards_of(view, rank, step))
            whole = [node for node in nodes(shards) if set(range(*node)) <= mine]
            standing.setdefault(rank, []).extend(node for node in whole if chance.random() < 0.3)
        n += 1
        old, plan = view, replan(view, (1, n), survivors, Inventory(complete, standing))
        view = plan.view
        sealed = ranges.leaves(node for found in standing.values() for node in found)
        assert (view.number, view.step, list(view.members)) == ((1, n), step, survivors)
        count = Counter(shard for part in view.assigned for shard in part)
        for shard in range(shards):
            assert count[shard] <= 1, f"shard {shard} is computed twice"
            assert count[shard] == 1 or shard in sealed, f"shard {shard} is computed by nobody"
        for rank in survivors:
            kept = set(shards_of(old, rank, step))
            assert kept <= set(shards_of(view, rank, step)), "a survivor loses what it may be at"
        for dead, heirs in plan.moved.items():
            assert dead not in survivors
            assert all(shard in shards_of(old, dead, step) and shard not in sealed for shard in heirs)
            assert all(shard in shards_of(view, heir, step) for shard, heir in heirs.items())


@given(
    lost=st.lists(st.integers(0, 99), unique=True).map(sorted),
    load=st.dictionaries(st.integers(0, 9), st.integers(0, 12), min_size=1),
)
def test_the_lost_are_levelled_out_over_those_who_live_in_runs_of_neighbours(lost, load):
    parts = _bequeath(lost, load)
    assert [shard for heir in parts for shard in parts[heir]] == lost, "each heir gets neighbours"
    assert all(parts.values()), "nobody inherits nothing"
    after = {rank: load[rank] + len(parts.get(rank, ())) for rank in load}
    lightest = min(after.values())
    for heir in parts:
        assert after[heir] <= lightest + 1, f"{heir} got more than it had to: {after}"
