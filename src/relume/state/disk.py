"""A state on the disk: written durably in PyTorch's distributed checkpoint format, never loaded unless it verifies.

PyTorch's files hold every tensor and plain value under the names people know (`model.0.weight`), so that plain
`torch.distributed.checkpoint` reads them without relume. That format turns keys into text and tuples into lists, and
knows nothing of strides; therefore what is no tensor also stands in the skeleton, byte for byte, and relume restores
from tensors and skeleton. `torch.distributed.checkpoint` leaves durability to its caller (torch 2.13 syncs before it
has flushed), so `folder` sees to that.

Written: partial folder, digests, read back and compared bit for bit, put in place, then `latest`. Loaded: sizes, file
digests, tensor digests, and nothing on the way that was not compared before (Invariant 8). It does not know where a
state comes from, nor whither it goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_nest
from torch.distributed.checkpoint.state_dict_saver import save as write_nest

from relume.state import folder, manifest, tree
from relume.state.facts import is_dense, stored
from relume.state.manifest import Manifest, Progress, Unusable
from relume.state.values import Opaque
from relume.version import __version__

GROUP_BYTES_MAX = 64 << 20
"""What was written is read back in groups of tensors of so many bytes, so that it takes no second state of memory."""
HIDDEN = "relume-tensor-"
"""Begins the name of a tensor that has none in PyTorch's format."""
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


