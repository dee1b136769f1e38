"""Asking a live run how it stands, and for another number of workers; and that nobody who asks can cost it anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relume.agent import status
from relume.agent.status import CLIENTS_MAX, StatusServer, address, ask, ask_scale
from relume.wire.framing import encode
from relume.wire.messages import ScaleReply, ScaleRequest, StatusReply, StatusRequest, WorkerStatus

REPLY = StatusReply("one", 1, "steady", 2.5, None, 40, 0, (WorkerStatus(0, 2, "in", "forward", 3, 1, 0.1),))
REQUEST = encode(StatusRequest())


@pytest.fixture
def run_id():
    return f"test-{os.getpid()}-{threading.get_ident()}"


@contextlib.asynccontextmanager
async def serving(run_id, reply=REPLY):
    """Serve `run_id`; the server's own loop is this one, which must never be held up. Yields what was asked for."""
    loop, asked = asyncio.get_running_loop(), []

    def scale(workers):
        asked.append(workers)
        return ScaleReply(4, workers, "" if workers < 9 else "there are 8 seats")

    server = StatusServer(run_id, lambda: reply, scale)
    server.start(loop)
    try:
        yield asked
    finally:
        server.close(loop)
        assert not server._clients


def in_threads(*calls):
    """Await calls that block, each in a thread of its own."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(len(calls))
    pool_closed = asyncio.gather(*(loop.run_in_executor(pool, *call) for call in calls))
    pool.shutdown(wait=False)
    return pool_closed


def connect(run_id):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(address(run_id))
    return connection


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def is_dropped(connection):
    """Read to the end; an end that comes as a reset is one too."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_run_answers_whoever_asks(run_id):
    async def serve():
        async with serving(run_id):
            return await in_threads(*[(ask, run_id)] * 5)

    assert asyncio.run(serve()) == [REPLY] * 5
    assert ask(run_id) is None


def test_a_run_is_asked_for_workers_and_says_what_comes_of_it(run_id):
    async def serve():
        async with serving(run_id) as asked:
            replies = [(await in_threads((ask_scale, run_id, workers)))[0] for workers in (2, 9)]
            return asked, replies

    asked, (granted, refused) = asyncio.run(serve())
    assert asked == [2, 9]
    assert granted == ScaleReply(4, 2, "")
    assert refused == ScaleReply(4, 9, "there are 8 seats")


def test_nobody_answers_for_a_run_that_is_not_there(run_id):
    assert ask(run_id) is None
    assert ask_scale(run_id, 3) is None


def test_another_users_question_is_not_answered(run_id, monkeypatch):
    async def serve():
        async with serving(run_id) as asked:
            return *(await in_threads((ask, run_id), (ask_scale, run_id, 1))), asked

    class Peer:
        size = 12

        def unpack(self, data):
            return 1, 4711, 4711

    monkeypatch.setattr(status, "_UCRED", Peer())
    assert asyncio.run(serve()) == (None, None, [])


def test_an_agent_that_says_nothing_is_not_waited_for_for_ever(run_id):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(address(run_id))
        silent.listen()
        assert ask(run_id, timeout_s=0.1) is None
        assert ask_scale(run_id, 2, timeout_s=0.1) is None


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        REQUEST[:-1],
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">I", 2**31),
        struct.pack(">I", 2**20) + b"x" * 5000,
        encode(REPLY),
    ],
    ids=["nothing", "half a frame", "http", "no msgpack", "a giant's header", "a long frame", "an answer"],
)
def test_whoever_asks_nothing_sensible_is_dropped_and_the_next_one_is_answered(run_id, sent, monkeypatch):
    monkeypatch.setattr(status, "CLIENT_S_MAX", 0.2)

    def talk():
        with connect(run_id) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            return is_dropped(connection)

    async def serve():
        async with serving(run_id):
            return await in_threads((talk,), (ask, run_id))

    assert asyncio.run(serve()) == [True, REPLY]


def test_a_client_that_never_reads_costs_the_agent_nothing(run_id, monkeypatch):
    """The answer is larger than a socket takes, so that it cannot be sent at once."""
    monkeypatch.setattr(status, "CLIENT_S_MAX", 0.3)
    worker = WorkerStatus(0, 2, "in", "forward", 3, 1, 0.1)
    long = StatusReply("one", 1, "steady", 2.5, None, 40, 0, (worker,) * 50_000)

    async def serve():
        async with serving(run_id, long):
            with connect(run_id) as deaf:
                deaf.sendall(REQUEST)
                (told,) = await in_threads((ask, run_id))  # in pieces, as the socket takes them
                await asyncio.sleep(0)
                (dropped,) = await in_threads((is_dropped, deaf))
            return told, dropped

    assert asyncio.run(serve()) == (long, True)


def test_a_crowd_that_only_connects_keeps_nobody_out_and_leaves_nothing_behind(run_id, monkeypatch):
    monkeypatch.setattr(status, "CLIENT_S_MAX", 600.0)  # so that it is the crowd's size, not the time, that helps

    async def serve():
        before = descriptors()
        async with serving(run_id):
            crowd = []
            for _ in range(3 * CLIENTS_MAX):
                crowd.extend(await in_threads((connect, run_id)))
            (reply,) = await in_threads((ask, run_id, 60.0))
            for connection in crowd:
                connection.close()
        return reply, descriptors() - before

    reply, left = asyncio.run(serve())
    assert reply == REPLY
    assert left <= 0


def test_a_request_that_comes_in_two_pieces_is_one(run_id):
    request = encode(ScaleRequest(3))

    def talk():
        with connect(run_id) as connection:
            connection.sendall(request[:3])
            assert ask(run_id) == REPLY  # meanwhile
            connection.sendall(request[3:])
            return is_dropped(connection)

    async def serve():
        async with serving(run_id) as asked:
            await in_threads((talk,))
            return asked

    assert asyncio.run(serve()) == [3]
