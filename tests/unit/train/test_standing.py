"""Promises, proposals and views under the pen: what a worker may do, whatever comes when (rules 3, 9 and 10)."""

from __future__ import annotations

import random
import threading

from relume.core import view as views
from relume.train.standing import Standing
from relume.wire.messages import Accepted, Refused, Replay


class Bell:
    """The doorbell, for a test that does something each time the main thread waits."""

    def __init__(self, *deeds):
        self.deeds = list(deeds)

    def wait(self, timeout_s):
        assert self.deeds, "it waits, and nobody will come"
        self.deeds.pop(0)()
        return True

    def ring_self(self):
        pass


def view(number, members=(0, 1), step=0):
    return views.planned((1, number), members, 4, step)


def standing(number=1, step=0, *deeds):
    one = Standing(0, Bell(*deeds))
    assert one.install(view(number, step=step))
    return one


def test_a_proposal_that_was_accepted_takes_force_with_its_step_and_not_before():
    one = standing()
    one.begin(3)
    assert one.propose(view(2, (0, 1, 2), step=5)) == Accepted((1, 2))
    assert one.install(view(2, (0, 1, 2), step=5))
    assert one.view.number == (1, 1)
    assert one.begin(4).number == (1, 1)
    assert not one.promised
    assert one.begin(5) == view(2, (0, 1, 2), step=5) == one.view


def test_who_has_begun_the_step_refuses_and_says_where_it_is():
    one = standing()
    one.begin(5)
    assert one.propose(view(2, step=5)) == Refused((1, 2), 5)
    assert one.propose(view(3, step=4)) == Refused((1, 3), 5)
    assert one.propose(view(4, step=6)) == Accepted((1, 4))


def test_a_step_with_an_undecided_proposal_is_not_begun():
    one = standing(1, 0, lambda: None, lambda: one.install(view(2, step=3)))
    one.propose(view(2, step=3))
    assert one.begin(2).number == (1, 1), "an earlier step waits for nothing"
    assert one.begin(3).number == (1, 2)


def test_withdrawn_is_withdrawn_also_before_it_was_proposed():
    one = standing(1, 0, lambda: one.withdraw((1, 2)))
    one.propose(view(2, step=3))
    assert one.begin(3).number == (1, 1)
    assert one.propose(view(2, step=9)) is None
    one.withdraw((1, 7))
    assert one.propose(view(6, step=9)) is None
    assert one.propose(view(8, step=9)) == Accepted((1, 8))


def test_a_ballot_cancels_what_is_undecided_and_not_what_is_decided():
    one = standing()
    one.propose(view(2, (0, 2), step=3))
    one.install(view(2, (0, 2), step=3))
    one.propose(view(3, (0, 2, 3), step=4))
    one.promise((1, 4))
    assert one.promised
    assert one.propose(view(4, step=9)) is None, "it is not newer than the promise"
    assert one.install(view(5, (0, 2), step=2))
    assert not one.promised
    assert one.begin(4).number == (1, 5), "what follows a loss replaces both"


def test_a_decided_view_that_comes_after_a_promise_is_refused():
    one = standing()
    one.propose(view(2, step=3))
    one.promise((1, 3))
    assert not one.install(view(2, step=3))
    assert one.promised


def test_a_view_between_the_promise_and_a_decided_one_is_put_in_force_and_the_decided_one_stays():
    """The order of messages does not matter: numbers do."""
    one = standing()
    one.promise((1, 2))
    one.propose(view(3, (0, 1, 2), step=4))
    one.install(view(3, (0, 1, 2), step=4))
    assert one.promised, "a view that is still to come does not stand in for the one that was promised"
    one.install(view(2, step=1))
    assert one.begin(1).number == (1, 2)
    assert one.begin(4).number == (1, 3)


