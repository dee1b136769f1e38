"""Who is waited for, and who is left to those that know them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relume.agent.reaper import adopt_orphans, is_child, reap_orphans

PARENT = "import os, time\nif os.fork():\n    os._exit(0)\nos.write(1, b'up')\ntime.sleep(60)"


def made():
    """Start a process that is left behind by its parent, and return its pid."""
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-S", "-c", PARENT], stdout=write, process_group=0) as parent:
        os.close(write)
        assert os.read(read, 2) == b"up"
        listed = Path("/proc").glob("[0-9]*/stat")
        group = {int(path.parent.name) for path in listed if group_of(path) == parent.pid}
    os.close(read)
    (pid,) = group - {parent.pid}
    return pid


def group_of(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:
        return -1


@pytest.fixture
def orphan():
    """A process in the group of a dead one, adopted by this process."""
    adopt_orphans(on=True)
    try:
        pid = made()
    finally:
        adopt_orphans(on=False)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    reap_orphans()


def dies(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_dead_orphan_is_waited_for_and_a_living_one_let_be(orphan):
    assert is_child(orphan)
    assert reap_orphans() == 0
    dies(orphan)
    assert is_child(orphan)
    assert reap_orphans() == 1
    assert not is_child(orphan)
    assert reap_orphans() == 0


@pytest.mark.parametrize("group", [None, 0])
def test_a_dead_child_of_our_own_is_left_to_whoever_started_it(orphan, group):
    own = subprocess.Popen(["sleep", "60"], process_group=group)
    dies(own.pid)
    dies(orphan)
    assert reap_orphans() == 1
    assert own.wait() == -signal.SIGKILL


def test_nobody_is_adopted_at_other_times():
    pid = made()
    try:
        assert not is_child(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert reap_orphans() == 0
