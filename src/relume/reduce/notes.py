"""A leaf's note: its weight, which parameters have a gradient, and what the shard logged.

Notes stand per shard, not per worker: whoever computes a shard writes the same bits. A note is covered by the seal
of its leaf: it is written before that seal and read after it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from relume.arena.layout import NOTE_LOG_BYTES, WORD, DataLayout
from relume.errors import StepError

_HEAD = struct.Struct("<dQ")
_logs = msgspec.msgpack.Decoder(dict[str, float])
_encode = msgspec.msgpack.Encoder(order="sorted").encode

Presence = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Note:
    """`weight` 0.0 means that the shard is absent. `present[i]`: parameter i has a gradient. `logs`: name to mean."""

    weight: float
    present: Presence
    logs: dict[str, float]


class Notes:
    """The notes of all shards in the arena's data part."""

    def __init__(self, memory: memoryview, layout: DataLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._count = layout.shape.parameters
        self._bits = -(-self._count // 8)

    def write(self, result: int, shard: int, note: Note) -> None:
        """Write the note of `shard`. Raises `StepError` if it logs more than fits."""
        logs = _encode(note.logs)
        if len(logs) > NOTE_LOG_BYTES:
            text = (
                f"one shard logged {len(logs)} bytes of values under {len(note.logs)} names; at most {NOTE_LOG_BYTES}"
            )
            raise StepError(text + " fit. Log fewer names in step.log")
        at = self._layout.note(result, shard)
        _HEAD.pack_into(self._memory, at, note.weight, len(logs))
        at += 2 * WORD
        self._memory[at : at + self._bits] = np.packbits(note.present).tobytes()
        self._memory[at + self._bits : at + self._bits + len(logs)] = logs

    def read(self, result: int, shard: int) -> Note:
        """Return the note of a shard whose leaf is sealed."""
        at = self._layout.note(result, shard)
        weight, length = _HEAD.unpack_from(self._memory, at)
        at += 2 * WORD
        bits = np.frombuffer(self._memory, dtype=np.uint8, count=self._bits, offset=at)
        present = np.unpackbits(bits, count=self._count).astype(bool)
        logs = _logs.decode(bytes(self._memory[at + self._bits : at + self._bits + length])) if length else {}
        return Note(weight, present, logs)


def union(notes: Sequence[Note]) -> Presence:
    """Return which parameters have a gradient in any of `notes`."""
    present: Presence = np.zeros_like(notes[0].present)
    for note in notes:
        present |= note.present
    return present
