"""Asking a live run how it stands."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from relume.agent import status
from relume.agent.status import StatusServer, address, ask
from relume.wire.messages import StatusReply, WorkerStatus

REPLY = StatusReply("one", 1, "steady", 2.5, None, 40, 0, (WorkerStatus(0, 2, "in", "forward", 3, 1, 0.1),))


@pytest.fixture
def run_id():
    return f"test-{os.getpid()}-{threading.get_ident()}"


def test_a_run_answers_whoever_asks(run_id):
    async def serve():
        loop = asyncio.get_running_loop()
        server = StatusServer(run_id, lambda: REPLY)
        server.start(loop)
        with ThreadPoolExecutor() as pool:
            replies = await asyncio.gather(*(loop.run_in_executor(pool, ask, run_id) for _ in range(5)))
        server.close(loop)
        return replies

    assert asyncio.run(serve()) == [REPLY] * 5
    assert ask(run_id) is None


def test_nobody_answers_for_a_run_that_is_not_there(run_id):
    assert ask(run_id) is None


def test_another_users_question_is_not_answered(run_id, monkeypatch):
    async def serve():
        loop = asyncio.get_running_loop()
        server = StatusServer(run_id, lambda: REPLY)
        server.start(loop)
        with ThreadPoolExecutor() as pool:
            reply = await loop.run_in_executor(pool, ask, run_id)
        server.close(loop)
        return reply

    class Peer:
        size = 12

        def unpack(self, data):
            return 1, 4711, 4711

    monkeypatch.setattr(status, "_UCRED", Peer())
    assert asyncio.run(serve()) is None


def test_an_agent_that_says_nothing_is_not_waited_for_for_ever(run_id):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(address(run_id))
        silent.listen()
        assert ask(run_id, timeout_s=0.1) is None
