"""A folder of checkpoints: their names, what `latest` names, how one is put in place, and which may go.

::

    DIR/step-00000040/          a checkpoint: whole, for its name is given to it last
    DIR/latest -> step-00000040 a symbolic link, so that `dcp.load(checkpoint_id=DIR/latest)` works for people
    DIR/.partial-00000048-4711/ one that is being written, or that its writer was killed over

Put in place means: every file and the folder itself on the disk, then the name, then that too on the disk, then
`latest` (scenario 10). A link is replaced by a rename, as atomically as a file is. relume itself never believes
`latest`: it takes the newest that verifies.

It deletes only what it can tell to be its own and no longer needed; it does not know what is inside a checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from relume.state import manifest

if sys.platform != "win32":
    import fcntl

LATEST = "latest"
_NAME = re.compile(r"step-(\d{8,})")
_PARTIAL = re.compile(r"\.partial-\d{8,}-\d+")
_FORGOTTEN = re.compile(r"\.latest-\d+")


def name(step: int) -> str:
    """Return the name of the checkpoint of `step`."""
    return f"step-{step:08}"


def steps(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint of whatever quality in `directory`, the newest first."""
    try:
        entries = [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []
    return sorted((int(path.name.rpartition("-")[2]) for path in entries if is_name(path.name)), reverse=True)


def is_name(text: str) -> bool:
    """Return whether a checkpoint would be called so."""
    match = _NAME.fullmatch(text)
    return match is not None and text == name(int(match[1]))


def leftovers(directory: Path) -> int:
    """Return how many checkpoints in `directory` are being written, or were when their writer was killed."""
    with contextlib.suppress(OSError):
        return sum(_PARTIAL.fullmatch(path.name) is not None for path in directory.iterdir())
    return 0


def latest(directory: Path) -> str | None:
    """Return what `latest` names, be it there or not."""
    try:
        return os.readlink(directory / LATEST).rstrip("/").rpartition("/")[2]  # noqa: PTH115 - the text, as it stands
    except OSError:
        return None


def fault(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint as far as can be told without reading it all; None: it looks whole."""
    try:
        wrong = manifest.faults_of_size(folder, manifest.read(folder))
    except manifest.Unusable as error:
        return str(error)
    return "; ".join(wrong) or None


def superfluous(whole: Iterable[int], broken: Iterable[int], keep: int, named: int | None) -> list[int]:
    """Return the steps whose checkpoints may go: pure.

    The newest `keep` that look whole stay, and so does whatever `latest` names. Broken ones do not count, and go once
    there are `keep` newer ones: until then a person may want to see what happened to them.
    """
    newest = sorted(whole, reverse=True)
    if len(newest) < keep:
        return []
    oldest_kept = newest[keep - 1]
    return sorted(step for step in {*newest, *broken} if step < oldest_kept and step != named)


class Lock:
    """Held by whoever writes into a folder: two runs in one would take each other's checkpoints for their own."""

    def __init__(self, directory: Path) -> None:
        """Take it. Raises `BlockingIOError` if somebody holds it."""
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise
        except OSError:  # a file system without locks: then nobody can tell
            pass

    def release(self) -> None:
        """Let go of it; the kernel does so when the holder dies."""
        os.close(self._descriptor)


def hold(directory: Path) -> int | None:
    """Hold `directory` for a whole run: return a descriptor to close at its end, None where nobody can tell.

    Raises `BlockingIOError` if another run holds it. The kernel lets go of it when the holder dies.
    """
    try:
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None  # a disk that refuses is told when something is to be written
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    return descriptor


class Partial:
    """A checkpoint that is being written. It is locked meanwhile, so that its writer's death can be told from it."""

    def __init__(self, directory: Path, step: int) -> None:
        """Make the folder. Raises `OSError`."""
        self._directory, self._step = directory, step
        make(directory)
        clear_leftovers(directory)  # before, too: writers that die one after the other shall not fill the disk
        self.path = directory / f".partial-{step:08}-{os.getpid()}"
        _remove(self.path)
        self.path.mkdir()
        self._lock = Lock(self.path)

    def publish(self) -> Path:
        """Make it durable, then visible, then durable as such; return where it is. `latest` does not move yet."""
        target = self._directory / name(self._step)
        for path in self.path.iterdir():
            sync(path, forget=True)
        sync(self.path)
        if target.exists():  # a broken one, or another's: moved away, it goes like what a killed writer left
            aside = _aside(self._directory, self._step)
            target.rename(aside)
        self.path.rename(target)
        sync(self._directory)
        self._lock.release()
        return target

    def discard(self) -> None:
        """Remove it: it came to nothing, and its room may be needed."""
        _remove(self.path)
        self._lock.release()


def point_latest(directory: Path, step: int) -> str | None:
    """Make `latest` name the checkpoint of `step`; return why it could not be (not every file system has links)."""
    partial = directory / f".latest-{os.getpid()}"
    try:
        partial.unlink(missing_ok=True)
        partial.symlink_to(name(step))
        partial.replace(directory / LATEST)
        sync(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return error.strerror
    return None


@dataclass(frozen=True, slots=True)
class Tidied:
    """What `tidy` removed."""

    steps: list[int]
    leftovers: int


def tidy(directory: Path, keep: int, broken: Iterable[int] = ()) -> Tidied:
    """Remove what killed writers left, and the checkpoints beyond the newest `keep` whole ones.

    `broken`: steps that are known not to verify, though they may look whole.
    """
    leftovers = clear_leftovers(directory)
    known = set(broken)
    whole = [step for step in steps(directory) if step not in known and fault(directory / name(step)) is None]
    others = [step for step in steps(directory) if step not in whole]
    named = _NAME.fullmatch(latest(directory) or "")
    surplus = superfluous(whole, others, keep, int(named[1]) if named else None)
    return Tidied([step for step in surplus if _retire(directory, step)], leftovers)


def clear_leftovers(directory: Path) -> int:
    """Remove what killed writers left, never what is being written; return how many."""
    return sum(_clear(path) for path in list(directory.iterdir()) if _is_leftover(path.name))


def make(directory: Path) -> None:
    """Make the folder and those above it, durably. Raises `OSError`."""
    if directory.is_dir():
        return
    make(directory.parent)
    directory.mkdir(exist_ok=True)
    sync(directory.parent)


def sync(path: Path, *, forget: bool = False) -> None:
    """Have the disk hold what was written to the file or folder `path`.

    `forget`: and not the page cache, which training data have better use for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if forget:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders
            raise
    finally:
        os.close(descriptor)


def _is_leftover(entry: str) -> bool:
    return bool(_PARTIAL.fullmatch(entry) or _FORGOTTEN.fullmatch(entry))


def _clear(path: Path) -> bool:
    """Remove a leftover, unless whoever writes it is alive."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return True
    try:
        lock = Lock(path)
    except OSError:
        return False
    try:
        return _remove(path)
    finally:
        lock.release()


def _retire(directory: Path, step: int) -> bool:
    """Remove a checkpoint, under another name first, so that no half of it is ever seen under its own.

    Only if all that is in it was listed by its manifest: what a person has put there is not ours to delete.
    """
    folder = directory / name(step)
    try:
        ours = {manifest.MANIFEST, *(file.name for file in manifest.read(folder).files)}
        if {path.name for path in folder.iterdir()} - ours:
            return False
        doomed = _aside(directory, step)
        folder.rename(doomed)
    except (manifest.Unusable, OSError):
        return False
    return _remove(doomed)


def probe_path(directory: Path) -> Path:
    """Return where a file may be tried: it counts as left over should its maker die."""
    return directory / f".partial-00000000-{os.getpid()}"


def _aside(directory: Path, step: int) -> Path:
    """Return a free name by which a folder counts as left over: whoever comes next may clear it away."""
    path = directory / f".partial-{step:08}-{os.getpid()}0"
    _remove(path)
    return path


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
