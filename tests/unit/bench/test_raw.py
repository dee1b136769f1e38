"""The bare kernel sums right, in every number of processes; its barrier lets nobody through early."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from relume.arena import memory
from relume.bench.raw import Barrier, Kernel, mapping_bytes


@pytest.fixture
def bells():
    made = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(5)]
    yield made
    for bell in made:
        os.close(bell)


def together(count, work):
    """Run `work(rank)` for each rank at once, in a thread each; return what they return."""
    with ThreadPoolExecutor(count) as pool:
        return [each.result(30) for each in [pool.submit(work, rank) for rank in range(count)]]


def test_nobody_passes_a_barrier_before_all_have_come(bells):
    come, lock = [0] * 50, threading.Lock()

    def work(rank):
        barrier, seen = Barrier(bells, rank), []
        for number in range(50):
            with lock:
                come[number] += 1
            barrier.wait()
            seen.append(come[number])
        return seen

    assert together(5, work) == [[5] * 50] * 5


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("numbers", [1, 100, 300_001])
def test_the_result_that_is_taken_is_the_mean(bells, workers, numbers):
    descriptor = memory.create("relume-test", mapping_bytes(4 * numbers, workers))

    def work(rank):
        kernel = Kernel(descriptor, 4 * numbers, workers, rank, Barrier(bells[:workers], rank))
        kernel.wait()
        times = kernel.rounds(3)
        kernel.check()
        return times

    try:
        found = together(workers, work)
    finally:
        os.close(descriptor)
    for times in found:
        flat = [stamp for each in times for stamp in each]
        assert flat == sorted(flat)
        assert [len(each) for each in times] == [4] * 3


def test_a_wrong_result_is_not_taken_for_a_fast_one(bells):
    descriptor = memory.create("relume-test", mapping_bytes(400, 2))
    kernel = Kernel(descriptor, 400, 2, 0, Barrier(bells[:1], 0))
    os.close(descriptor)
    with pytest.raises(AssertionError, match="not the mean"):
        kernel.check()
