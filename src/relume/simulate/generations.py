"""One generation of the mirror as symbols: its chunks, each in pieces, with seals, claims and digests.

A model of `state.generation`. A digest is what its writer meant to write, so that a reader who compares finds whatever
is torn or mixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

PIECES = 2
"""A chunk is written in so many pieces, each under the pen."""


class Piece(NamedTuple):
    """A place in the mirror."""

    generation: int
    chunk: int
    piece: int = 0


@dataclass(slots=True)
class Generation:
    """`seals`: the step of a chunk that is whole, a claim below zero else (-1: never written)."""

    chunks: int
    content: list[list[Any]] = field(default_factory=list)
    seals: list[int] = field(default_factory=list)
    digests: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.content = [[None] * PIECES for _ in range(self.chunks)]
        self.seals = [-1] * self.chunks
        self.digests = [None] * self.chunks

    @property
    def step(self) -> int | None:
        """The step of which this is the mirror, None if it is not whole."""
        first = self.seals[0]
        return first if first >= 0 and all(seal == first for seal in self.seals) else None
