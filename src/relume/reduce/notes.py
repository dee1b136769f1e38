"""A leaf's note: its weight, which parameters have a gradient, and what the shard logged.

Notes stand per shard, not per worker: whoever computes a shard writes the same bits. While its step is live a note is
covered by the seal of its leaf: it is written before that seal and read after it. The leaf goes away with its step and
the note stays as long as the step's result is kept, so it has a seal of its own too, for those who replay: step + 1,
zero while it is written. The buffers that shard 0 left are covered by the seal of note 0.
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

_HEAD = struct.Struct("<ddQ")
_HEAD_AT = WORD
_BITS_AT = _HEAD_AT + 3 * WORD
_logs = msgspec.msgpack.Decoder(dict[str, float])
_encode = msgspec.msgpack.Encoder(order="sorted").encode

Presence = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Note:
    """`weight` 0.0 means that the shard is absent. `present[i]`: parameter i has a gradient. `logs`: name to mean.

    `factor`: what the gradient in the slot is to be multiplied by to be the leaf. Usually that is the weight: who sums
    does it on the way, in the cache.
    """

    weight: float
    present: Presence
    logs: dict[str, float]
    factor: float = 1.0


class Notes:
    """The notes of all shards in the arena's data part."""

    def __init__(self, memory: memoryview, layout: DataLayout) -> None:
        self._memory = memory
        self._words = memory.cast("Q")
        self._layout = layout
        self._kept = layout.kept
        self._count = layout.shape.parameters
        self._bits = -(-self._count // 8)

    def unseal(self, step: int, shard: int) -> None:
        """Say that the note (and for shard 0 the buffers) is about to be written: what stands there is old."""
        self._words[self._seal_at(step, shard)] = 0

    def write(self, step: int, shard: int, note: Note) -> None:
        """Write the note of `shard`, unsealed. Raises `StepError` if it logs more than fits."""
        logs = _encode(note.logs)
        if len(logs) > NOTE_LOG_BYTES:
            text = (
                f"one shard logged {len(logs)} bytes of values under {len(note.logs)} names; at most {NOTE_LOG_BYTES}"
            )
            raise StepError(text + " fit. Log fewer names in step.log")
        at = self._layout.note(step % self._kept, shard)
        _HEAD.pack_into(self._memory, at + _HEAD_AT, note.weight, note.factor, len(logs))
        at += _BITS_AT
        self._memory[at : at + self._bits] = np.packbits(note.present).tobytes()
        self._memory[at + self._bits : at + self._bits + len(logs)] = logs

    def seal(self, step: int, shard: int) -> None:
        """Say that the note is whole."""
        self._words[self._seal_at(step, shard)] = step + 1

    def read(self, step: int, shard: int) -> Note:
        """Return the note of a shard whose leaf is sealed."""
        return self._decode(self._memory, self._layout.note(step % self._kept, shard))

    # For those who replay -----------------------------------------------------------------------------------

    def sealed(self, step: int) -> bool:
        """True if the note of every shard of `step` stands here whole."""
        shards = range(self._layout.shape.shards)
        return all(self._words[self._seal_at(step, shard)] == step + 1 for shard in shards)

    def copy(self, step: int) -> bytes:
        """Return all notes of `step` as they are; `decode` reads them once it is clear that they were whole."""
        index = step % self._kept
        start = self._layout.note(index, 0)
        return bytes(self._memory[start : start + self._layout.shape.shards * self._layout.note_size])

    def decode(self, copied: bytes) -> dict[int, Note]:
        """Return the notes by shard."""
        size, memory = self._layout.note_size, memoryview(copied)
        return {shard: self._decode(memory, shard * size) for shard in range(self._layout.shape.shards)}

    def _seal_at(self, step: int, shard: int) -> int:
        return self._layout.note(step % self._kept, shard) // WORD

    def _decode(self, memory: memoryview, at: int) -> Note:
        weight, factor, length = _HEAD.unpack_from(memory, at + _HEAD_AT)
        at += _BITS_AT
        bits = np.frombuffer(memory, dtype=np.uint8, count=self._bits, offset=at)
        present = np.unpackbits(bits, count=self._count).astype(bool)
        logs = _logs.decode(bytes(memory[at + self._bits : at + self._bits + length])) if length else {}
        return Note(weight, present, logs, factor)


def union(notes: Sequence[Note]) -> Presence:
    """Return which parameters have a gradient in any of `notes`."""
    present: Presence = np.zeros_like(notes[0].present)
    for note in notes:
        present |= note.present
    return present