def test_messages_may_come_twice():
    one = standing()
    new = view(2, (0, 1, 2), step=3)
    assert one.propose(new) == one.propose(new) == Accepted((1, 2))
    assert one.install(new)
    assert one.install(new)
    assert one.propose(new) is None
    assert one.view.number == (1, 1), "the second time is no other view"
    assert one.begin(3) == new
    assert one.install(new)
    assert not one.install(view(1))
    assert one.view == new


def test_two_views_may_be_planned_one_after_the_other():
    one = standing()
    for number, step in ((2, 3), (3, 5)):
        one.propose(view(number, step=step))
        one.install(view(number, step=step))
    assert [one.begin(step).number[1] for step in range(7)] == [1, 1, 1, 2, 2, 3, 3]


def test_a_view_without_this_worker_is_its_leave():
    one = standing()
    one.propose(view(2, (1, 2), step=3))
    one.install(view(2, (1, 2), step=3))
    assert one.begin(2) is not None
    assert one.begin(3) is None


def test_a_joiner_is_admitted_when_its_view_begins_and_not_while_something_else_is_promised():
    one = Standing(2, Bell())
    assert not one.admitted(0)
    one.install(view(2, (0, 1, 2), step=4))
    assert [one.admitted(step) for step in (2, 3, 4, 5)] == [False, False, True, True]
    one.promise((1, 3))
    assert not one.admitted(4)
    one.install(view(3, (0, 1), step=4))
    assert not one.admitted(4), "the view that came does not include it"
    one.install(view(4, (0, 2), step=4))
    assert one.admitted(4)


def test_the_answer_to_join_is_a_view_or_the_order_to_replay():
    one = Standing(0, Bell(lambda: one.go_replay(Replay())))
    one.joined()
    assert one.replay == Replay()
    one.go_replay(Replay(7))
    one.go_replay(Replay())
    assert one.replay == Replay(7), "a run that has ended does not begin again"
    other = Standing(0, Bell(lambda: other.install(view(1))))
    other.joined()
    assert other.replay is None


def test_nothing_is_written_between_a_promise_and_a_view_as_new():
    written = []
    one = standing(1, 0, lambda: written.append("waited"), lambda: one.install(view(2)))
    old = one.view
    one.promise((1, 2))
    assert not one.write_if(old, lambda: written.append("sealed"))
    one.write(lambda: written.append("written"))
    assert written == ["waited", "written"]
    assert not one.write_if(old, lambda: written.append("sealed"))
    assert one.write_if(one.view, lambda: written.append("sealed"))


def test_whatever_order_messages_come_in_every_step_is_begun_under_the_same_view():
    """Proposals of a coordinator that is ahead of itself, in any order and some twice, each installed once accepted."""
    draw = random.Random(4)
    planned = [view(number, (0, 1, number), step=2 * number) for number in range(2, 5)]
    whole = 0
    for _ in range(500):
        one = Standing(0, Bell())
        one.install(view(1))
        accepted, pending = set(), [*planned, *draw.sample(planned, 2)]
        draw.shuffle(pending)
        while pending:
            each = pending.pop()
            if each.number not in accepted and isinstance(one.propose(each), Accepted):
                accepted.add(each.number)
                pending.insert(draw.randrange(len(pending) + 1), each)
            elif each.number in accepted:
                one.install(each)
        for each in planned:
            if each.number not in accepted:
                one.withdraw(each.number)
        begun = {step: one.begin(step).number[1] for step in range(10)}
        expected = {s: max([n for n in (2, 3, 4) if (1, n) in accepted and 2 * n <= s], default=1) for s in range(10)}
        assert begun == expected
        whole += len(accepted) == 3
    assert 50 < whole < 500


def test_the_main_thread_is_never_in_the_middle_of_a_write_when_a_promise_is_given():
    one = standing(1, 0)
    inside, promised = threading.Event(), []

    def action():
        inside.set()
        thread.join(0.05)
        promised.append(one.promised)

    thread = threading.Thread(target=lambda: (inside.wait(), one.promise((1, 9))))
    thread.start()
    one.write(action)
    thread.join()
    assert promised == [False]
    assert one.promised
