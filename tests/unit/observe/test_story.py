"""What a run's events say when put together: who is in, who came back, and when the fleet was whole again."""

from relume.observe.story import Admitted
from relume.wire.events import Remarked, ViewInstalled, WorkerLost, WorkerStarted
from tests.unit.observe.paper import events_of_a_comeback, events_of_a_run, loss_of, story_of


def view(number, *members, step=12):
    return ViewInstalled((1, number), step, members, ())


def admitted(story):
    return [(event.view[1], event.ranks) for _, event in story.tale if isinstance(event, Admitted)]


def tell(*events):
    """A run of four (view 1), and what happened in it, a second after each other from monotonic second 1 on."""
    return story_of([*events_of_a_run(ended=False, incidents=[]), *events], at_s=1.0 - 7.0, every_s=1.0)


def test_a_seat_s_newest_process_is_the_one_that_is_meant():
    story = tell(view(2, 0, 1, 3), loss_of(2), WorkerStarted(2, 202, 1), view(3, 0, 1, 2, 3))
    assert (story.pids[2], story.lives[2], story.restarts) == (202, 1, 1)
    assert not story.lost
    assert admitted(story) == [(3, (2,))]


def test_an_event_that_comes_after_its_successor_s_is_still_the_predecessor_s():
    story = tell(view(2, 0, 1, 3), WorkerStarted(2, 202, 1), loss_of(2))
    assert not story.lost
    assert story.incidents


def test_a_loss_of_every_one_is_made_good_by_others_in_the_same_seats():
    """Too few were left for a view, so that the next one has the same ranks: their lives tell them apart."""
    lost = [loss_of(rank, view=(1, 2), installed_ns=0) for rank in range(4)]
    story = tell(*lost, *(WorkerStarted(rank, 200 + rank, 1) for rank in range(4)), view(2, 0, 1, 2, 3))
    assert admitted(story) == [(2, (0, 1, 2, 3))]
    assert story.whole_ns == dict.fromkeys(range(4), 9_000_000_000)


def test_each_loss_is_whole_when_there_are_as_many_as_before_it():
    first, second = loss_of(2, lost_ns=1_500_000_000), loss_of(3, view=(1, 3), lost_ns=2_500_000_000)
    story = tell(view(2, 0, 1, 3), first, view(3, 0, 1), second, WorkerStarted(2, 9, 1), view(4, 0, 1, 2))
    assert (story.whole_s(0), story.whole_s(1)) == (None, 3.5)
    story = tell(view(2, 0, 1, 3), view(3, 0, 1), second, first, view(4, 0, 1, 2), view(5, 0, 1, 2, 4))
    assert (story.whole_s(1), story.whole_s(0)) == (4.5, 2.5)


def test_a_loss_that_is_told_after_it_was_made_good_is_whole_from_then_on():
    """A spare takes a place in the very view that the loss led to."""
    story = tell(WorkerStarted(4, 104), view(2, 0, 1, 3, 4), view(3, 0, 1, 3, 4), loss_of(2, lost_ns=1_500_000_000))
    assert story.whole_s(0) == 0.5


def test_a_loss_for_which_no_view_was_needed_is_not_made_good_by_one_from_before_it():
    """Main is lost in the script's tail: the view that it was in stays."""
    story = tell(view(2, 0, 1, 3), loss_of(2, view=(1, 2), step=60, phase="tail", lost_ns=9_000_000_000))
    assert story.whole_s(0) is None
    assert not story.whole_ns


def test_the_loss_of_one_who_was_in_no_view_makes_nothing_smaller():
    story = tell(WorkerStarted(4, 104), loss_of(4, view=(1, 1)), view(2, 0, 1, 2, 3))
    assert story.whole_s(0) is None


def test_the_tale_begins_with_training_and_keeps_its_order():
    story = story_of([*events_of_a_run(ended=False)[:4], Remarked(0, "x", "y", -1), *events_of_a_comeback()[4:]])
    kinds = [type(event).__name__ for _, event in story.tale]
    assert kinds[:3] == ["Remarked", "WorkerLost", "Mirrored"]
    assert "WorkerStarted" in kinds
    assert all(not isinstance(event, WorkerLost) or event.rank == 2 for _, event in story.tale)
