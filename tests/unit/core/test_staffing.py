"""A lost worker is replaced at once if it had contributed; one that never does is given time, and then given up."""

from __future__ import annotations

import pytest

from relume.core.events import Cause
from relume.core.members import Loss, Member
from relume.core.staffing import DELAYS_S, GIVE_UP_AFTER, NEVER, REFUSED, SCRIPT_DELAY_S, Staffing

KILLED = Cause("signal", "it was killed by signal 9 (SIGKILL)")


class Seat:
    """One seat under a staffing, whose lives are lost one after the other."""

    def __init__(self, staffing, rank=0):
        self.staffing, self.rank, self.member = staffing, rank, Member().successor(0.0)

    def lose(self, cause=KILLED, *, now=100.0, contributed=False):
        """Lose the life that sits there; return what people are told."""
        if self.member.loss is not None:
            self.member = self.member.successor(now)
        if contributed:
            self.member.steady_from, self.member.step = 10, 11
        self.member.loss = Loss(self.rank, self.member.life, cause, now)
        return self.staffing.judge(self.member, self.member.loss, now)

    def delay(self, now=100.0):
        return max(0.0, self.member.not_before_s - now)

    @property
    def may_return(self):
        return self.staffing.may_return(self.member)


def raised(where="train.py:3", words="ValueError"):
    return Cause("raised", f"its script raised {words}", {"where": where})


@pytest.fixture
def seat():
    return Seat(Staffing(100))


def test_who_had_contributed_is_replaced_at_once_however_often(seat):
    for _ in range(3 * GIVE_UP_AFTER):
        assert seat.lose(contributed=True) == ""
        assert seat.may_return
        assert seat.delay() == 0.0


def test_a_step_that_was_only_begun_is_no_contribution(seat):
    seat.member.steady_from, seat.member.step = 10, 10
    seat.lose()
    seat.lose()
    assert seat.member.failures == 2


def test_lives_that_contribute_nothing_wait_longer_and_longer_until_the_seat_is_given_up(seat):
    delays, told = [], []
    for _ in range(GIVE_UP_AFTER):
        told.append(seat.lose())
        delays.append(seat.delay())
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays == [*DELAYS_S, DELAYS_S[-1]]
    assert told[:-1] == [""] * (GIVE_UP_AFTER - 1)
    assert str(GIVE_UP_AFTER) in told[-1]
    assert KILLED.text in told[-1]
    assert not seat.may_return


def test_a_contribution_in_between_makes_a_seat_young_again(seat):
    for _ in range(GIVE_UP_AFTER - 1):
        seat.lose()
    seat.lose(contributed=True)
    for _ in range(GIVE_UP_AFTER - 2):
        assert seat.lose() == ""
        assert seat.may_return
    assert seat.lose()


def test_an_error_of_the_script_is_tried_again_once_and_not_at_once(seat):
    seat.lose(raised(), contributed=True)
    assert seat.may_return
    assert seat.delay() == SCRIPT_DELAY_S
    seat.lose(raised(), contributed=True)
    assert not seat.may_return
    assert "the script's own" in seat.staffing.refusal(seat.member)


def test_the_same_error_counts_wherever_it_comes_and_whatever_its_words(seat):
    other = Seat(seat.staffing, rank=1)
    seat.lose(raised(words="ValueError: rank 0"))
    assert seat.may_return
    other.lose(raised(words="ValueError: rank 1"))
    assert not other.may_return
    assert not seat.may_return, "nor is the first one tried, which waits for its second"


def test_errors_in_other_places_are_others(seat):
    seat.lose(raised("train.py:3"), contributed=True)
    seat.lose(raised("data.py:9"), contributed=True)
    assert seat.may_return


@pytest.mark.parametrize("kind", sorted(NEVER))
def test_a_worker_that_left_is_not_wanted_back_and_that_is_no_news(seat, kind):
    assert seat.lose(Cause(kind, "it left"), contributed=True) == ""
    assert not seat.may_return


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_refused_one_is_tried_once_more_whatever_was_before(seat, kind):
    seat.lose()
    seat.lose()
    assert seat.lose(Cause(kind, "it was refused")) == ""
    assert seat.may_return
    assert "twice in a row it was refused" in seat.lose(Cause(kind, "it was refused"))
    assert not seat.may_return


def test_two_refusals_with_another_loss_between_them_are_not_in_a_row(seat):
    assert seat.lose(Cause("profile", "it was refused")) == ""
    assert seat.lose(contributed=True) == ""
    assert seat.lose(Cause("profile", "it was refused")) == ""
    assert seat.may_return


def test_the_budget_is_the_runs_and_not_the_seats():
    staffing = Staffing(2)
    seats = [Seat(staffing, rank) for rank in range(3)]
    for each in seats[:2]:
        each.lose(contributed=True)
        assert each.may_return
        staffing.restarts += 1
    seats[2].lose(contributed=True)
    assert not seats[2].may_return
    assert staffing.refusal(seats[2].member) == "--max-restarts 2 is used up"


def test_without_restarts_nobody_comes_and_nobody_is_told_so_each_time():
    seat = Seat(Staffing(0))
    for _ in range(GIVE_UP_AFTER + 1):
        assert seat.lose() == ""
        assert not seat.may_return
        assert seat.staffing.refusal(seat.member) == ""


def test_a_seat_that_nobody_was_lost_from_is_nobodys_to_fill():
    assert not Staffing(9).may_return(Member())
    assert not Staffing(9).may_return(Member().successor(0.0))


def test_the_next_life_knows_of_the_one_before_and_nothing_that_was_said_about_it(seat):
    member = seat.member
    member.joined, member.level, member.inside, member.leaving, member.done = object(), 4, True, "SIGTERM", 9
    seat.lose()
    after = seat.member.successor(200.0)
    assert (after.life, after.failures, after.last) == (1, 1, seat.member.loss)
    assert after.alive
    assert (after.joined, after.level, after.inside, after.leaving, after.done) == (None, None, False, "", None)
    assert (after.loss, after.started_s, after.vacant, after.given_up) == (None, 200.0, False, False)


def test_a_seat_is_free_when_whoever_had_it_can_write_no_more(seat):
    assert not seat.member.free
    seat.lose()
    assert not seat.member.free
    seat.member.loss.fenced_s = 101.0
    assert seat.member.free
