"""Who is waited for has short turns, and nobody else gets them by inheritance."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading

import pytest

from relume.arena import prompt
from relume.arena.prompt import TURN_NS, be_prompt

GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}.get(platform.machine())
pytestmark = pytest.mark.skipif(sys.platform != "linux" or GETATTR is None, reason="the call is Linux's")


def attributes():
    """Return (nice, turn in nanoseconds) of the calling thread; older kernels tell no turn."""
    found = prompt._Attributes()
    assert not ctypes.CDLL(None).syscall(GETATTR, 0, ctypes.byref(found), ctypes.sizeof(found), 0)
    return found.nice, found.runtime


def in_thread(action):
    """Return what `action` returns in a thread of its own, whose attributes end with it."""
    result = []
    thread = threading.Thread(target=lambda: result.append(action()))
    thread.start()
    thread.join()
    return result[0]


def turn_in_child():
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, str(attributes()[1]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    with os.fdopen(read) as told:
        os.close(write)
        return int(told.read())


def test_a_prompt_thread_has_short_turns_and_what_it_starts_has_not():
    usual = in_thread(attributes)
    if not usual[1]:
        pytest.skip("this kernel knows no turns")
    told, nice, turn, child = in_thread(lambda: (be_prompt(), *attributes(), turn_in_child()))
    assert told
    assert (nice, turn) == (usual[0], TURN_NS)
    assert child == usual[1]
    assert in_thread(attributes) == usual, "another thread of the process"


def test_asking_twice_changes_nothing():
    assert in_thread(lambda: (be_prompt(), be_prompt(), attributes())) == in_thread(
        lambda: (be_prompt(), True, attributes())
    )


def test_a_thread_that_is_nice_stays_so():
    def nice():
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, before + 1)
        return be_prompt(), attributes()[0] - before

    assert in_thread(nice) == (True, 1)


def test_an_unknown_machine_is_no_error(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert not in_thread(be_prompt)
