"""Length-prefixed msgpack frames, without any I/O: bytes in, messages out, and back.

A frame is four bytes (unsigned, big-endian) of length and then that many bytes of msgpack. A peer that sends
anything else is refused with `FrameError`; nothing is ever unpickled.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from relume.errors import FrameError

FRAME_BYTES_MAX = 256 << 20
"""The longest message is a `Join`, with 150 bytes or so for each tensor; more than this is no message of ours."""

_HEADER = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M")


def encode(message: msgspec.Struct) -> bytes:
    """Return `message` as one frame."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a {type(message).__name__} of {len(body)} bytes exceeds the limit of {FRAME_BYTES_MAX}")
    return _HEADER.pack(len(body)) + body


class Decoder(Generic[M]):
    """Turn a stream of bytes into messages of one union type. Feed it what the socket gave, in any pieces."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes, in order. Raises `FrameError`."""
        self._pending += data
        messages: list[M] = []
        while len(self._pending) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._pending)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes was announced; the limit is {FRAME_BYTES_MAX}")
            end = _HEADER.size + length
            if len(self._pending) < end:
                break
            body = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(f"a frame of {length} bytes is no message of this protocol: {error}") from error
        return messages
