"""The background thread: what it sets up before it listens, and how it answers whatever the script does."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

import pytest

from relume.train.link import SWITCH_S, Link
from relume.train.standing import Standing
from relume.wire.framing import Decoder, encode
from relume.wire.messages import Ask, FromWorker, Promised


@pytest.fixture
def interval():
    before = sys.getswitchinterval()
    yield sys.setswitchinterval
    sys.setswitchinterval(before)


@contextlib.contextmanager
def linked(standing=None, first=None):
    """A link that listens, and the agent's end of its connection."""
    agent, ours = socket.socketpair()
    agent.settimeout(10)
    link = Link(ours, standing or Standing(0, None), None)
    if first is not None:
        link.first = first
    with agent:
        link.start()
        try:
            yield agent
        finally:
            link.leave()


def answer(agent):
    decoder = Decoder(FromWorker)
    while not (messages := decoder.feed(agent.recv(1 << 16))):
        pass
    return messages


def test_a_ballot_is_promised_while_the_script_computes_without_a_pause(interval):
    """The script never lets go of the interpreter by itself: it has to be asked for it, and 5 ms are a long time."""
    interval(0.005)
    standing = Standing(0, None)
    with linked(standing) as agent:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S, abs=1e-5)
        agent.send(encode(Ask((1, 7))))
        end = time.monotonic() + 10
        while standing._promised < (1, 7):
            assert time.monotonic() < end
        assert answer(agent) == [Promised((1, 7))]


def test_a_shorter_interval_that_the_script_has_set_stays(interval):
    interval(0.0001)
    with linked():
        assert sys.getswitchinterval() == pytest.approx(0.0001, abs=1e-5)


def test_what_comes_first_is_done_in_the_thread_that_listens_before_it_does(interval):
    interval(0.005)
    done = []

    def first():
        done.append((threading.current_thread().name, standing._promised))

    standing = Standing(0, None)
    with linked(standing, first) as agent:
        agent.send(encode(Ask((1, 1))))
        assert answer(agent) == [Promised((1, 1))]
    assert done == [("relume-link", (0, 0))]
