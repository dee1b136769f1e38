"""A worker is said to be fenced once, when the kernel shows that it can write no more and not before."""

from __future__ import annotations

import asyncio
import socket

import pytest

from relume.agent import fencer
from relume.agent.fencer import LOOKS, Fencer
from relume.agent.worker import Worker

PID = 1 << 30
"""Nobody's: the highest pid that a kernel gives is 1 << 22."""


@pytest.fixture
def worker():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Worker(0, 0, PID, -1, ours, {})


@pytest.mark.parametrize("looks", [0, 1, LOOKS, LOOKS + 1, LOOKS + 4])
def test_it_is_told_when_it_is_so_however_long_the_kernel_takes(worker, monkeypatch, looks):
    """The first looks follow each other at once, the later ones do not; none is left out."""
    seen = []
    monkeypatch.setattr(fencer, "is_fenced", lambda pid: seen.append(pid) or len(seen) > looks)

    async def fence():
        told = asyncio.Event()
        keeper = Fencer(lambda who: (told.set(), seen.append(who)), burner=False)
        keeper.fence(worker)
        assert not worker.fenced, "the kill alone says nothing"
        await asyncio.wait_for(told.wait(), 10)
        keeper.note(worker)  # its process has ended too
        keeper.close()

    asyncio.run(fence())
    assert seen == [PID] * (looks + 1) + [worker]
    assert worker.condemned
    assert worker.fenced


def test_the_loop_serves_others_between_two_looks(worker, monkeypatch):
    """A survivor's promise is read while the dying one is waited for."""
    order = []
    monkeypatch.setattr(fencer, "is_fenced", lambda _: order.append("look") or order.count("look") > 2)

    async def fence():
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        Fencer(lambda _: told.set(), burner=False).fence(worker)
        loop.call_soon(order.append, "promise")
        await asyncio.wait_for(told.wait(), 10)

    asyncio.run(fence())
    assert order == ["look", "promise", "look", "look"]
