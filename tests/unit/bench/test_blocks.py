"""Who is measured when, and for how long: nobody is favoured, and the mirror is in as often as it really comes."""

from collections import Counter

import pytest

from relume.bench.blocks import BESIDE, Plan, plan, quick, turns
from relume.bench.orders import DDP, RELUME
from relume.bench.sizes import MIRROR_EVERY

FAST = dict.fromkeys((RELUME, DDP, *BESIDE), 0.001)


def mirrors(steps, blocks):
    """How many mirrors each block of `steps` counted steps holds, with one step before it that does not count."""
    starts = [number * (steps + 1) + 1 for number in range(blocks)]
    return [sum(step % MIRROR_EVERY == 0 for step in range(start, start + steps)) for start in starts]


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.02, 0.1, 1.4])
def test_a_block_is_long_enough_and_holds_its_share_of_mirrors(step_s):
    made = plan(20, dict.fromkeys(FAST, step_s))
    steps = made.steps[RELUME]
    assert made.steps[DDP] == steps
    assert steps * step_s >= 0.3 or steps == 4096
    assert steps >= 3
    assert set(mirrors(steps, 30)) == {steps // MIRROR_EVERY}


def test_the_faster_side_of_the_pair_decides_how_many_steps_make_a_block():
    made = plan(20, {**FAST, RELUME: 0.01, DDP: 0.1})
    assert made.steps[RELUME] == made.steps[DDP] == 32


def test_where_eight_steps_take_too_long_the_mirror_wanders_through_the_blocks():
    made = plan(20, dict.fromkeys(FAST, 3.0))
    steps = made.steps[RELUME]
    assert steps < MIRROR_EVERY
    held = mirrors(steps, MIRROR_EVERY)
    assert sum(held) == steps  # one in eight, of eight blocks
    assert 0 in held
    assert 1 in held


def test_who_comes_first_changes_with_every_round():
    made = Plan(20, FAST)
    first = Counter(made.round(number)[0] for number in range(20))
    assert first == {RELUME: 10, DDP: 10}
    for number in range(20):
        assert set(made.round(number)[:2]) == {RELUME, DDP}
        assert set(made.round(number)[2:]) == set(BESIDE)


def test_what_is_beside_the_pairs_comes_less_often_where_it_takes_long():
    made = plan(20, dict.fromkeys(FAST, 1.4))
    assert made.beside_every > 1
    rounds = [made.round(number) for number in range(20)]
    assert all({RELUME, DDP} <= set(each) for each in rounds)
    counts = Counter(work for each in rounds for work in each)
    assert {counts[work] for work in BESIDE} == {-(-20 // made.beside_every)}
    assert plan(20, FAST).beside_every == 1


def test_quick_is_quick():
    assert max(quick(2).steps.values()) <= 3


def test_in_a_tournament_everybody_goes_first_and_last_as_often():
    names = ("a", "b", "c", "d", "e")
    found = turns(names, 5)
    assert all(sorted(turn) == sorted(names) for turn in found)
    for place in range(5):
        assert sorted(turn[place] for turn in found) == sorted(names)
