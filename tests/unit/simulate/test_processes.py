"""Simulated threads, locks, bells and channels do what real ones do, and faults can come at every yield."""

from __future__ import annotations

import pytest

from relume.simulate.channel import Channel, Discipline
from relume.simulate.processes import Bell, Inbox, Lock, Process
from relume.simulate.scheduler import Scheduler


@pytest.fixture
def scheduler():
    return Scheduler(1)


@pytest.fixture
def process(scheduler):
    return Process(scheduler, lambda seconds: seconds)


def play(scheduler, until_s=100.0):
    while scheduler.now < until_s and scheduler.advance():
        pass


def test_actions_of_one_instant_come_in_the_order_in_which_they_were_asked_for(scheduler):
    seen = []
    for name in "abc":
        scheduler.after(1.0, seen.append, name)
    scheduler.after(0.5, seen.append, "early")
    play(scheduler)
    assert seen == ["early", "a", "b", "c"]
    assert scheduler.now == 2.0


def test_a_lock_is_held_by_one_thread_at_a_time(scheduler, process):
    lock, inside, seen = Lock(scheduler), [], []

    def way(name):
        for _ in range(5):
            yield lock
            inside.append(name)
            yield 0.1
            assert inside == [name]
            inside.remove(name)
            seen.append(name)
            lock.release()
            yield 0.01

    for name in "abc":
        process.start(name, way(name))
    play(scheduler)
    assert sorted(seen) == sorted("abc" * 5)


def test_a_ring_that_nobody_waits_for_is_kept_and_a_wait_is_bounded(scheduler, process):
    bell, times = Bell(scheduler, limit_s=1.0, latency_s=0.0, deaf=0.0), []

    def way():
        for _ in range(3):
            yield bell
            times.append(round(scheduler.now, 3))

    bell.ring()
    process.start("main", way())
    scheduler.after(0.25, bell.ring)
    play(scheduler)
    assert times == [1.0, 1.25, 2.25]


def test_a_killed_process_does_nothing_more(scheduler, process):
    done = []

    def way():
        try:
            for number in range(10):
                done.append(number)
                yield 1.0
        finally:
            done.append("finally")

    thread = process.start("main", way())
    scheduler.after(2.5, process.end)
    play(scheduler)
    assert done == [0, 1, 2]
    assert thread.process is process


def test_a_frozen_process_goes_on_where_it_stood_with_what_it_was_woken_for(scheduler, process):
    inbox, heard = Inbox(), []

    def way():
        while True:
            heard.append((yield inbox))

    process.start("link", way())
    scheduler.after(1.0, process.freeze)
    scheduler.after(2.0, inbox.put, "one")
    scheduler.after(2.0, inbox.put, "two")
    play(scheduler, 4.0)
    assert heard == []
    process.thaw()
    play(scheduler)
    assert heard == ["one", "two"]


def test_a_detour_is_taken_first_and_a_turn_instead_of_all_else(scheduler, process):
    inbox, done = Inbox(), []

    def way():
        done.append((yield inbox))
        yield 1.0
        done.append("never")

    def other(name):
        yield 0.1
        done.append(name)

    plans = {2: lambda thread: thread.detour(other("detour")), 5: lambda thread: thread.turn(other("turn"))}
    moments = []

    def moment(thread):
        moments.append(thread)
        plans.get(len(moments), lambda _: None)(thread)

    process.moment = moment
    process.start("main", way())
    scheduler.after(1.0, inbox.put, "message")
    play(scheduler)
    assert done[:2] == ["detour", "message"]
    assert "never" not in done[:2]


@pytest.mark.parametrize("ordered", [True, False])
def test_only_an_unruly_channel_reorders_and_doubles(scheduler, ordered):
    heard = []
    discipline = Discipline((0.0, 1.0), ordered=ordered, doubled=0.0 if ordered else 0.5)
    channel = Channel(scheduler, discipline, heard.append)
    for number in range(50):
        channel.send(number)
    play(scheduler)
    assert sorted(set(heard)) == list(range(50))
    assert (heard == list(range(50))) is ordered


def test_a_cut_channel_delivers_when_it_is_mended(scheduler):
    heard = []
    channel = Channel(scheduler, Discipline(), heard.append)
    channel.cut()
    channel.send("one")
    play(scheduler)
    assert heard == []
    channel.mend()
    channel.send("two")
    play(scheduler)
    assert heard == ["one", "two"]
