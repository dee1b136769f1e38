"""What is measured, and the words between who measures and the processes that are measured.

The controller gives every process of a side the same order and waits for all their answers; a process that has answered
is blocked in a read until the next order, so that whoever is not measured costs nothing. The end of the connection is
an order too: whoever reads it ends, so that nothing outlives its controller.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Self

import msgspec

from relume.wire.framing import Decoder, encode

RELUME, DDP, ALONE, RAW, GLOO, MEMORY = "relume", "ddp", "alone", "raw", "gloo", "memory_pass"
BARE = "bare"
"""The processes of whatever is neither relume nor DDP."""
WORK = (RELUME, DDP, ALONE, RAW, GLOO, MEMORY)
"""Everything that is timed."""
HOST_OF = {RELUME: RELUME, DDP: DDP, GLOO: DDP, ALONE: BARE, RAW: BARE, MEMORY: BARE}
"""In whose processes it runs."""
_CHUNK = 1 << 16


class Terms(msgspec.Struct, frozen=True):
    """What every side is given alike. `batch`: samples per worker and step; `charlm`: where that example is."""

    workers: int
    model: str
    size_mb: float
    seed: int
    charlm: str
    batch: int = 1
    single_backward: bool = False


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Make model, data and optimizer anew, so that the next step is step 0 from the same weights on every side."""

    terms: Terms


class Steps(msgspec.Struct, frozen=True, tag=True):
    """Do `warm` steps (or rounds) of `work` that do not count, then `steps` that do. `variant` is DDP's."""

    work: str
    warm: int
    steps: int
    variant: str = ""


class Save(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 writes its parameters, as they are now, into `path`: float32, one after the other, nothing else."""

    path: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A process is there."""

    side: str
    rank: int
    pid: int
    torch: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """An order is carried out. Times are of the monotonic clock that all processes share.

    `begin_ns`: the last step that did not count was over; `end_ns`: the last one that did. `parts`: the same for the
    parts of a round, one list of times per round, if it has parts. `steps`: all that this process has made since
    `Begin`. `tensors`, `numbers`: how many parameters its model has, and numbers in all of them.
    """

    begin_ns: int = 0
    end_ns: int = 0
    parts: tuple[tuple[int, ...], ...] = ()
    steps: int = 0
    tensors: int = 0
    numbers: int = 0


Order = Begin | Steps | Save
Answer = Ready | Done


class Line:
    """One end of a connection. `receive` blocks in the kernel and returns None at its end."""

    def __init__(self, connection: socket.socket, kind: object) -> None:
        self._connection = connection
        self._decoder: Decoder[msgspec.Struct] = Decoder(kind)
        self._come: list[msgspec.Struct] = []

    @classmethod
    def to_controller(cls, address: str) -> Self:
        """Connect a measured process."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        return cls(connection, Order)

    def send(self, message: msgspec.Struct) -> None:
        """Send `message`; one that nobody takes any more is none: the next `receive` tells."""
        with contextlib.suppress(OSError):
            self._connection.sendall(encode(message))

    def receive(self) -> msgspec.Struct | None:
        """Return the next message. Raises `TimeoutError` if the connection has a timeout and it is over."""
        while not self._come:
            try:
                data = self._connection.recv(_CHUNK)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._come += self._decoder.feed(data)
        return self._come.pop(0)

    def limit(self, seconds: float) -> None:
        """Let each `receive` wait so long at most, from here on."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close it: the other end reads its end."""
        self._connection.close()
