"""A nest of containers with tensors in it, cut into its tensors and a *skeleton*: all that is no tensor, as bytes.

Protected state is such a nest. Its tensors are most of its bytes and are copied without looking at them; the skeleton
says where each goes, and holds every plain value exactly (`relume.state.values`). Equal nests have equal skeletons.

A tensor that stands in two places (tied weights) is two tensors here: who holds which of them is the live objects'
affair, and two workers must agree on every offset without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import torch

from relume.errors import StateError
from relume.state.facts import Packed, TensorFacts, place
from relume.state.values import Decoder, Encoder, Known, Part

__all__ = ["Familiar", "Part", "TensorFacts", "dissect", "facts", "flatten", "unflatten"]

_VERSION = 1
"""Raised whenever an older relume would misread a skeleton."""

_encode = msgspec.msgpack.Encoder().encode


class _Skeleton(msgspec.Struct, array_like=True):
    version: int
    tensors: list[Packed]
    root: Any


class _Facts(msgspec.Struct, array_like=True):
    version: int
    tensors: list[Packed]
    root: msgspec.Raw


_S = TypeVar("_S", _Skeleton, _Facts)


def flatten(tree: object) -> tuple[list[torch.Tensor], bytes]:
    """Return the tensors of `tree` as they are, in walk order, and its skeleton.

    Raises `StateError`, which names the place, for what cannot be put into bytes.
    """
    tensors, _, skeleton = dissect(tree)
    return tensors, skeleton


def dissect(tree: object) -> tuple[list[torch.Tensor], list[TensorFacts], bytes]:
    """Do what `flatten` does, and return the tensors' facts as well, for whoever goes on to copy them."""
    encoder = Encoder()
    root = encoder.encode(tree)
    return encoder.tensors, place(encoder.packed), _encode(_Skeleton(_VERSION, encoder.packed, root))


class Familiar:
    """Dissects one state again and again, from mirror to mirror: what is as before is not worked out anew.

    That holds for `Part`s; what stands outside them is walked each time. It keeps no tensor alive.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Known] = {}
        self._packed: list[Packed] = []
        self._about: list[TensorFacts] = []
        self._code = msgspec.Raw(_encode(self._packed))

    def dissect(self, tree: object) -> tuple[list[torch.Tensor], list[TensorFacts], bytes]:
        """Do what `dissect` does. Where all facts are those of the last time, their list is that very object."""
        encoder = Encoder(self._known)
        root = encoder.encode(tree)
        if encoder.packed != self._packed:
            self._about = place(encoder.packed)
            self._packed, self._code = encoder.packed, msgspec.Raw(_encode(encoder.packed))
        return encoder.tensors, self._about, _encode((_VERSION, self._code, root))


def unflatten(skeleton: bytes, tensors: Sequence[torch.Tensor], *, trusting: bool = True) -> Any:  # noqa: ANN401
    """Return the nest again, with `tensors` in their places.

    `trusting` False calls nothing that the skeleton names: objects beyond plain values come back opaque, and can be
    flattened again. Raises `StateError` for bytes that are no skeleton of these tensors.
    """
    parsed = _parse(skeleton, _Skeleton)
    if len(tensors) != len(parsed.tensors):
        raise StateError(f"{len(tensors)} tensors for a state that has {len(parsed.tensors)}")
    try:
        return Decoder(tensors, parsed.tensors, trusting=trusting).decode(parsed.root)
    except Exception as error:
        raise StateError(f"the kept state cannot be read ({type(error).__name__}: {error})") from error


def facts(skeleton: bytes) -> list[TensorFacts]:
    """Return the facts of the tensors of a skeleton, in walk order. Raises `StateError`."""
    return place(_parse(skeleton, _Facts).tensors)


def _parse(skeleton: bytes, kind: type[_S]) -> _S:
    try:
        parsed = msgspec.msgpack.decode(skeleton, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"the kept state's skeleton is no skeleton ({error})") from error
    if parsed.version != _VERSION:
        raise StateError(f"the kept state has format {parsed.version}, and this relume reads {_VERSION}")
    return parsed
