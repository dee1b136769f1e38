"""The guard that every test runs under finds what a test could leave behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def before():
    return {process.identity for process in processes.table().values()}


def test_a_child_is_found_and_killed(before):
    child = subprocess.Popen(["sleep", "60"])
    left = processes.leftovers(before, grace_s=0)
    assert [process.pid for process in left] == [child.pid]
    assert "sleep 60" in str(left[0])
    processes.kill(left)
    child.wait(timeout=10)
    assert processes.leftovers(before) == []


def test_an_orphan_is_found_though_its_parent_is_gone(before):
    parent = subprocess.run(["sh", "-c", "sleep 60 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True)
    left = processes.leftovers(before, grace_s=0)
    assert [process.pid for process in left] == [int(parent.stdout)]
    processes.kill(left)
    assert processes.leftovers(before) == []


def test_a_child_that_is_about_to_end_is_given_the_time(before):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    assert processes.leftovers(before, grace_s=30) == []
    child.wait(timeout=10)


def test_a_zombie_is_nobodys_leftover(before):
    child = subprocess.Popen(["true"])
    assert processes.leftovers(before, grace_s=10) == []
    child.wait(timeout=10)


def test_a_pid_that_was_used_again_is_not_killed(before):
    child = subprocess.Popen(["sleep", "60"])
    (left,) = processes.leftovers(before, grace_s=0)
    processes.kill([processes.Process(left.pid, left.parent, left.started - 1, left.state)])
    assert child.poll() is None
    child.kill()
    child.wait(timeout=10)
