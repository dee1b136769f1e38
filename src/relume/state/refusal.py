"""Why a disk refused a checkpoint, in words for a person and a kind for whoever tells each sort of trouble once.

A refused write goes a long way through PyTorch, and what comes out of its archive does not always say what happened. So
the cause is looked for in what was raised and, failing that, asked of the disk itself. It does not know what was to be
written, only how many bytes.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from relume.state.folder import probe_path

ROOM_BYTES = 4 << 20
"""Room that is wanted beyond the state's own bytes: for indices, and so that the disk is not left without any."""
_KINDS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.EROFS: "read-only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENOTDIR: "path",
    errno.EEXIST: "path",
    errno.ENOENT: "path",
    errno.EIO: "broken",
}
_WORDS = {"full": "the disk of {} is full", "read-only": "the disk of {} is read-only"}


class NotWritten(Exception):
    """A checkpoint that came to nothing. `kind`: the sort of trouble, a word for the caller to tell each sort once."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Wrapped(Exception):
    """PyTorch's `CheckpointException`, which is no `Exception`, made one."""


def check_room(directory: Path, needed: int) -> None:
    """See whether there is room for `needed` bytes. Raises `NotWritten`."""
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
    if free < needed:
        text = f"the disk of {directory} is full: a checkpoint needs {_mib(needed)} and {_mib(free)} are free"
        raise NotWritten("full", text)


def not_written(error: Exception, directory: Path, needed: int) -> NotWritten:
    """Turn whatever a refused write became on its way through PyTorch into what a person can use."""
    if isinstance(error, NotWritten):
        return error
    cause = _os_error(error) or _probe(directory, needed)
    if cause is None or cause.errno is None:
        return NotWritten("defect", f"the checkpoint in {directory} could not be written: {short(error)}")
    kind = _KINDS.get(cause.errno, "refused")
    what = _WORDS.get(kind, "{} cannot be used").format(directory)
    return NotWritten(kind, f"{what} ({cause.strerror})")


def _os_error(error: BaseException | None) -> OSError | None:
    """Return the `OSError` that is at the root of `error`: PyTorch wraps it, and keeps those of its parts in a dict."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        failures = getattr(error, "failures", {})
        found = next((found for failure in failures.values() if (found := _os_error(failure[0]))), None)
        if found is not None:
            return found
        error = error.__cause__ or error.__context__
    return None


def _probe(directory: Path, needed: int) -> OSError | None:
    """Ask the disk itself: a write that is refused inside PyTorch's archive surfaces as another error, without why."""
    path = probe_path(directory)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, needed)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def short(error: BaseException) -> str:
    """Return an error in a line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[-1].strip()[:300] if lines else ""
    return text if isinstance(error, Wrapped) else f"{type(error).__name__}: {text}"
