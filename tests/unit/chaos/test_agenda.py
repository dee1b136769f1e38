"""Schedules for runs whose workers come back: a pure function of the seed, lives counted, each trap sure to be met."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.progress import PHASES
from relume.chaos.agenda import DEPTHS, FROM, STORIES, TO, Errand, Respawn, plan_return, steps_for
from relume.chaos.schedule import KillAll, Pick, Rescale
from relume.errors import ConfigError

ISSUE = Errand(workers=4, steps=steps_for(8, Respawn()), shards=8, kills=8)


@st.composite
def errands(draw):
    workers = draw(st.integers(1, 6))
    kills = draw(st.integers(0, 20))
    respawn = Respawn(
        spares=draw(st.integers(0, 2)),
        kill_all=draw(st.integers(0, 2)),
        scale=tuple(draw(st.lists(st.integers(1, 6), max_size=3))),
    )
    errand = Errand(
        workers=workers,
        steps=8,
        shards=draw(st.integers(1, 12)),
        kills=kills,
        together=draw(st.integers(1, max(1, min(kills, workers - 1)))),
        many_blocks=draw(st.booleans()),
        respawn=respawn,
    )
    return replace(errand, steps=steps_for(kills, respawn))


def picks(schedule):
    return [action for action in schedule.outside if isinstance(action, Pick)]


def test_a_dozen_seeds_meet_every_story():
    """The issue's: all of the first kind, and during replay, mirroring and another's admission."""
    stories = Counter(kill.story for seed in range(1, 13) for kill in plan_return(ISSUE, seed).exact)
    assert set(stories) == set(STORIES)
    assert {"replay", "mirror", "admission"} <= set(STORIES)
    assert set(STORIES) <= set(PHASES)


def test_with_spares_nobody_waits_for_an_admission_that_need_not_come():
    errand = replace(ISSUE, respawn=Respawn(spares=1))
    assert "admission" not in {kill.story for seed in range(40) for kill in plan_return(errand, seed).exact}


def test_a_rank_dies_again_after_it_came_back():
    lives = {kill.life for seed in range(1, 13) for kill in plan_return(ISSUE, seed).exact}
    assert {0, 1} <= lives


def test_main_dies_by_a_trap_in_some_runs():
    ranks = [{kill.rank for kill in plan_return(ISSUE, seed).exact} for seed in range(1, 13)]
    assert any(0 in each for each in ranks)
    assert any(0 not in each for each in ranks)


@given(errands(), st.integers(0, 10_000))
def test_all_that_is_asked_for_is_done_and_nothing_else(errand, seed):
    schedule = plan_return(errand, seed)
    assert schedule == plan_return(errand, seed)
    assert len(schedule.exact) + sum(pick.count for pick in picks(schedule)) == errand.kills == schedule.kills
    assert sum(isinstance(action, KillAll) for action in schedule.outside) == errand.respawn.kill_all
    asked = tuple(action.workers for action in schedule.outside if isinstance(action, Rescale))
    assert asked == errand.respawn.scale
    if errand.respawn.kill_all or errand.respawn.scale or errand.workers == 1:
        assert schedule.exact == ()
    elif errand.together == 1:
        assert len(schedule.exact) == (errand.kills + 1) // 2


@given(errands(), st.integers(0, 10_000))
def test_lives_are_counted_without_a_gap_and_nobody_else_kills_those_ranks(errand, seed):
    schedule = plan_return(errand, seed)
    lives = {}
    for kill in schedule.exact:
        assert kill.life == lives.get(kill.rank, 0)
        lives[kill.rank] = kill.life + 1
    for pick in picks(schedule):
        assert set(lives) <= pick.spared
        assert pick.spared < set(range(errand.workers)) or not schedule.exact
    assert len(lives) < errand.workers or not schedule.exact


@given(errands(), st.integers(0, 10_000))
def test_each_trap_is_sure_to_be_met(errand, seed):
    schedule = plan_return(errand, seed)
    ranks = [kill.rank for kill in schedule.exact]
    for place, kill in enumerate(schedule.exact):
        assert 0 <= kill.nth < DEPTHS.get(kill.phase, 1)
        if kill.story == "replay":
            assert kill.rank in ranks[:place]
        elif kill.story == "joining":
            assert (kill.step, kill.later) == (-1, False)
        elif kill.story in {"view", "admission"}:
            assert kill.later
            assert kill.step == 0
            assert picks(schedule)
        else:
            assert kill.later
            assert 0 <= kill.step < errand.steps * 0.8
        if kill.entry is not None and kill.phase in {"load", "forward", "backward", "publish"}:
            assert kill.entry < max(1, errand.shards // errand.workers)


@given(errands(), st.integers(0, 10_000))
def test_all_is_done_early_enough_to_come_back_from(errand, seed):
    schedule = plan_return(errand, seed)
    steps = [action.at_step for action in schedule.outside] + [k.step for k in schedule.exact if k.step > 0]
    for step in steps:
        assert errand.steps * FROM - 1 <= step
        assert step <= errand.steps * TO + 4.0 * errand.kills


def test_most_kills_leave_time_to_come_back_and_some_do_not():
    gaps = []
    for seed in range(40):
        steps = sorted(pick.at_step for pick in picks(plan_return(replace(ISSUE, workers=1), seed)))
        gaps += [after - before for before, after in pairwise(steps)]
    soon = [gap for gap in gaps if gap < 5]
    assert 0.15 < len(soon) / len(gaps) < 0.5
    assert min(gap for gap in gaps if gap >= 5) > 6


def test_scalings_are_spread_over_the_run_in_their_order():
    errand = Errand(4, 200, 8, 0, respawn=Respawn(scale=(2, 5, 3)))
    actions = plan_return(errand, 1).outside
    assert [action.workers for action in actions] == [2, 5, 3]
    steps = [action.at_step for action in actions]
    assert min(after - before for before, after in pairwise(steps)) > 20


@pytest.mark.parametrize(
    ("errand", "said"),
    [
        (replace(ISSUE, kills=-1), "--kills"),
        (replace(ISSUE, together=4), "--kill-together 4"),
        (replace(ISSUE, together=0), "--kill-together 0"),
        (replace(ISSUE, steps=7), "--steps 7"),
        (replace(ISSUE, kills=200), "--steps 220"),
        (replace(ISSUE, respawn=Respawn(scale=(2, 0))), "--scale 2,0"),
        (replace(ISSUE, respawn=Respawn(spares=-1)), "--spares"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(errand, said):
    with pytest.raises(ConfigError, match=said):
        plan_return(errand, 1)
