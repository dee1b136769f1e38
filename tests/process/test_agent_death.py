"""The agent is killed, or told to end: every worker ends soon, says why, and leaves nothing.

The agent is a process of its own here, and everything that it started is counted before and after.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from relume.core.coordinator import TRANSITIONS, State
from relume.core.events import Done
from tests.agents import Agent, until
from tests.training import script

LIMIT_S = 5.0


def held(folder, **options):
    """Return a script that trains until somebody ends it, and says so once it does."""

    def third(rank, step):
        if step.number == 3:
            (folder / f"trains-{rank}").touch()
        time.sleep(0.01)

    return script(folder, total=100_000, inside=third, **options)


def training(agent, folder, workers):
    agent.until(lambda: len(list(folder.glob("trains-*"))) == workers)


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108 - where others leave theirs


def gone(agent, since_s):
    """Wait until nothing of the run is there, and return how long that took from `since_s`."""
    until(lambda: not agent.running(), LIMIT_S + 5, agent.output)
    return time.monotonic() - since_s


def log(agent, rank):
    return (agent.run_dir / f"worker-{rank}.log").read_text()


# Killed -----------------------------------------------------------------------------------------------------------


def test_workers_do_not_outlive_their_agent(tmp_path):
    before = shared_memory()
    with Agent(held(tmp_path, num_workers=1), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        assert len(agent.running()) == 5  # two workers, a loader process each, and the guardian
        took = gone(agent, agent.signal(signal.SIGKILL))
        assert took < LIMIT_S
        assert agent.join() == -signal.SIGKILL
        pids = agent.workers
        for rank in range(2):
            assert f"relume: worker {rank} (pid {pids[rank]}) ends: its agent is gone" in log(agent, rank)
        assert f"the agent (pid {agent.pid}) died; its 2 workers have ended, 0 of them by force" in agent.output()
    assert shared_memory() <= before


def test_a_worker_that_cannot_see_its_agent_die_is_ended_by_the_guardian(tmp_path):
    """One is stopped, one is stuck in a C call that holds the interpreter, one has not called `relume.init` yet."""

    def stuck(rank, step):
        if step.number == 3 and rank == 1:
            (pipe, _), read, buffer = os.pipe(), ctypes.PyDLL(None).read, ctypes.create_string_buffer(1)
            (tmp_path / "trains-1").touch()
            read(pipe, buffer, 1)
        elif step.number == 3 and rank == 0:
            (tmp_path / "trains-0").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    def start(rank):
        if rank == 2:
            (tmp_path / "trains-2").touch()
            time.sleep(60)

    with Agent(script(tmp_path, inside=stuck, total=9), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        assert gone(agent, agent.signal(signal.SIGKILL)) < LIMIT_S
        assert re.search("its 2 workers have ended, [12] of them by force", agent.output())
        # The kernel wakes a stopped process group that has lost its parent, with SIGHUP: nobody needs to force it.
        # Should the agent have died in the moment before it stopped itself, it says so itself.
        # On a machine that is busy the guardian may be faster.
        ways = ("has ended", "ends", "was ended by force")
        words = [f"worker 0 (pid {agent.workers[0]}) {how}: its agent" for how in ways]
        assert any(word in log(agent, 0) for word in words)
        assert f"worker 1 (pid {agent.workers[1]}) was ended by force: its agent" in log(agent, 1)

    (tmp_path / "late").mkdir()
    with Agent(script(tmp_path, start=start, total=9), tmp_path / "late", workers=3) as agent:
        agent.until((tmp_path / "trains-2").exists)
        assert gone(agent, agent.signal(signal.SIGKILL)) < LIMIT_S
        assert "1 of them by force" in agent.output()


def test_what_the_user_started_goes_too(tmp_path):
    def start(rank):
        (tmp_path / "user").write_text(str(subprocess.Popen(["sleep", "60"]).pid))

    with Agent(held(tmp_path, start=start), tmp_path, workers=1) as agent:
        training(agent, tmp_path, 1)
        assert int((tmp_path / "user").read_text()) in agent.running()
        assert gone(agent, agent.signal(signal.SIGKILL)) < LIMIT_S


def test_a_lost_worker_is_not_ended_again_by_the_guardian(tmp_path):
    """Its process group's number may be somebody else's by then."""
    with Agent(held(tmp_path), tmp_path, workers=3) as agent:
        training(agent, tmp_path, 3)
        os.kill(agent.workers[1], signal.SIGKILL)
        agent.until(lambda: agent.events("incident"))
        assert gone(agent, agent.signal(signal.SIGKILL)) < LIMIT_S
        assert "its 2 workers have ended, 0 of them by force" in agent.output()


def test_an_agent_that_was_stopped_itself_suspects_nobody(tmp_path):
    """A paused container comes back as it was: time that nobody watched is held against nobody."""

    def sleepy(rank, step):
        if step.number == 3:
            (tmp_path / f"trains-{rank}").touch()
            time.sleep(0.8)

    with Agent(script(tmp_path, inside=sleepy), tmp_path, workers=2, hang_timeout_s=2.4) as agent:
        training(agent, tmp_path, 2)
        everybody = [*agent.workers.values(), agent.pid]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.0)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        assert agent.join() == 0
        assert agent.events("incident") == []


# Told to end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "outcome"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_the_run_cleanly_within_seconds(number, code, outcome, tmp_path):
    before = shared_memory()
    with Agent(held(tmp_path, num_workers=1), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        sent = agent.signal(number)
        assert agent.join() == code
        assert time.monotonic() - sent < 3.0
        assert agent.running() == []
        assert agent.events("run_ended")[0]["outcome"] == outcome
        assert f"{signal.Signals(number).name}: ending the run (once more: at once)" in agent.output()
        assert "Traceback" not in agent.output()
        assert agent.events("incident") == []
    assert shared_memory() <= before


def test_workers_have_a_moment_for_their_own_end_and_no_more(tmp_path):
    """One ends well when it is told to; another one does not want to."""

    def start(rank):
        def told(number, frame):
            (tmp_path / "told").touch()
            os._exit(0)

        signal.signal(signal.SIGTERM, signal.SIG_IGN if rank else told)

    with Agent(held(tmp_path, start=start), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        sent = agent.signal(signal.SIGINT)
        assert agent.join() == 130
        assert 1.0 < time.monotonic() - sent < 3.0
        assert (tmp_path / "told").exists()
        assert agent.running() == []


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    with Agent(
        held(tmp_path, start=lambda rank: signal.signal(signal.SIGTERM, signal.SIG_IGN)), tmp_path, workers=2
    ) as agent:
        training(agent, tmp_path, 2)
        sent = agent.signal(signal.SIGINT)
        agent.until(lambda: "ending the run" in agent.output())
        agent.signal(signal.SIGINT)
        assert agent.join() == 130
        assert time.monotonic() - sent < 1.0
        assert agent.running() == []


def test_a_stopped_worker_does_not_hold_the_end_up(tmp_path):
    with Agent(held(tmp_path), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        os.kill(agent.workers[1], signal.SIGSTOP)
        sent = agent.signal(signal.SIGINT)
        assert agent.join() == 130
        assert time.monotonic() - sent < 3.0
        assert agent.running() == []


def test_a_signal_before_the_first_step_ends_the_run_too(tmp_path):
    def start(rank):
        (tmp_path / f"trains-{rank}").touch()
        time.sleep(60)

    with Agent(script(tmp_path, start=start), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        agent.signal(signal.SIGTERM)
        assert agent.join() == 143
        assert agent.running() == []


def test_a_guardian_that_is_gone_or_stopped_costs_nothing(tmp_path):
    for number in (signal.SIGKILL, signal.SIGSTOP):
        folder = tmp_path / number.name
        folder.mkdir()
        with Agent(script(folder, after=lambda rank, step: time.sleep(0.1)), folder, workers=1) as agent:
            agent.until(lambda agent=agent: agent.workers)
            (guardian,) = set(agent.running()) - set(agent.workers.values())
            os.kill(guardian, number)
            assert agent.join() == 0
            assert agent.running() == []


def test_an_agent_with_a_defect_ends_the_run_and_says_so(tmp_path, monkeypatch):
    """An exception of its own in a callback must not leave workers waiting for an answer for ever."""

    def defect(self, *arguments):
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(TRANSITIONS, (State.STEADY, Done), defect)
    with Agent(script(tmp_path), tmp_path, workers=2) as agent:
        assert agent.join() == 70
        assert "defect in relume: a defect" in agent.output()
        assert agent.running() == []


def test_the_folder_of_a_killed_run_can_be_read(tmp_path):
    with Agent(held(tmp_path), tmp_path, workers=2) as agent:
        training(agent, tmp_path, 2)
        gone(agent, agent.signal(signal.SIGKILL))
        assert agent.events()[0]["kind"] == "run_started"
        assert (Path(tmp_path) / "latest").resolve() == agent.run_dir.resolve()
