"""Who came back, and when the fleet was whole again: runs told by hand, whose answers are known."""

import pytest

from relume.chaos.comeback import recoveries, scalings
from tests.unit.chaos.paper import MS, Told


def judged(told, workers=4, spares=0, **more):
    return recoveries(told.evidence(**more), told.killed_ns, workers, spares)


def in_ms(*times_ns):
    return tuple(None if time_ns is None else time_ns // MS for time_ns in times_ns)


def test_a_kill_after_which_the_rank_came_back_is_recovered():
    """Killed at 1040; started at 1140, level at 2040, in a view at 2140 that begins with step 22, taken at 2295."""
    told = Told()
    told.cycle(2, 0, 1040)
    (back,) = judged(told)
    assert (back.recovered, back.missing, back.member, back.heir) == (True, "", True, (2, 1))
    times = in_ms(back.respawned_ns, back.level_ns, back.admitted_ns, back.worked_ns, back.full_strength_ns)
    assert times == (100, 1000, 1100, 2295 - 1040, 2295 - 1040)


def without_process(told):
    del told.started[2, 1]


def without_level(told):
    del told.level_at[2, 1]


def without_view(told):
    told.views.pop()


def without_work(told):
    told.silent.add((2, 1))


@pytest.mark.parametrize(
    ("spoil", "missing"),
    [
        (without_process, "rank 2 was not taken by another process"),
        (without_level, "worker 2 (life 1), in its place, never came level"),
        (without_view, "nobody was admitted in its place"),
        (without_work, "worker 2 (life 1), in its place, recorded no step in which it took part"),
    ],
)
def test_each_of_the_four_is_asked_for(spoil, missing):
    told = Told()
    told.cycle(2, 0, 1040)
    spoil(told)
    (back,) = judged(told)
    assert (back.recovered, back.missing) == (False, missing)


def test_whole_is_when_the_joiner_has_taken_a_step_and_not_when_it_is_let_in():
    told = Told()
    told.cycle(2, 0, 1040)
    told.silent.add((2, 1))
    assert judged(told)[0].full_strength_ns is None


def test_whole_is_as_many_as_were_asked_for():
    told = Told()
    told.cycle(2, 0, 1040)
    assert judged(told, workers=5)[0].full_strength_ns is None
    assert judged(told, workers=5, scaled=((1500 * MS, 4),))[0].full_strength_ns == (2295 - 1040) * MS


def test_who_dies_while_another_comes_back_makes_both_wait_for_the_last():
    told = Told()
    told.lose(2, 0, 1040)
    told.view(1050, (0, 1, 3), step=10)
    told.start(2, 1, 1100)
    told.lose(3, 0, 1240)
    told.view(1250, (0, 1), step=12)
    told.start(3, 1, 1300)
    told.level(2, 1, 2000)
    told.view(2010, (0, 1, 2), step=21)
    told.level(3, 1, 2500)
    told.view(2510, (0, 1, 2, 3), step=26)
    first, second = judged(told)
    assert (first.recovered, second.recovered) == (True, True)
    assert (first.heir, second.heir) == ((2, 1), (3, 1))
    assert in_ms(first.worked_ns, first.full_strength_ns) == (2195 - 1040, 2695 - 1040)
    assert in_ms(second.full_strength_ns) == (2695 - 1240,)


def test_a_joiner_that_dies_on_its_way_is_recovered_by_its_ranks_next_life():
    told = Told()
    told.lose(2, 0, 1040)
    told.view(1050, (0, 1, 3), step=10)
    told.start(2, 1, 1100)
    told.lose(2, 1, 1500, phase="replay", ends_view=False)
    told.start(2, 2, 1600)
    told.level(2, 2, 2000)
    told.view(2010, (0, 1, 2, 3), step=21)
    first, second = judged(told)
    assert (first.member, first.recovered, first.heir) == (True, True, (2, 2))
    assert (second.member, second.recovered, second.heir) == (False, True, (2, 2))
    assert in_ms(second.full_strength_ns) == (2195 - 1500,)


def test_an_heir_that_dies_before_it_did_anything_passes_the_place_on():
    """It is let in with step 22 and dies in it; its own heir does the work."""
    told = Told()
    told.cycle(2, 0, 1040)
    told.cycle(2, 1, 2240)
    first, second = judged(told)
    assert (first.heir, second.heir) == ((2, 1), (2, 2))
    assert (first.recovered, second.recovered) == (True, True)
    assert in_ms(first.worked_ns, second.worked_ns) == (None, 3495 - 2240)
    told.silent.add((2, 2))
    assert [back.recovered for back in judged(told)] == [False, False]


def with_a_spare():
    """Worker 4 is level from the start; it takes the place of 2, whose next life becomes the spare."""
    told = Told()
    told.start(4, 0, -1000)
    told.level(4, 0, 0)
    told.lose(2, 0, 1040)
    told.view(1050, (0, 1, 3), step=10)
    told.view(1060, (0, 1, 3, 4), step=12)
    told.start(2, 1, 1100)
    told.level(2, 1, 2000)
    return told


def test_a_spare_takes_the_place_at_once_and_the_next_life_becomes_the_spare():
    (back,) = judged(with_a_spare(), spares=1)
    assert (back.recovered, back.heir) == (True, (4, 0))
    assert in_ms(back.respawned_ns, back.full_strength_ns) == (60, 1295 - 1040)


def test_a_spare_that_dies_is_recovered_when_its_next_life_is_level():
    told = with_a_spare()
    told.lose(2, 1, 3000, phase="replay", ends_view=False)
    told.start(2, 2, 3100)
    told.level(2, 2, 3500)
    _, second = judged(told, spares=1)
    assert (second.member, second.recovered, second.full_strength_ns) == (False, True, None)
    del told.level_at[2, 2]
    assert judged(told, spares=1)[1].missing == "worker 2 (life 2), in its place, never came level"


def test_all_are_killed_and_all_come_back():
    told = Told()
    for rank in range(4):
        told.lose(rank, 0, 1040)
        told.start(rank, 1, 1100)
        told.level(rank, 1, 3000)
    told.view(3010, range(4), step=31)
    backs = judged(told)
    assert [back.heir for back in backs] == [(rank, 1) for rank in range(4)]
    assert all(back.recovered for back in backs)
    assert {in_ms(back.full_strength_ns) for back in backs} == {(3195 - 1040,)}


def test_who_dies_before_the_first_view_is_a_founder_and_loads_nothing():
    told = Told()
    told.views.clear()
    told.lose(2, 0, -700, phase="joining")
    told.start(2, 1, -600)
    told.view(-500, range(4), step=0)
    (back,) = judged(told)
    assert (back.member, back.heir, back.recovered) == (True, (2, 1), True)
    assert in_ms(back.full_strength_ns) == (95 + 700,)


def test_more_members_than_shards_have_nothing_to_contribute():
    told = Told(shards=3)
    told.cycle(0, 0, 1040)
    (back,) = judged(told)
    assert back.recovered


def test_a_number_of_workers_is_reached_with_the_first_view_that_has_so_many_or_never():
    told = Told()
    told.view(1000, (0, 1), step=12)
    told.view(2000, (0, 1, 2), step=22)
    evidence = told.evidence()

    def reached(*asked):
        found = scalings(evidence, [(at * MS, workers) for at, workers in asked])
        return [(each.workers, None if each.reached_ns is None else each.reached_ns // MS) for each in found]

    assert reached((900, 2), (1900, 3)) == [(2, 100), (3, 100)]
    assert reached((900, 2), (1900, 5)) == [(2, 100), (5, None)]
    assert reached((900, 3), (1900, 5)) == [(3, None), (5, None)]  # three came only after somebody had asked for five
    assert reached((2100, 3)) == [(3, 0)]  # as many as there were already
    assert reached((100, 4)) == [(4, None)]  # there were, and then no more
    assert reached((100, 4), (900, 2)) == [(4, 0), (2, 100)]
