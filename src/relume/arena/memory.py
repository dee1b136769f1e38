"""The arena's memory: memfds, mapped here and there, never resized under anybody.

`memfd_create` needs no /dev/shm (containers set it to 64 MB). Room is allocated before anybody may touch it, so
that a full host says so in an exception and not by a signal; the file is sealed against shrinking; and a map is
not inherited by forked data loaders. A run of one worker without an agent uses the same layout over private memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from pathlib import Path

from relume.arena.layout import RESULTS, SLOTS_EAGER, DataLayout
from relume.errors import MemoryShortage

if sys.platform != "win32":
    import fcntl

_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in {"x86_64", "aarch64"} else 0)
"""Python has no name for it before 3.13."""
_HEADROOM = 256 << 20


def create(name: str, size: int = 0) -> int:
    """Return a descriptor of a new memfd of `size` bytes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if size:
        os.posix_fallocate(descriptor, 0, size)
    return descriptor


def reserve(descriptor: int, layout: DataLayout, seats: int | None = None) -> int:
    """Give the data part its size, and memory to what is shared and to the eager slots of the first `seats` (all).

    Whoever takes another seat allocates its slots with `grow`. Returns the bytes allocated. Raises `MemoryShortage`
    with what is needed for what.
    """
    seats, available = layout.workers if seats is None else seats, available_bytes()
    needed = layout.eager_bytes(seats)
    if needed + _HEADROOM > available:
        raise MemoryShortage(_shortage(layout, seats, needed, available))
    try:
        os.ftruncate(descriptor, layout.size)
        os.posix_fallocate(descriptor, 0, layout.slots_start)
        for rank in range(seats):
            os.posix_fallocate(descriptor, layout.slot(rank, 0), SLOTS_EAGER * layout.gradient_size)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.ENOMEM, errno.EFBIG}:
            raise
        raise MemoryShortage(_shortage(layout, seats, needed, available)) from error
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK)
    return needed


def grow(descriptor: int, offset: int, size: int) -> None:
    """Allocate a slot beyond the eager ones before it is first written. Raises `MemoryShortage`."""
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        text = f"the arena needs {size / 2**20:.1f} MiB more for another slot and the host has no memory left"
        raise MemoryShortage(text) from error


def attach(descriptor: int, size: int) -> mmap.mmap:
    """Map `size` bytes of a memfd, shared, and not into forked children.

    Only `close` unmaps it, never the garbage collector: not under a live tensor, and not in a forked child, which does
    not have this map and would unmap whatever it has in its place.
    """
    try:
        memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise MemoryShortage(_no_address_space(size)) from error
    memory.madvise(mmap.MADV_DONTFORK)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return memory


def private(size: int) -> mmap.mmap:
    """Return private memory with the properties of an arena, for a run of one worker (all platforms).

    Most of it is address space for slots that are never used. Linux would count all of it against the host's memory
    and refuse, unless it is told not to.
    """
    try:
        if sys.platform == "linux":
            return mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        return mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryShortage(_no_address_space(size)) from error


def available_bytes() -> int:
    """Return how much memory this process could still get: the host's, or its cgroup's if that is less."""
    available = _meminfo("MemAvailable")
    for limit_path, usage_path in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit = int(Path(limit_path).read_text())
            available = min(available, limit - int(Path(usage_path).read_text()))
        except (OSError, ValueError):
            continue  # no such controller here, or "max"
    return available


def _meminfo(field: str) -> int:
    with Path("/proc/meminfo").open() as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    return 1 << 62


def _shortage(layout: DataLayout, seats: int, needed: int, available: int) -> str:
    mib = 2**20
    gradient = layout.gradient_size / mib
    return (
        f"the arena needs {needed / mib:.0f} MiB and {available / mib:.0f} MiB are available on this host: "
        f"one gradient is {gradient:.1f} MiB, and the arena holds {SLOTS_EAGER} for each of {seats} workers "
        f"and {layout.kept} results. Use fewer workers on this host (--workers)"
        + (", mirror more often (--mirror-every)" if layout.kept > RESULTS else "")
        + ", or a model with fewer trainable parameters"
    )


def _no_address_space(size: int) -> str:
    return (
        f"the arena needs {size / 2**20:.0f} MiB of address space and the system gives none (most of it is for slots "
        "that are never used). Raise the limit (ulimit -v), or use fewer shards or workers"
    )
