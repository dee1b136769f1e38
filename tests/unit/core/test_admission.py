"""Who is in the next view, and from which step: nobody who stays is left out, and a few refusals are enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.core.admission import AHEAD_MAX, BEHIND_MAX, PATIENCE_S, RETRY_S, first_step, next_members

ranks = st.sets(st.integers(0, 12), max_size=8)


def test_a_joiner_takes_the_place_that_is_free():
    assert next_members((0, 1, 3), (), [2], 4) == (0, 1, 2, 3)


def test_a_spare_waits_until_a_place_is_free():
    assert next_members((0, 1, 2), (), [3, 4], 3) == (0, 1, 2)


def test_whoever_leaves_makes_room_for_a_joiner_in_the_same_view():
    assert next_members((0, 1, 2), (1,), [5, 4], 3) == (0, 2, 4)


@given(ranks, ranks, ranks, st.integers(0, 12))
def test_all_who_stay_are_in_it_and_joiners_only_up_to_the_target(now, leaving, level, target):
    level = level - now
    members = next_members(now, leaving, level, target)
    assert list(members) == sorted(set(members))
    assert now - leaving <= set(members) <= (now - leaving) | level
    came = set(members) & level
    assert len(members) <= max(target, len(now - leaving))
    assert came == set(sorted(level)[: len(came)]), "the lowest ranks come first"
    assert came == level or len(members) >= target, "nobody is left out while there is room"


@pytest.mark.parametrize(("attempt", "ahead"), [(0, 1), (1, 2), (2, 4), (9, 512), (10, 1024), (11, 1024), (99, 1024)])
def test_each_refusal_doubles_the_distance_up_to_a_limit(attempt, ahead):
    assert first_step(7, attempt) == 7 + ahead


@given(st.integers(0, 10**9), st.integers(0, 30), st.integers(1, 900))
def test_a_few_refusals_are_enough_for_steps_of_any_length(newest, begun, per_round):
    """`per_round` steps pass between a proposal and its answer: the first distance that is greater is accepted."""
    newest, attempt = newest + begun, 0
    while first_step(newest, attempt) <= newest + per_round:
        newest += per_round
        attempt += 1
    assert attempt <= AHEAD_MAX


def test_a_proposal_is_not_left_open_for_long_and_tried_again_soon():
    assert 0.0 < RETRY_S < PATIENCE_S <= 1.0
    assert BEHIND_MAX > 0
