"""Memory that outlives its writers: allocated before it is touched, never shrunk, and refused in good time."""

from __future__ import annotations

import errno
import mmap
import os
import re
import resource
import sys
from pathlib import Path

import pytest

from relume.arena import memory
from relume.arena.layout import KEPT_BEYOND, RESULTS, SLOTS_EAGER, DataLayout, slots_max
from relume.errors import MemoryShortage
from relume.wire.messages import Shape

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")

LAYOUT = DataLayout(Shape(1 << 20, 4096, 10, 64), 3)


@pytest.fixture
def descriptor():
    one = memory.create("relume-test")
    yield one
    os.close(one)


def allocated(descriptor):
    return os.fstat(descriptor).st_blocks * 512


def test_only_what_is_eager_takes_memory(descriptor):
    memory.reserve(descriptor, LAYOUT)
    assert os.fstat(descriptor).st_size == LAYOUT.size
    assert LAYOUT.eager_bytes(LAYOUT.workers) <= allocated(descriptor) < LAYOUT.eager_bytes(LAYOUT.workers) + (1 << 20)
    assert slots_max(64) > SLOTS_EAGER


def test_a_slot_beyond_takes_memory_when_it_is_grown(descriptor):
    memory.reserve(descriptor, LAYOUT)
    before = allocated(descriptor)
    memory.grow(descriptor, LAYOUT.slot(1, SLOTS_EAGER), LAYOUT.gradient_size)
    assert allocated(descriptor) == before + LAYOUT.gradient_size
    memory.grow(descriptor, LAYOUT.slot(1, SLOTS_EAGER), LAYOUT.gradient_size)
    assert allocated(descriptor) == before + LAYOUT.gradient_size, "once more is no more"


def test_the_arena_cannot_be_shrunk_under_a_tensor(descriptor):
    memory.reserve(descriptor, LAYOUT)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, LAYOUT.size - 4096)


def test_two_maps_are_one_memory_and_a_forked_child_has_neither(descriptor):
    memory.reserve(descriptor, LAYOUT)
    one, other = memory.attach(descriptor, LAYOUT.size), memory.attach(descriptor, LAYOUT.size)
    start = LAYOUT.slot(2, 1)
    one[start : start + 5] = b"whole"
    assert other[start : start + 5] == b"whole"
    with open("/proc/self/smaps") as lines:  # noqa: PTH123
        text = lines.read()
    mapped = [part for part in text.split("relume-test")[1:] if "VmFlags" in part]
    assert mapped
    assert all(" dc " in part.split("VmFlags:", 1)[1].splitlines()[0] + " " for part in mapped), "DONTFORK"
    one.close()
    other.close()


def test_no_room_is_said_before_anything_is_taken(descriptor, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 257 << 20)
    with pytest.raises(MemoryShortage) as caught:
        memory.reserve(descriptor, LAYOUT)
    needed = LAYOUT.eager_bytes(LAYOUT.workers)
    assert str(caught.value) == (
        f"the arena needs {memory.mib(needed)} and 257 MiB are available on this host, 256 MiB of them for "
        "others: one gradient is 1 MiB, and the arena holds 2 for each of 3 workers, spares included (6 MiB), and 2 "
        "results (2 MiB). Use fewer workers on this host (--workers); or a model with fewer trainable parameters, "
        "or of a smaller dtype"
    )
    assert 8 << 20 < needed < 9 << 20
    assert isinstance(caught.value, MemoryError)
    assert allocated(descriptor) == 0


