"""Memory by what it is for: pages count where they are touched, and shared ones once."""

from __future__ import annotations

import mmap
import os
import sys
import traceback

import pytest

from relume.arena import memory, usage
from relume.arena.usage import CONTROL, DATA, FILES, KINDS, MIRROR, OWN, SHARED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's books are Linux's")

MIB = 1 << 20


@pytest.fixture
def mapped():
    """Return a function that makes a memfd by name and maps it; touched as far as is said."""
    maps, descriptors = [], []

    def make(name, size, touched):
        descriptors.append(memory.create(name, size))
        maps.append(memory.attach(descriptors[-1], size))
        maps[-1][:touched] = bytes(touched)
        return maps[-1]

    yield make
    for one, descriptor in zip(maps, descriptors, strict=True):
        one.close()
        os.close(descriptor)


def in_child(body):
    """Run `body` in a forked child, which has no arena of other tests whose processes come and go."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:  # noqa: BLE001  (told below, and by the exit code)
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_parts_of_an_arena_are_told_apart_and_only_touched_pages_count(mapped):
    def look():
        before, held = usage.usage(), usage.allocated(os.getpid())
        mapped("relume-control", MIB, MIB)
        mapped("relume-data", 8 * MIB, 5 * MIB)
        mapped("relume-mirror-0", 2 * MIB, 2 * MIB)
        mapped("relume-mirror-1", 2 * MIB, MIB)
        mapped("relume-stranger", 2 * MIB, 2 * MIB)
        now, holds = usage.usage(), usage.allocated(os.getpid())
        grown = {kind: now[kind].pss - before[kind].pss for kind in KINDS}
        assert {kind: grown[kind] for kind in (CONTROL, DATA, MIRROR)} == {CONTROL: MIB, DATA: 5 * MIB, MIRROR: 3 * MIB}
        assert usage._kind("/memfd:relume-stranger (deleted)") == FILES
        more = {kind: size - held.get(kind, 0) for kind, size in holds.items()}
        assert more == {CONTROL: MIB, DATA: 8 * MIB, MIRROR: 4 * MIB}

    in_child(look)


def test_what_two_processes_have_touched_counts_half_for_each(mapped):
    one = mapped("relume-data", 4 * MIB, 4 * MIB)
    fork_sees, child_done = os.pipe(), os.pipe()
    one.madvise(mmap.MADV_DOFORK)
    child = os.fork()
    if child == 0:
        sum(one[:: mmap.PAGESIZE])
        os.write(fork_sees[1], b"x")
        os.read(child_done[0], 1)
        os._exit(0)
    try:
        os.read(fork_sees[0], 1)
        found = [usage.usage(pid)[DATA] for pid in (os.getpid(), child)]
        assert [each.pss for each in found] == [2 * MIB, 2 * MIB]
        assert [each.rss for each in found] == [4 * MIB, 4 * MIB]
        assert [each.private for each in found] == [0, 0]
        assert usage.total([os.getpid(), child])[DATA].pss == 4 * MIB
    finally:
        os.write(child_done[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*fork_sees, *child_done):
            os.close(descriptor)


def test_memory_without_a_file_is_a_processs_own_or_shared():
    before = usage.usage()
    own = mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own[:] = bytes(len(own))
    shared = memory.private(1 << 30)
    shared[: 3 * MIB] = bytes(3 * MIB)
    now = usage.usage()
    assert now[SHARED].pss - before[SHARED].pss == 3 * MIB
    assert 15 * MIB < now[OWN].private - before[OWN].private < 40 * MIB
    assert now[OWN].rss >= now[OWN].pss >= now[OWN].private
    own.close()
    shared.close()


def test_of_a_process_that_is_gone_nothing_is_known():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(OSError, match="No such"):
        usage.usage(child)
