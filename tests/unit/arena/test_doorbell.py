"""A ring is never lost, and no wait is without end (Invariant 6)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

import pytest

from relume.arena import doorbell
from relume.arena.doorbell import Doorbells

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="eventfd is Linux's")


@pytest.fixture
def bells():
    descriptors = [doorbell.create() for _ in range(3)]
    yield [Doorbells(descriptors, rank) for rank in range(3)]
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_a_wait_ends_by_itself_and_says_so(bells):
    start = time.monotonic()
    assert bells[0].wait(0.05) is False
    assert 0.04 < time.monotonic() - start < 2.0


def test_a_ring_before_the_wait_is_not_lost_and_counts_once(bells):
    for _ in range(5):
        bells[1].ring_others()
    start = time.monotonic()
    assert bells[0].wait(5.0) is True
    assert time.monotonic() - start < 1.0
    assert bells[0].wait(0.0) is False, "five rings say no more than one"


def test_the_others_are_rung_and_not_oneself(bells):
    bells[1].ring_others()
    assert [bell.wait(0.0) for bell in bells] == [True, False, True]
    bells[2].ring_self()
    assert [bell.wait(0.0) for bell in bells] == [False, False, True]


def test_who_waits_is_woken_by_another_thread(bells):
    waker = threading.Timer(0.05, bells[0].ring_self)
    waker.start()
    start = time.monotonic()
    assert bells[0].wait(10.0) is True
    assert time.monotonic() - start < 5.0
    waker.join()


def test_a_counter_that_is_full_wakes_all_the_same_and_blocks_nobody(bells):
    os.eventfd_write(bells[0]._mine, (1 << 64) - 2)
    bells[1].ring_others()
    bells[0].ring_self()
    assert bells[0].wait(1.0) is True
    assert bells[0].wait(0.0) is False


def test_closing_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    Doorbells([doorbell.create(), doorbell.create()], 0).close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_seat_that_nobody_has_taken_is_not_rung(bells):
    taken = {0}
    mine = Doorbells(bells[1]._descriptors, 1, lambda rank: rank in taken)
    mine.ring_others()
    assert [bell.wait(0.0) for bell in bells] == [True, False, False]
    taken.add(2)
    mine.ring_others()
    assert [bell.wait(0.0) for bell in bells] == [True, False, True]
