"""The guardian alone: what it does when the pipe from its agent ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import relume.agent
from relume.agent.guard import Guard

SCRIPT = Path(relume.agent.__file__).with_name("guardian.py")


@pytest.fixture
def victim():
    process = subprocess.Popen(["sleep", "60"], process_group=0)
    yield process
    process.kill()
    process.wait()


def guard(folder, text):
    """Run a guardian whose agent (pid 7) wrote `text` and is gone; return what it said."""
    command = [sys.executable, "-I", "-S", SCRIPT, "7", folder]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=True).stderr


def test_workers_whose_agent_died_are_ended_and_told(victim, tmp_path):
    said = guard(tmp_path, f"3 {victim.pid}\n")
    assert victim.wait(1) == -9
    assert said == "relume: the agent (pid 7) died; its 1 workers have ended, 1 of them by force\n"
    log = (tmp_path / "worker-3.log").read_text()
    assert log == f"relume: worker 3 (pid {victim.pid}) was ended by force: its agent (pid 7) died\n"


def test_a_run_that_ended_well_is_nobodys_business(victim, tmp_path):
    assert guard(tmp_path, f"3 {victim.pid}\ndone\n") == ""
    assert victim.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_is_gone_is_not_looked_for(victim, tmp_path):
    said = guard(tmp_path, f"3 {victim.pid}\ngone {victim.pid}\n")
    assert victim.poll() is None
    assert "its 0 workers have ended, 0 of them by force" in said


def test_a_dead_worker_that_nobody_waited_for_is_not_waited_for(victim, tmp_path):
    """In a container whose first process reaps nobody, the dead of a dead agent stay zombies."""
    victim.kill()
    began = time.monotonic()
    said = guard(tmp_path, f"3 {victim.pid}\n")
    assert "0 of them by force" in said
    assert time.monotonic() - began < 1.0


def test_a_worker_that_has_said_it_itself_is_not_told_again(victim, tmp_path):
    words = f"relume: worker 3 (pid {victim.pid}) ends: its agent is gone, so that nobody could replace or fence it\n"
    (tmp_path / "worker-3.log").write_text("output\n" * 1000 + words)
    victim.kill()
    guard(tmp_path, f"3 {victim.pid}\n")
    assert (tmp_path / "worker-3.log").read_text().endswith("output\n" + words)


def test_a_folder_that_is_gone_keeps_nobody_alive(victim, tmp_path):
    said = guard(tmp_path / "gone", f"3 {victim.pid}\n")
    assert victim.wait(1) == -9
    assert "1 of them by force" in said


def test_the_agents_end_of_it(victim, tmp_path):
    held = Guard(tmp_path)
    held.watch(0, victim.pid)
    held.gone(victim.pid)
    held.close()
    assert victim.poll() is None


def test_a_guardian_that_was_killed_is_no_error(tmp_path):
    held = Guard(tmp_path)
    held._process.kill()
    held._process.wait()
    held.watch(0, 1)
    held.close()
