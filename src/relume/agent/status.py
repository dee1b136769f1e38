"""How a command line speaks with a live agent: a Unix socket in the abstract namespace, which leaves no file.

One connection, one request, one answer. The agent trains nothing, but workers wait for it, so nobody who connects may
cost it anything: it never waits for a client, reads a few bytes of each, keeps a few at a time, and drops whoever has
not asked and read within two seconds. Only the same user and root are heard at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from relume.errors import FrameError
from relume.wire.framing import Decoder, encode
from relume.wire.messages import ScaleReply, ScaleRequest, StatusReply, StatusRequest, ToAgent

CLIENT_S_MAX = 2.0
"""A client that has not got its answer by then is dropped."""
CLIENTS_MAX = 16
"""One more, and the oldest is dropped: those who are slow never keep out one who is not."""
REQUEST_BYTES_MAX = 1024
"""Requests are a few words long; whoever sends more sends something else."""
ANSWER_S = 2.0
"""How long a command line waits for the agent."""

_UCRED = struct.Struct("3i")

Reply = TypeVar("Reply", StatusReply, ScaleReply)


def address(run_id: str) -> str:
    """Return the address of the run's socket."""
    return f"\0relume/{os.getuid()}/{run_id}"


@dataclass(eq=False, slots=True)
class _Client:
    """Somebody who has connected: what is heard of a request, and what is still to be sent."""

    connection: socket.socket
    limit: asyncio.TimerHandle | None = None
    decoder: Decoder[ToAgent] = field(default_factory=lambda: Decoder(ToAgent))
    heard: int = 0
    answer: bytes = b""


class StatusServer:
    """Answers with what `status()` returns, or `scale(workers)` does."""

    def __init__(
        self,
        run_id: str,
        status: Callable[[], StatusReply],
        scale: Callable[[int], ScaleReply],
    ) -> None:
        self._status = status
        self._scale = scale
        self._clients: dict[_Client, None] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(address(run_id))
        self._socket.listen(8)
        self._socket.settimeout(0.0)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to answer."""
        self._loop = loop
        loop.add_reader(self._socket, self._accept)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop answering, and leave no connection behind."""
        loop.remove_reader(self._socket)
        for client in list(self._clients):
            self._drop(client)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            if uid not in {0, os.getuid()}:
                connection.close()
                return
            connection.settimeout(0.0)
            if len(self._clients) >= CLIENTS_MAX:
                self._drop(next(iter(self._clients)))
            client = _Client(connection)
            client.limit = self._loop.call_later(CLIENT_S_MAX, self._drop, client)
            self._clients[client] = None
            self._loop.add_reader(connection, self._hear, client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            del self._clients[client]
            if client.limit is not None:
                client.limit.cancel()
            self._loop.remove_reader(client.connection)
            self._loop.remove_writer(client.connection)
            client.connection.close()

    def _hear(self, client: _Client) -> None:
        try:
            data = client.connection.recv(REQUEST_BYTES_MAX)
            client.heard += len(data)
            requests = client.decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self._drop(client)
            return
        if requests:
            self._answer(client, requests[0])
        elif not data or client.heard > REQUEST_BYTES_MAX:
            self._drop(client)

    def _answer(self, client: _Client, request: ToAgent) -> None:
        self._loop.remove_reader(client.connection)  # there is one request to a connection
        try:
            reply = self._scale(request.workers) if isinstance(request, ScaleRequest) else self._status()
            client.answer = encode(reply)
        except BaseException:
            self._drop(client)
            raise
        self._loop.add_writer(client.connection, self._send, client)
        self._send(client)

    def _send(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.connection.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:
            client.answer = b""
        if not client.answer:
            self._drop(client)


def ask(run_id: str, timeout_s: float = ANSWER_S) -> StatusReply | None:
    """Return the status of a live run, or None if no agent answers."""
    return _ask(run_id, StatusRequest(), StatusReply, timeout_s)


def ask_scale(run_id: str, workers: int, timeout_s: float = ANSWER_S) -> ScaleReply | None:
    """Ask a live run for so many workers; return what comes of it, or None if no agent answers."""
    return _ask(run_id, ScaleRequest(workers), ScaleReply, timeout_s)


def _ask(run_id: str, request: ToAgent, kind: type[Reply], timeout_s: float) -> Reply | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        decoder: Decoder[Reply] = Decoder(kind)
        try:
            connection.connect(address(run_id))
            connection.sendall(encode(request))
            while data := connection.recv(1 << 16):
                for reply in decoder.feed(data):
                    return reply
        except (OSError, FrameError):
            return None
    return None