@dataclass(frozen=True, slots=True)
class Written:
    """A durable checkpoint. `note`: what did not go as it should all the same, for a person."""

    step: int
    path: Path
    size: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint: the very skeleton and tensors that `save` was given, strides and all."""

    step: int
    path: Path
    skeleton: bytes
    tensors: list[torch.Tensor]
    manifest: Manifest

    def state(self, *, trusting: bool) -> Any:  # noqa: ANN401 - whatever was protected
        """Return the nest that they make (see `tree.unflatten`)."""
        return tree.unflatten(self.skeleton, self.tensors, trusting=trusting)


def _nothing(_: str) -> None:
    return None


# Writing ------------------------------------------------------------------------------------------------------------


def save(
    directory: Path,
    step: int,
    parts: tuple[bytes, Sequence[torch.Tensor]],
    facts: dict[str, Any],
    *,
    reached: Callable[[str], None] = _nothing,
) -> Written:
    """Write the state before `step` to `directory`, durable before `latest` moves. Raises `NotWritten`.

    `parts`: its skeleton and its tensors, on the CPU, as `Mirror.parts` gives them. `facts`: what the run's bits depend
    on, plain JSON. `reached` is told each stage as it begins (tests kill there).
    """
    began_s = time.monotonic()
    needed = ROOM_BYTES
    try:
        content = _Content(step, parts[0], [_alone(tensor) for tensor in parts[1]], facts)
        needed += len(content.skeleton) + sum(tensor.numel() * tensor.element_size() for tensor in content.tensors)
        _check_room(directory, needed)
        partial = folder.Partial(directory, step)
        try:
            described = _fill(partial.path, content, reached)
            reached("publish")
            path = partial.publish()
        except BaseException:
            partial.discard()
            raise
        reached("latest")
        refused = folder.point_latest(directory, step)
        note = f"`latest` in {directory} could not be moved ({refused}); relume does not need it" if refused else ""
        return Written(step, path, described.size, time.monotonic() - began_s, note)
    except Unusable as error:
        text = f"what was written to {directory} did not read back: {error}. Is the disk failing?"
        raise NotWritten("broken", text) from error
    except Exception as error:
        raise _not_written(error, directory, needed) from error


@dataclass(frozen=True, slots=True)
class _Content:
    """What goes into a checkpoint."""

    step: int
    skeleton: bytes
    tensors: Sequence[torch.Tensor]
    facts: dict[str, Any]


def _fill(path: Path, content: _Content, reached: Callable[[str], None]) -> Manifest:
    """Write every file of a checkpoint, the manifest last, and compare what is there with what should be."""
    reached("tensors")
    nest, keys = _readable(content)
    with _pytorch():
        write_nest(nest, storage_writer=FileSystemWriter(path, sync_files=False), no_dist=True)
    (path / manifest.SKELETON).write_bytes(content.skeleton)
    reached("manifest")
    described = Manifest(
        step=content.step,
        written_s=time.time(),
        relume=__version__,
        torch=str(torch.__version__),
        facts=content.facts,
        files=manifest.describe(path),
        tensors=tuple(_describe(key, tensor) for key, tensor in zip(keys, content.tensors, strict=True)),
    )
    (path / manifest.MANIFEST).write_bytes(manifest.encode(described))
    reached("read back")
    layout, stands = tree.facts(content.skeleton), manifest.read(path)
    for group in _groups(layout):
        read_tensors(path, stands, layout, group)
    return stands


def _describe(key: str, tensor: torch.Tensor) -> manifest.Tensor:
    return manifest.Tensor(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), digest(tensor))


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor over just its own bytes: PyTorch would copy one that has a share of a larger storage."""
    if not tensor.numel() or not is_dense(tensor.shape, tensor.stride()):
        return tensor.detach()
    return torch.from_numpy(stored(tensor).numpy()).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _readable(content: _Content) -> tuple[dict[str, Any], list[str]]:
    """Return the state as PyTorch's format takes it, and the name under which that will hold each tensor.

    Keys become text, and containers that hold a tensor dictionaries or lists. Two keys that would become the same name
    (1 and "1") are told apart. Objects of the script's own classes are left to the skeleton, since whoever reads with
    plain PyTorch may not have them; a tensor inside of one is kept under a name of ours.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()

    def walk_mapping(value: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, Opaque):
                continue
            text = str(key)
            while text in result or f"{prefix}{text}" in taken:
                text += "~"
            result[text] = walk(item, f"{prefix}{text}.")
        return result

    def walk(value: object, prefix: str) -> object:
        if isinstance(value, Mapping):
            return walk_mapping(value, prefix)
        if isinstance(value, list | tuple) and _holds_tensor(value):
            return [walk(item, f"{prefix}{index}.") for index, item in enumerate(value)]
        taken.add(prefix[:-1])
        if isinstance(value, torch.Tensor):
            names[int(value)] = prefix[:-1]
            return content.tensors[int(value)]
        return repr(value) if isinstance(value, Opaque) else value

    # Instead of each tensor its number stands in the nest while it is walked: so places are told apart, not tensors.
    numbers = [torch.tensor(float(index), dtype=torch.float64) for index in range(len(content.tensors))]
    nest = walk_mapping(tree.unflatten(content.skeleton, numbers, trusting=False), "")
    keys = [names.get(index, f"{HIDDEN}{index}") for index in range(len(content.tensors))]
    nest.update({key: content.tensors[index] for index, key in enumerate(keys) if index not in names})
    return nest, keys


def _holds_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return True  # as PyTorch's format has it
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def _check_room(directory: Path, needed: int) -> None:
    there = directory
    while not there.exists() and there != there.parent:
        there = there.parent
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
    if free < needed:
        text = f"the disk of {directory} is full: a checkpoint needs {_mib(needed)} and {_mib(free)} are free"
        raise NotWritten("full", text)


def _not_written(error: Exception, directory: Path, needed: int) -> NotWritten:
    """Turn whatever a refused write became on its way through PyTorch into what a person can use."""
    if isinstance(error, NotWritten):
        return error
    cause = _os_error(error) or _probe(directory, needed)
    if cause is None or cause.errno is None:
        return NotWritten("defect", f"the checkpoint in {directory} could not be written: {_short(error)}")
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
    path = directory / f".partial-00000000-{os.getpid()}"
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


# Reading ------------------------------------------------------------------------------------------------------------


def load(path: Path, progress: Progress | None = None) -> Loaded:
    """Return the state in the checkpoint at `path`, every bit of it verified. Raises `Unusable` with what is wrong."""
    described = manifest.read(path)
    wrong = manifest.faults(path, described, progress)
    if wrong:
        raise Unusable("; ".join(wrong))
    try:
        skeleton = (path / manifest.SKELETON).read_bytes()
        facts = tree.facts(skeleton)
        tensors: list[torch.Tensor] = []
        for group in _groups(facts):
            tensors += read_tensors(path, described, facts, group)
            if progress is not None:
                progress(sum(facts[index].size for index in group))
        tree.unflatten(skeleton, tensors, trusting=False)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"its files are what was written, but do not load here: {_short(error)}") from error
    return Loaded(described.step, path, skeleton, tensors, described)


def newest(
    directory: Path, passed_over: Callable[[Path, str], None], progress: Progress | None = None
) -> Loaded | None:
    """Return the newest checkpoint in `directory` that verifies, telling `passed_over` of newer ones that do not."""
    for step in folder.steps(directory):
        path = directory / folder.name(step)
        try:
            return load(path, progress)
        except Unusable as error:
            passed_over(path, str(error))
    return None


def _groups(facts: Sequence[tree.TensorFacts]) -> Iterator[range]:
    """Yield the tensors in groups of a bounded size, as ranges of indices."""
    start = size = 0
    for index, fact in enumerate(facts):
        if size and size + fact.size > GROUP_BYTES_MAX:
            yield range(start, index)
            start, size = index, 0
        size += fact.size
    yield range(start, len(facts))


def read_tensors(
    path: Path, described: Manifest, facts: Sequence[tree.TensorFacts], group: range
) -> list[torch.Tensor]:
    """Read some tensors and compare each with its digest. Raises `Unusable`."""
    if len(facts) != len(described.tensors):
        raise Unusable(f"the skeleton has {len(facts)} tensors and the manifest {len(described.tensors)}")
    targets = [_target(facts[index]) for index in group]
    wanted = {described.tensors[index].key: target for index, target in zip(group, targets, strict=True)}
    if wanted:
        with _pytorch():
            read_nest(wanted, storage_reader=FileSystemReader(path), no_dist=True)
    tensors = [_shaped(facts[index], target) for index, target in zip(group, targets, strict=True)]
    for index, tensor in zip(group, tensors, strict=True):
        if digest(tensor) != described.tensors[index].xxh3:
            raise Unusable(f"{described.tensors[index].key} is damaged (its digest differs)")
    return tensors


def _target(fact: tree.TensorFacts) -> torch.Tensor:
    """Return a tensor for PyTorch to read into: it cannot write into an expanded one."""
    if 0 in fact.strides:
        return torch.empty(fact.shape, dtype=fact.dtype)
    return torch.empty_strided(fact.shape, fact.strides, dtype=fact.dtype)


def _shaped(fact: tree.TensorFacts, target: torch.Tensor) -> torch.Tensor:
    """Return what was read with the strides that it shall have."""
    if target.stride() == fact.strides:
        return target
    once = target[tuple(slice(0, size) for size in fact.stored_shape)]
    return fact.make(once.contiguous().reshape(-1).view(torch.uint8))


def digest(tensor: torch.Tensor) -> str:
    """Return the XXH3 of a tensor's bytes as they lie in memory, sixteen hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(stored(tensor).numpy().data if tensor.numel() else b"")


class _Refused(Exception):
    """PyTorch's `CheckpointException`, which is no `Exception`, made one."""


@contextlib.contextmanager
def _pytorch() -> Iterator[None]:
    """Use PyTorch's format: without its warning that it runs alone, which is what it was asked to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointException as error:
            first = next((failure[0] for failure in error.failures.values()), error)
            raise _Refused(_short(first)) from error


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[-1].strip()[:300] if lines else ""
    return text if isinstance(error, _Refused) else f"{type(error).__name__}: {text}"
