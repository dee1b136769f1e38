"""The fence: whoever is out can write no more (Invariant 4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from relume.agent.fence import is_fenced, is_stopped, kill_group
from tests import processes
from tests.agents import until

THREADS = "import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, args=(60,)).start()\nprint(1)"


@pytest.fixture
def start():
    started = []

    def begin(code):
        process = subprocess.Popen(
            [sys.executable, "-S", "-u", "-c", code], stdout=subprocess.PIPE, process_group=0, bufsize=0
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        kill_group(process.pid)
        process.wait()
        process.stdout.close()


def test_a_process_is_fenced_when_every_thread_of_it_is_on_its_way_out(start):
    process = start(THREADS)
    assert not is_fenced(process.pid)
    kill_group(process.pid)
    until(lambda: is_fenced(process.pid), 5)
    assert is_fenced(process.pid)  # a zombie now, as nobody has waited for it
    process.wait()
    assert is_fenced(process.pid)  # and now it is no process at all


def test_the_group_goes_with_it(start):
    process = start("import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)")
    (child,) = [p.pid for p in processes.table().values() if p.parent == process.pid]
    kill_group(process.pid)
    until(lambda: child not in processes.table() or processes.table()[child].state == "Z", 5)


def test_a_process_that_left_its_group_is_killed_all_the_same(start):
    process = start("import os, time; os.setpgid(0, os.getpgid(os.getppid())); print(1); time.sleep(60)")
    kill_group(process.pid)
    assert process.wait(5) == -signal.SIGKILL


def test_a_stopped_process_is_fenced_like_any_other(start):
    process = start("import time; print(1); time.sleep(60)")
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: is_stopped(process.pid), 5)
    assert not is_fenced(process.pid)
    kill_group(process.pid)
    until(lambda: is_fenced(process.pid), 5)


def test_nobody_is_not_stopped_and_cannot_write():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert is_fenced(process.pid)
    assert not is_stopped(process.pid)
    kill_group(process.pid)  # and is no error


def test_it_takes_milliseconds(start):
    process = start(THREADS)
    began = time.monotonic()
    kill_group(process.pid)
    while not is_fenced(process.pid):
        assert time.monotonic() - began < 1.0
