"""A deadly signal is seen from the moment it is sent; what is not deadly is not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from relume.agent.fence import doom, is_stopped


@pytest.fixture
def process():
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture
def stat(process):
    descriptor = os.open(f"/proc/{process.pid}/stat", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_deadly_signal_is_told_at_once_and_until_the_process_is_waited_for(process, stat, number):
    assert doom(stat) == 0
    os.kill(process.pid, number)
    assert os.WTERMSIG(doom(stat)) == number
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os.WTERMSIG(doom(stat)) == number
    process.wait()
    assert doom(stat) == 0


def test_a_crash_is_told_once_the_process_is_dying_of_it(process, stat):
    """The kernel has to write a core file, or decide not to, before it is sure."""
    os.kill(process.pid, signal.SIGSEGV)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os.WTERMSIG(doom(stat)) == signal.SIGSEGV


def test_a_stopped_process_is_not_doomed(process, stat):
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not is_stopped(process.pid):
        assert time.monotonic() < deadline
    assert doom(stat) == 0
    os.kill(process.pid, signal.SIGCONT)
    assert doom(stat) == 0


def test_a_script_that_ends_by_itself_is_not_doomed(process, stat):
    process.stdin.close()  # input() raises: exit code 1
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert doom(stat) == 0
    assert process.wait() == 1


def test_no_descriptor_is_no_doom():
    assert doom(-1) == 0
