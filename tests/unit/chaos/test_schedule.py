"""The schedule is a pure function of its seed, asks only for what is sure to happen, and meets every phase."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.progress import PHASES
from relume.chaos.schedule import LAST_PHASES, MOMENTS, OUTSIDE_FROM, OUTSIDE_TO, STORIES, Terms, plan
from relume.errors import ConfigError

STEPS = 60


@st.composite
def terms(draw):
    workers = draw(st.integers(1, 9))
    kills = draw(st.integers(0, workers - 1))
    return Terms(
        workers=workers,
        steps=draw(st.integers(4, 100)),
        shards=draw(st.integers(1, 12)),
        kills=kills,
        together=draw(st.integers(1, max(1, kills))),
        many_blocks=draw(st.booleans()),
    )


def test_twenty_seeds_meet_every_phase_that_a_worker_can_die_in():
    """The issue's list: loading, forward, backward, publishing, summing, optimizer, between, another loss, ends."""
    kills = [kill for seed in range(1, 21) for kill in plan(Terms(4, STEPS, 8, 3), seed).exact]
    assert {kill.story for kill in kills} == set(STORIES)
    assert {"load", "forward", "backward", "publish", "sum", "update", "between", "view", "joining"} <= set(STORIES)
    assert any(kill.phase == "joining" and kill.step == -1 for kill in kills)
    assert any(kill.step == STEPS - 1 for kill in kills)
    middle = {kill.phase for kill in kills if 0 < kill.step < STEPS - 1}
    assert {"load", "forward", "backward", "publish", "sum", "update", "between"} <= middle


def test_main_is_among_the_victims_and_among_the_survivors():
    victims = [0 in plan(Terms(4, STEPS, 8, 3), seed).victims for seed in range(1, 21)]
    assert True in victims
    assert False in victims


@pytest.mark.parametrize("workers", [2, 3])
def test_one_kill_per_run_meets_every_phase_but_the_one_that_needs_two(workers):
    stories = {kill.story for seed in range(1, 21) for kill in plan(Terms(workers, STEPS, 8, 1), seed).exact}
    assert stories == set(STORIES) - {"view"}


@given(terms(), st.integers(0, 10_000))
def test_a_schedule_asks_for_what_was_asked_and_leaves_somebody_alive(terms, seed):
    schedule = plan(terms, seed)
    assert schedule == plan(terms, seed)
    assert len(schedule.victims) == len(set(schedule.victims)) == terms.kills < terms.workers
    assert set(schedule.victims) <= set(range(terms.workers))


@given(terms(), st.integers(0, 10_000))
def test_exact_points_lie_within_the_run(terms, seed):
    for kill in plan(terms, seed).exact:
        assert kill.phase in PHASES
        assert 0 <= kill.nth < MOMENTS.get(kill.phase, 1)
        if kill.story == "last":
            assert kill.phase in LAST_PHASES
            assert kill.step == terms.steps - 1
        elif kill.story not in {"joining", "view"}:
            assert 0 < kill.step < terms.steps - 1


@given(terms(), st.integers(0, 10_000))
def test_exact_points_are_sure_to_be_met(terms, seed):
    """In a shard that the worker has whoever died before, and in a sum only if it surely owns a block."""
    for kill in plan(terms, seed).exact:
        if kill.phase in {"load", "forward", "backward", "publish"}:
            assert kill.entry < max(1, terms.shards // terms.workers)
            if terms.shards < terms.workers:
                assert kill.rank == terms.workers - 1
        if kill.phase == "sum" and not terms.many_blocks:
            assert kill.rank == 0


@given(terms(), st.integers(0, 10_000))
def test_a_kill_during_another_loss_has_another_loss_to_be_during(terms, seed):
    schedule = plan(terms, seed)
    if any(kill.story == "view" for kill in schedule.exact):
        assert schedule.outside


@given(terms(), st.integers(0, 10_000))
def test_kills_from_outside_come_in_the_middle_of_the_run(terms, seed):
    times = [kill.at_step / terms.steps for kill in plan(terms, seed).outside]
    assert times == sorted(times)
    assert all(OUTSIDE_FROM <= time <= OUTSIDE_TO for time in times)


@given(terms(), st.integers(0, 10_000))
def test_half_of_the_kills_are_exact_or_a_group_more(terms, seed):
    schedule = plan(terms, seed)
    exact, half = len(schedule.exact), (terms.kills + 1) // 2
    if terms.together == 1:
        assert exact == half
    elif terms.kills > terms.together:
        assert half <= exact < half + terms.together
    else:
        assert exact in {0, terms.kills}  # one group: all of it here or all of it there


@given(terms(), st.integers(0, 10_000))
def test_those_who_die_together_die_at_the_same_point(terms, seed):
    schedule = plan(terms, seed)
    exact = list(schedule.exact)
    for group in (exact[i : i + terms.together] for i in range(0, len(exact), terms.together)):
        assert len({(kill.phase, kill.step, kill.entry, kill.nth) for kill in group}) == 1
    assert all(len(kill.ranks) <= terms.together for kill in schedule.outside)


def test_two_seeds_differ():
    assert len({plan(Terms(4, STEPS, 8, 3), seed) for seed in range(30)}) == 30


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (Terms(4, 60, 8, 4), "--kills 4"),
        (Terms(4, 60, 8, -1), "--kills -1"),
        (Terms(4, 60, 8, 2, 3), "--kill-together 3"),
        (Terms(4, 60, 8, 2, 0), "--kill-together 0"),
        (Terms(4, 3, 8, 2), "--steps 3"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(terms, said):
    with pytest.raises(ConfigError, match=said):
        plan(terms, 1)
