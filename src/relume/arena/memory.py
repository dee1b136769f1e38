"""The arena's memory: memfds, mapped here and there, never resized under anybody.

`memfd_create` needs no /dev/shm (containers set it to 64 MB). Room is allocated before anybody may touch it, so
that a full host says so in an exception and not by a signal; the file is sealed against shrinking; and a map is
not inherited by forked data loaders. A run of one worker without an agent uses the same layout over private memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from relume.arena.layout import KEPT_BEYOND, RESULTS, SLOTS_EAGER, DataLayout
from relume.errors import MemoryShortage

if sys.platform != "win32":
    import fcntl

_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in {"x86_64", "aarch64"} else 0)
"""Python has no name for it before 3.13."""
HEADROOM = 256 << 20
"""What is left to others: nobody takes the host's last memory for something that it can do without."""
MIB = 1 << 20

_CGROUPS = Path("/proc/self/cgroup")
_CGROUP_2 = Path("/sys/fs/cgroup")
_NAMES_2 = ("memory.max", "memory.current", "inactive_file ", "active_file ")
_CGROUP_1 = _CGROUP_2 / "memory"
_NAMES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file ")


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
    if needed + HEADROOM > available:
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


def grow(descriptor: int, offset: int, size: int, purpose: str = "another slot") -> None:
    """Allocate a slot beyond the eager ones before it is first written. Raises `MemoryShortage`.

    `purpose`: what it is for, in the message.
    """
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        raise MemoryShortage(_no_growth(size, purpose)) from error


def attach(descriptor: int, size: int, purpose: Literal["arena", "mirror"] = "arena") -> mmap.mmap:
    """Map `size` bytes of a memfd, shared, and not into forked children. `purpose`: what they are, in the message.

    Only `close` unmaps it, never the garbage collector: not under a live tensor, and not in a forked child, which does
    not have this map and would unmap whatever it has in its place. Raises `MemoryShortage`.
    """
    try:
        memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise MemoryShortage(_no_address_space(size, purpose)) from error
    memory.madvise(mmap.MADV_DONTFORK)
    never_unmap(memory)
    return memory


def never_unmap(memory: mmap.mmap) -> None:
    """See to it that the garbage collector never unmaps `memory`."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))


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
        raise MemoryShortage(_no_address_space(size, "arena")) from error


def available_bytes() -> int:
    """Return how much memory this process could still get: the host's, or what one of its cgroups leaves if less."""
    host = _field(Path("/proc/meminfo"), "MemAvailable:", 1 << 52) << 10
    return max(0, min([host, *_left_by_cgroups()]))


def _left_by_cgroups() -> Iterator[int]:
    """Yield what each cgroup around this process leaves, where it has a limit.

    What it has cached of files counts as used there, and goes when it is needed: otherwise a container that has read
    its dataset once would look full for ever.
    """
    try:
        lines = _CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", maxsplit=2)
        if not controllers:
            yield from _left_on_the_way(_CGROUP_2, path, _NAMES_2)
        elif "memory" in controllers.split(","):
            yield from _left_on_the_way(_CGROUP_1, path, _NAMES_1)


def _left_on_the_way(root: Path, path: str, names: tuple[str, str, str, str]) -> Iterator[int]:
    """Yield what is left by the cgroup at `path` and by each one that it is in.

    A container may see its own cgroup as the root, and be told the path that it has outside: that one is not there.
    """
    limit, used, *cached = names
    inner = root / path.lstrip("/")
    for folder in (inner, *inner.parents):
        with contextlib.suppress(OSError, ValueError):  # no such controller here, or "max"
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            yield left + sum(_field(folder / "memory.stat", label, 0) for label in cached)
        if folder == root:
            return


def _field(path: Path, label: str, default: int) -> int:
    """Return the number behind `label` at the beginning of a line of a file."""
    with contextlib.suppress(OSError), path.open() as lines:
        for line in lines:
            if line.startswith(label):
                return int(line.removeprefix(label).split()[0])
    return default


def _shortage(layout: DataLayout, seats: int, needed: int, available: int) -> str:
    gradient, results = layout.gradient_size, layout.kept * layout.gradient_size
    beside = layout.slots_start - results
    slots = seats * SLOTS_EAGER * gradient
    room = available - HEADROOM
    ways = [_fewer_workers(seats, (room - layout.slots_start) // (SLOTS_EAGER * gradient))]
    if layout.kept > RESULTS:
        ways.append(_fewer_results((room - slots) // (layout.slots_start // layout.kept)))
    ways.append("a model with fewer trainable parameters, or of a smaller dtype")
    return (
        f"the arena needs {mib(needed)} and {mib(available)} are available on this host, {mib(HEADROOM)} of them for "
        f"others: one gradient is {mib(gradient)}, and the arena holds {SLOTS_EAGER} for each of {seats} workers, "
        f"spares included ({mib(slots)}), and {layout.kept} results ({mib(results)}"
        + (f"; their buffers and notes {mib(beside)}" if beside >= MIB else "")
        + f"). Use {'; '.join(ways[:-1])}; or {ways[-1]}"
    )


def _fewer_workers(seats: int, fit: int) -> str:
    return "fewer workers on this host (--workers)" + (f": {fit} with spares would fit" if 1 <= fit < seats else "")


def _fewer_results(fit: int) -> str:
    """A mirror every K steps keeps K + KEPT_BEYOND results; K is at least 2."""
    if fit >= KEPT_BEYOND + 2:
        return (
            f"more frequent mirrors (--mirror-every {fit - KEPT_BEYOND} would fit, without the mirror's own two states)"
        )
    if fit >= RESULTS:
        return "no mirror (--mirror-every 0 would fit; lost workers then do not come back)"
    return "more frequent mirrors (--mirror-every)"


def _no_growth(size: int, purpose: str) -> str:
    return (
        f"the arena needs {mib(size)} more for {purpose} and the host has no memory left ({mib(available_bytes())} are "
        "available): a slot holds one gradient, and whoever has many shards in one step needs more than two. Use fewer "
        "workers on this host (--workers), fewer shards (--shards), or more frequent mirrors (--mirror-every)"
    )


def _no_address_space(size: int, purpose: str) -> str:
    less, known = "fewer shards (--shards) or workers (--max-workers)", "most of it is for slots that are never used"
    if purpose != "arena":
        less, known = f"no {purpose} (--{purpose}-every 0)", "one generation of the protected state"
    return (
        f"the {purpose} needs {mib(size)} of address space and the system gives none ({known}). "
        f"Raise the limit (ulimit -v), or use {less}"
    )


def mib(size: int) -> str:
    """Return a size as people read it."""
    return f"{size / MIB:.0f} MiB" if size >= 10 * MIB or size % MIB == 0 else f"{size / MIB:.1f} MiB"
