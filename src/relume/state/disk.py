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
import io
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write_nest

from relume.state import folder, manifest, tree
from relume.state.facts import is_dense, stored
from relume.state.manifest import Manifest, Progress, Unusable
from relume.state.readable import readable
from relume.state.refusal import ROOM_BYTES, NotWritten, Wrapped, check_room, not_written, short
from relume.version import __version__


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
        check_room(directory, needed)
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
        raise not_written(error, directory, needed) from error


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
    nest, keys = readable(content.skeleton, content.tensors)
    with _pytorch():
        index = write_nest(nest, storage_writer=FileSystemWriter(path, sync_files=False), no_dist=True)
    found = (index.storage_data or {}).items()
    places = {name.fqn: (place.relative_path, place.offset, place.length) for name, place in found}
    (path / manifest.SKELETON).write_bytes(content.skeleton)
    reached("manifest")
    described = Manifest(
        step=content.step,
        written_s=time.time(),
        relume=__version__,
        torch=str(torch.__version__),
        facts=content.facts,
        files=manifest.describe(path),
        tensors=tuple(_describe(key, tensor, places[key]) for key, tensor in zip(keys, content.tensors, strict=True)),
    )
    (path / manifest.MANIFEST).write_bytes(manifest.encode(described))
    reached("read back")
    layout, stands = tree.facts(content.skeleton), manifest.read(path)
    for number in range(len(layout)):
        read_tensor(path, stands, layout, number)
    with _pytorch():
        if FileSystemReader(path).read_metadata().storage_data != index.storage_data:
            raise Unusable("PyTorch's index is not what was written")
    return stands


def _describe(key: str, tensor: torch.Tensor, place: tuple[str, int, int]) -> manifest.Tensor:
    return manifest.Tensor(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), digest(tensor), *place)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor over just its own bytes: PyTorch would copy one that has a share of a larger storage."""
    if not tensor.numel() or not is_dense(tensor.shape, tensor.stride()):
        return tensor.detach()
    return torch.from_numpy(stored(tensor).numpy()).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


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
        for index in range(max(len(facts), len(described.tensors))):
            tensors.append(read_tensor(path, described, facts, index))
            if progress is not None:
                progress(described.tensors[index].length)
        tree.unflatten(skeleton, tensors, trusting=False)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"its files are what was written, but do not load here: {short(error)}") from error
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


def read_tensor(path: Path, described: Manifest, facts: Sequence[tree.TensorFacts], index: int) -> torch.Tensor:
    """Read one tensor and compare it with its digest. Raises `Unusable`, or whatever damaged bytes make torch raise."""
    about, fact = described.tensors[index], facts[index]
    with (path / about.file).open("rb") as file:
        file.seek(about.start)
        read = torch.load(io.BytesIO(file.read(about.length)), map_location="cpu", weights_only=True)
    if read.dtype != fact.dtype or tuple(read.shape) != fact.shape:
        raise Unusable(f"{about.key} is of another dtype or shape than the skeleton says")
    tensor = _shaped(fact, read)
    if digest(tensor) != about.xxh3:
        raise Unusable(f"{about.key} is damaged (its digest differs)")
    return tensor


def _shaped(fact: tree.TensorFacts, read: torch.Tensor) -> torch.Tensor:
    """Return what was read with the strides that it shall have: PyTorch keeps them only of what is dense."""
    if read.stride() == fact.strides:
        return read
    once = read[tuple(slice(0, size) for size in fact.stored_shape)]
    if 0 in fact.strides:
        return fact.make(once.contiguous().reshape(-1).view(torch.uint8))
    return torch.empty_strided(fact.shape, fact.strides, dtype=fact.dtype).copy_(read)


def digest(tensor: torch.Tensor) -> str:
    """Return the XXH3 of a tensor's bytes as they lie in memory, sixteen hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(stored(tensor).numpy().data if tensor.numel() else b"")


@contextlib.contextmanager
def _pytorch() -> Iterator[None]:
    """Use PyTorch's format: without its warning that it runs alone, which is what it was asked to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except CheckpointException as error:
            first = next((failure[0] for failure in error.failures.values()), error)
            raise Wrapped(short(first)) from error
