"""How a command line asks a live run how it stands: a Unix socket in the abstract namespace, which leaves no file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable

from relume.errors import FrameError
from relume.wire.framing import Decoder, encode
from relume.wire.messages import StatusReply

_UCRED = struct.Struct("3i")


def address(run_id: str) -> str:
    """Return the address of the run's socket."""
    return f"\0relume/{os.getuid()}/{run_id}"


class StatusServer:
    """Sends what `status()` returns to whoever connects: the same user, or root."""

    def __init__(self, run_id: str, status: Callable[[], StatusReply]) -> None:
        self._status = status
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(address(run_id))
        self._socket.listen(8)
        self._socket.settimeout(0.0)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer."""
        loop.add_reader(self._socket, self._accept)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop answering."""
        loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError, FrameError):
            client, _ = self._socket.accept()
            with client:
                _, uid, _ = _UCRED.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
                if uid not in {0, os.getuid()}:
                    return
                client.settimeout(0.0)
                client.sendall(encode(self._status()))


def ask(run_id: str, timeout_s: float = 2.0) -> StatusReply | None:
    """Return the status of a live run, or None if no agent answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        decoder: Decoder[StatusReply] = Decoder(StatusReply)
        try:
            connection.connect(address(run_id))
            while data := connection.recv(1 << 16):
                for reply in decoder.feed(data):
                    return reply
        except (OSError, FrameError):
            return None
    return None