@pytest.mark.parametrize("room", range(10, 36))
def test_what_is_said_to_fit_fits_and_one_more_does_not(descriptor, monkeypatch, room):
    layout = DataLayout(Shape(1 << 20, 4096, 10, 64), 8, 16 + KEPT_BEYOND)
    available = memory.HEADROOM + (room << 20)
    monkeypatch.setattr(memory, "available_bytes", lambda: available)
    with pytest.raises(MemoryShortage) as caught:
        memory.reserve(descriptor, layout, 8)

    def fits(kept, seats):
        return DataLayout(layout.shape, 8, kept).eager_bytes(seats) + memory.HEADROOM <= available

    workers = re.search(r"--workers\): (\d+) with spares would fit", str(caught.value))
    if workers:
        assert fits(layout.kept, int(workers[1]))
    assert not fits(layout.kept, int(workers[1]) + 1 if workers else 1)
    every = re.search(r"--mirror-every (\d+) would fit", str(caught.value))
    if every and int(every[1]):
        assert 2 <= int(every[1]) < 16
        assert fits(int(every[1]) + KEPT_BEYOND, 8)
    assert not fits((int(every[1]) + 1 if every and int(every[1]) else 2) + KEPT_BEYOND, 8)
    assert bool(every) == fits(RESULTS, 8), "0 is the last resort"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_that_only_the_kernel_knows_of_is_the_same_error(descriptor, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(memory.os, "posix_fallocate", refuse)
    with pytest.raises(MemoryShortage, match="the arena needs"):
        memory.reserve(descriptor, LAYOUT)
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 << 20)
    with pytest.raises(MemoryShortage) as caught:
        memory.grow(descriptor, 0, 1 << 20)
    for part in ("1 MiB more for another slot", "3 MiB are available", "--workers", "--shards", "--mirror-every"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("purpose", "way"), [("arena", r"--shards\) or workers \(--max"), ("mirror", "--mirror-every 0")]
)
def test_too_little_address_space_is_told_with_the_limit_and_what_needs_less(descriptor, purpose, way):
    os.ftruncate(descriptor, 1 << 32)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), before[1]))
    try:
        with pytest.raises(MemoryShortage, match=rf"the {purpose} needs 4096 MiB of address.*ulimit -v.*{way}"):
            memory.attach(descriptor, 1 << 32, purpose)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_another_error_is_not_dressed_up_as_a_shortage(descriptor, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EBADF, "bad descriptor")

    monkeypatch.setattr(memory.os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="bad descriptor") as caught:
        memory.reserve(descriptor, LAYOUT)
    assert not isinstance(caught.value, MemoryShortage)


@pytest.fixture(params=["2", "1"])
def cgroup(request, monkeypatch, tmp_path):
    """Pretend to be in /outer/inner of a host's cgroups; return a function that writes into one of them."""
    two = request.param == "2"
    (tmp_path / "self").write_text(
        "3:cpuset:/other\n" + ("0::/outer/inner\n" if two else "4:cpu,memory:/outer/inner\n")
    )
    root = tmp_path / "fs"
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "self")
    monkeypatch.setattr(memory, f"_CGROUP_{request.param}", root)
    limit, used, *cached = getattr(memory, f"_NAMES_{request.param}")

    def write(path, limited, using, **stat):
        folder = root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{limited}\n")
        (folder / used).write_text(f"{using}\n")
        names = {"inactive": cached[0], "active": cached[1]}
        (folder / "memory.stat").write_text("".join(f"{names.get(key, key)} {stat[key]}\n" for key in stat))

    return write


def test_what_is_available_is_what_the_cgroup_leaves_if_that_is_less(cgroup):
    host = memory.available_bytes()
    assert 1_000_000 < host < 1 << 52
    cgroup("", 1_000_000, 400_000)
    assert memory.available_bytes() == 600_000
    cgroup("", "max", 400_000)
    assert memory.available_bytes() > 600_000


def test_a_cgroup_around_this_ones_own_counts_too(cgroup):
    cgroup("outer/inner", 900_000, 100_000)
    cgroup("outer", 1_000_000, 950_000)
    assert memory.available_bytes() == 50_000
    cgroup("outer", 1_000_000, 1_200_000)
    assert memory.available_bytes() == 0, "and not less"


def test_what_is_cached_of_files_is_available(cgroup):
    cgroup("outer/inner", 1_000_000, 990_000, anon=100, shmem=5, inactive=700_000, active=90_000)
    assert memory.available_bytes() == 800_000


def test_a_run_of_one_has_address_space_for_more_than_the_host_holds():
    # 128 slots of a gradient that fits easily are more than most hosts have; hardly any of it is ever touched.
    one = memory.private(1 << 42)
    one[1 << 41] = 7
    assert one[1 << 41] == 7
    assert isinstance(one, mmap.mmap)
    one.close()


def test_only_the_seats_that_are_taken_get_their_slots_at_the_start(descriptor):
    size = memory.reserve(descriptor, LAYOUT, 1)
    assert size == LAYOUT.slots_start + SLOTS_EAGER * LAYOUT.gradient_size
    assert size <= allocated(descriptor) < size + (1 << 20)
    assert os.fstat(descriptor).st_size == LAYOUT.size
