"""What a side has in memory is counted once, whoever maps it."""

import mmap
import os
import subprocess
import sys

from relume.bench.memory import cpu_s, descendants, pss, use_of

MIB = 1 << 20
HOLDER = "import mmap, sys; m = mmap.mmap(int(sys.argv[1]), {size}); m.read(); print(flush=True); sys.stdin.read()"


def test_what_two_processes_share_is_counted_once_for_both():
    size = 64 * MIB
    descriptor = os.memfd_create("shared")
    os.ftruncate(descriptor, size)
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER.format(size=size), str(descriptor)],
            pass_fds=[descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        for holder in holders:
            assert holder.stdout.readline()
        pids = [holder.pid for holder in holders]
        both, one = pss(pids), pss(pids[:1])
        private = both - size
        assert 0 < private < 2 * 120 * MIB  # each has read a private copy, and the interpreter is small
        assert one < both
        assert set(pids) <= descendants(os.getpid())
        assert use_of(pids[:1], os.getpid()).helpers >= pss(pids[1:]) // 2
    finally:
        for holder in holders:
            holder.communicate(timeout=20)
        os.close(descriptor)
    assert pss(pids) == 0


def test_the_own_map_is_in_it():
    before = pss([os.getpid()])
    memory = mmap.mmap(-1, 32 * MIB)
    memory.write(b"x" * 32 * MIB)
    assert pss([os.getpid()]) - before > 30 * MIB
    memory.close()


def test_work_is_seen_in_cpu_seconds():
    before = cpu_s([os.getpid()])
    while cpu_s([os.getpid()]) == before:
        sum(range(10_000))
    assert cpu_s([1 << 30]) == 0.0
