"""A checkpoint's manifest: what stands in its folder, and the digest of every byte of it.

A checkpoint is a folder in PyTorch's distributed checkpoint format plus two files of ours, which PyTorch passes over:
`skeleton`, which holds exactly what is no tensor, and `manifest.json`, written last of all. Nothing in a checkpoint is
believed before the manifest's own digest and those of the files have been compared (Invariant 8).

It does not know torch, nor how a state is put together: `relume checkpoint ls` reads it in milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

FORMAT = 1
"""Raised whenever an older relume would misread a checkpoint."""
MANIFEST = "manifest.json"
SKELETON = "skeleton"
PIECE_BYTES = 8 << 20

Progress = Callable[[int], None]
"""Told how many bytes were read or written since the last time."""


class Unusable(Exception):
    """A checkpoint that must not be loaded; the text says why, and names the file or tensor. It ends in `disk.load`."""


class File(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    name: str
    size: int
    xxh3: str


class Tensor(msgspec.Struct, frozen=True):
    """One tensor, in the skeleton's order; `key` is its name in PyTorch's format (`model.0.weight`).

    `file`, `start` and `length`: where `torch.save` has put it. PyTorch's own index says so too, but no older PyTorch
    reads a newer one's (2.13 fails on 2.15's), and it is a pickle.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    xxh3: str
    file: str
    start: int
    length: int


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself. `written_s`: seconds since 1970; `facts`: what the run's bits depend on."""

    step: int
    written_s: float
    relume: str
    torch: str
    facts: dict[str, Any]
    files: tuple[File, ...]
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all files that it lists."""
        return sum(file.size for file in self.files)


class _Envelope(msgspec.Struct):
    format: int
    xxh3: str
    checkpoint: msgspec.Raw


def encode(manifest: Manifest) -> bytes:
    """Return the manifest's file: its format, the digest of what follows, and that."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(FORMAT, xxhash.xxh3_64_hexdigest(body), msgspec.Raw(body))) + b"\n"


def decode(data: bytes) -> Manifest:
    """Return the manifest in `data`. Raises `Unusable`."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{MANIFEST} is damaged ({error})") from error
    if envelope.format > FORMAT:
        text = f"it has format {envelope.format} and this relume reads up to {FORMAT}: it was written by a newer relume"
        raise Unusable(text + ", which can read it")
    body = bytes(envelope.checkpoint)
    if envelope.format < 1 or xxhash.xxh3_64_hexdigest(body) != envelope.xxh3:
        raise Unusable(f"{MANIFEST} is damaged (its digest differs)")
    try:
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise Unusable(f"{MANIFEST} is not understood ({error})") from error


def read(folder: Path) -> Manifest:
    """Return the manifest of the checkpoint in `folder`. Raises `Unusable`."""
    try:
        return decode((folder / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        what = f"{MANIFEST} is missing" if folder.is_dir() else "there is no such folder"
        raise Unusable(what) from error
    except OSError as error:
        raise Unusable(f"{MANIFEST} cannot be read ({error.strerror})") from error


def describe(folder: Path, progress: Progress | None = None) -> tuple[File, ...]:
    """Return every file in `folder` with its size and digest, by name."""
    return tuple(_file(folder, name, progress) for name in sorted(os.listdir(folder)) if name != MANIFEST)  # noqa: PTH208


def faults_of_size(folder: Path, manifest: Manifest) -> list[str]:
    """Return what is wrong with `folder` as far as sizes tell: quick, and enough to see what a crash leaves."""
    return [fault for file in manifest.files for fault in _fault_of_size(folder, file)]


def faults(folder: Path, manifest: Manifest, progress: Progress | None = None) -> list[str]:
    """Return what is wrong with the files in `folder`, every byte of them read; each fault names its file."""
    found = []
    for file in manifest.files:
        wrong = list(_fault_of_size(folder, file))
        if not wrong:
            try:
                if _file(folder, file.name, progress).xxh3 != file.xxh3:
                    wrong = [f"{file.name} is damaged (its digest differs)"]
            except OSError as error:
                wrong = [f"{file.name} cannot be read ({error.strerror})"]
        found += wrong
    return found


def _fault_of_size(folder: Path, file: File) -> Iterator[str]:
    try:
        size = (folder / file.name).stat().st_size
    except FileNotFoundError:
        yield f"{file.name} is missing"
        return
    except OSError as error:
        yield f"{file.name} cannot be read ({error.strerror})"
        return
    if size != file.size:
        cut = "is cut short" if size < file.size else "is too long"
        yield f"{file.name} {cut} ({size} bytes where {file.size} were written)"


def _file(folder: Path, name: str, progress: Progress | None) -> File:
    hasher, size = xxhash.xxh3_64(), 0
    piece = bytearray(PIECE_BYTES)
    with (folder / name).open("rb", buffering=0) as stream:
        while count := stream.readinto(piece):
            hasher.update(memoryview(piece)[:count])
            size += count
            if progress is not None:
                progress(count)
    return File(name, size, hasher.hexdigest())
