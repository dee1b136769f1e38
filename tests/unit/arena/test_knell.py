"""The kernel itself tells of a death, at its begin, and nobody has to wait for memory to be torn down."""

from __future__ import annotations

import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest

from relume.arena import knell, memory
from relume.arena.layout import ControlLayout

pytestmark = pytest.mark.skipif(not knell.supported(), reason="needs robust futexes, of Linux on a known machine")

LIMIT_S = 10.0
HANG = """
import os, sys, threading, time
from relume.arena import knell, memory
from relume.arena.layout import ControlLayout
control = ControlLayout(3)
words = memoryview(memory.attach({descriptor}, control.size)).cast("Q")
hung, leave = threading.Event(), threading.Event()
def listen():
    assert knell.hang(words, control, {rank})
    hung.set()
    leave.wait()
thread = threading.Thread(target=listen, daemon=True)
thread.start()
hung.wait()
"""


class Scene:
    """A control part of three seats, a listener, and processes that hang knells."""

    def __init__(self):
        self.control = ControlLayout(3)
        self.descriptor = memory.create("knells", self.control.size)
        self.map = memory.attach(self.descriptor, self.control.size)
        self.words = memoryview(self.map).cast("Q")
        self.tolls = queue.SimpleQueue()
        self.listener = knell.Listener(self.words, self.control, self.tolls.put)
        self.processes = []

    def start(self, rank, then="print(flush=True); time.sleep(60)"):
        """Start a process that hangs the knell of `rank` and then does something, beginning with a line."""
        code = HANG.format(descriptor=self.descriptor, rank=rank) + then
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdin=-1, stdout=-1, pass_fds=[self.descriptor], bufsize=0)
        self.processes.append(process)
        assert process.stdout.readline(), "it did not come so far"
        return process

    def close(self):
        self.listener.close()
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        self.words.release()
        self.map.close()
        os.close(self.descriptor)


@pytest.fixture
def scene():
    scene = Scene()
    scene.listener.start()
    yield scene
    scene.close()


def test_a_killed_worker_is_told_of_while_it_cannot_even_be_waited_for(scene):
    """The bell has tolled by the time a pidfd fires, which is what the kernel does last."""
    process = scene.start(1, "big = b'x' * (64 << 20); print(flush=True); time.sleep(60)")
    process.kill()
    assert scene.tolls.get(timeout=LIMIT_S) == 1
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert scene.words[knell.place(scene.control, 1)] & knell.OWNER_DIED


def test_everybody_has_a_bell(scene):
    processes = [scene.start(rank) for rank in range(3)]
    for process in processes:
        process.kill()
    assert {scene.tolls.get(timeout=LIMIT_S) for _ in range(3)} == {0, 1, 2}
    assert scene.tolls.empty()


def test_a_worker_that_lives_is_not_told_of_and_neither_is_its_data_loader(scene):
    """A forked child owns nothing of its parent's: its end is not the worker's."""
    then = "child = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)\nprint(flush=True)\ntime.sleep(60)"
    process = scene.start(0, then)
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGCONT)
    other = scene.start(2)
    other.kill()
    assert scene.tolls.get(timeout=LIMIT_S) == 2, "all that came before has been heard by now"
    assert scene.tolls.empty()


@pytest.mark.parametrize("then", ["leave.set()", "os._exit(0)", "os.execv('/bin/sleep', ['sleep', '60'])"])
def test_a_thread_that_leaves_tolls_too_so_that_the_agent_has_to_look(scene, then):
    scene.start(0, f"print(flush=True); sys.stdin.readline(); {then}; thread.join()").stdin.write(b"\n")
    assert scene.tolls.get(timeout=LIMIT_S) == 0


def test_the_next_life_of_a_seat_has_its_own_bell(scene):
    for _ in range(3):
        scene.words[knell.place(scene.control, 0)] = 0  # as every worker does with its block
        process = scene.start(0)
        process.kill()
        assert scene.tolls.get(timeout=LIMIT_S) == 0
        process.wait()
    assert scene.tolls.empty()


def test_a_death_before_anybody_listens_is_still_told():
    scene = Scene()
    try:
        process = scene.start(1)
        process.kill()
        process.wait()
        assert scene.words[knell.place(scene.control, 1)] & knell.OWNER_DIED
        scene.listener.start()
        assert scene.tolls.get(timeout=LIMIT_S) == 1
    finally:
        scene.close()


def test_closing_ends_the_thread_at_once(scene):
    scene.start(0)
    assert scene.listener.listening
    began = time.monotonic()
    scene.listener.close()
    assert time.monotonic() - began < knell.LOOK_S / 2, "it was woken, and did not wait for its next look"
    assert not scene.listener.listening
    assert "relume-knell" not in {thread.name for thread in threading.enumerate()}


def test_listening_takes_no_time(scene):
    """It is asleep in the kernel, and looks up once a second."""
    scene.start(0)
    before = time.process_time()
    assert scene.tolls.empty()
    time.sleep(1.0)  # what is measured is this second
    assert time.process_time() - before < 0.05


def test_where_the_machine_is_unknown_nobody_listens_and_nothing_fails(scene, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert not knell.hang(scene.words, scene.control, 2)
    assert scene.words[knell.place(scene.control, 2)] == 0
    listener = knell.Listener(scene.words, scene.control, scene.tolls.put)
    listener.start()
    assert not listener.listening
    listener.close()


def test_where_the_kernel_lacks_the_call_the_listener_goes(scene, monkeypatch):
    monkeypatch.setattr(knell, "_FUTEX_WAITV", 100_000)  # ENOSYS
    listener = knell.Listener(scene.words, scene.control, scene.tolls.put)
    listener.start()
    listener._thread.join(LIMIT_S)
    assert not listener.listening
    listener.close()
