"""Memory that outlives its writers: allocated before it is touched, never shrunk, and refused in good time."""

from __future__ import annotations

import errno
import mmap
import os
import sys

import pytest

from relume.arena import memory
from relume.arena.layout import SLOTS_EAGER, DataLayout, slots_max
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
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(MemoryShortage) as caught:
        memory.reserve(descriptor, LAYOUT)
    text = str(caught.value)
    needed = f"the arena needs {LAYOUT.eager_bytes(LAYOUT.workers) / 2**20:.0f} MiB and 1 MiB are available"
    for part in (needed, "one gradient is 1.0 MiB", "2 for each of 3 workers", "2 results", "--workers"):
        assert part in text
    assert isinstance(caught.value, MemoryError)
    assert allocated(descriptor) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_that_only_the_kernel_knows_of_is_the_same_error(descriptor, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(memory.os, "posix_fallocate", refuse)
    with pytest.raises(MemoryShortage, match="the arena needs"):
        memory.reserve(descriptor, LAYOUT)
    with pytest.raises(MemoryShortage, match=r"1.0 MiB more for another slot"):
        memory.grow(descriptor, 0, 1 << 20)


def test_another_error_is_not_dressed_up_as_a_shortage(descriptor, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EBADF, "bad descriptor")

    monkeypatch.setattr(memory.os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="bad descriptor") as caught:
        memory.reserve(descriptor, LAYOUT)
    assert not isinstance(caught.value, MemoryShortage)


def test_what_is_available_is_what_the_cgroup_leaves_if_that_is_less(monkeypatch, tmp_path):
    assert 0 < memory.available_bytes() < 1 << 60
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    real = memory.Path
    monkeypatch.setattr(
        memory,
        "Path",
        lambda path: real(str(path).replace("/sys/fs/cgroup/memory.", f"{tmp_path}/memory.")),
    )
    assert memory.available_bytes() == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 600_000


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


def test_no_room_for_what_is_kept_says_how_to_keep_less(descriptor, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(MemoryShortage, match=r"and 12 results\. Use fewer .*mirror more often"):
        memory.reserve(descriptor, DataLayout(LAYOUT.shape, 3, 12), 2)
