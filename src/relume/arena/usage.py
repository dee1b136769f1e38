"""How much memory a process takes, told apart by what it is for: read from the kernel's own books.

RSS counts a shared page in full for every process that has it, so that eight workers seem to hold eight arenas. PSS
gives each of n processes 1/n of a page: summed over all that map it, it is what the host really holds. Only pages that
somebody has touched count; an arena may have more allocated (`allocated`).

This module knows the arena's maps by their names, and not what stands where in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTROL, DATA, MIRROR = "control", "data", "mirror"
OWN: Final = "own"
"""No file behind it: heap, stacks, tensors. A fork shares it with its parent until one of them writes."""
SHARED: Final = "shared"
"""Shared memory without a name: the whole arena of a run of one worker."""
FILES: Final = "files"
"""Programs and libraries, data files, other processes' shared memory."""
KINDS: Final = (CONTROL, DATA, MIRROR, OWN, SHARED, FILES)

_HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")
_ARENA = "/memfd:relume-"
_FIELDS: Final = {"Pss:": "pss", "Rss:": "rss", "Private_Clean:": "private", "Private_Dirty:": "private"}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one kind: this process's part of them (`pss`), what it can see (`rss`), what nobody else has."""

    pss: int = 0
    rss: int = 0
    private: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.pss + other.pss, self.rss + other.rss, self.private + other.private)


def usage(pid: int | None = None) -> dict[str, Memory]:
    """Return what process `pid` (this one) takes, for every one of `KINDS`. Raises `OSError` if it may not be read.

    PSS moves whenever another process maps or leaves a page: sums over processes are exact only while all stand still.
    """
    found = dict.fromkeys(KINDS, Memory())
    kind = FILES
    with Path(f"/proc/{'self' if pid is None else pid}/smaps").open(errors="replace") as lines:
        for line in lines:
            name, *rest = line.split(maxsplit=2)
            field = _FIELDS.get(name)
            if field is not None:
                found[kind] += Memory(**{field: int(rest[0]) << 10})
            elif (header := _HEADER.match(line)) is not None:
                kind = _kind(header[1].strip())
    return found


def total(processes: Iterable[int]) -> dict[str, Memory]:
    """Return the sum over `processes`: what they take together, as far as `pss` goes."""
    found = dict.fromkeys(KINDS, Memory())
    for pid in processes:
        for kind, memory in usage(pid).items():
            found[kind] += memory
    return found


def allocated(pid: int) -> dict[str, int]:
    """Return the bytes behind each part of the arena, touched or not, as any holder `pid` of it can see them."""
    found = dict.fromkeys((CONTROL, DATA, MIRROR), 0)
    seen: set[int] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name, status = str(link.readlink()), link.stat()
        except OSError:
            continue  # closed meanwhile
        kind = _kind(name)
        if kind in found and status.st_ino not in seen:
            seen.add(status.st_ino)
            found[kind] += status.st_blocks * 512
    return found


def _kind(name: str) -> str:
    if name.startswith(_ARENA):
        part = name.removeprefix(_ARENA).split(" ", maxsplit=1)[0].split("-", maxsplit=1)[0]
        return part if part in {CONTROL, DATA, MIRROR} else FILES
    if name.startswith("/dev/zero"):
        return SHARED
    return OWN if not name or name.startswith("[") else FILES
