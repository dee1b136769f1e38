"""`--resume`: everything is killed at a random moment, and the run that goes on from the disk has the same bits."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relume
from tests.agents import Agent
from tests.training import at, plain, script

TOTAL = 40
EVERY = {"mirror_every": 3, "max_restarts": 4, "hang_timeout_s": 20.0}


def slowly(rank: int, step: relume.Step) -> None:
    """Take long enough that a moment within the run can be met."""
    del rank, step
    time.sleep(0.03)


def waiting_for_a_checkpoint(folder: Path) -> Callable[[int, relume.Step], None]:
    """Go no further than half way before there is a checkpoint: on a busy machine it takes seconds."""

    def after(rank: int, step: relume.Step) -> None:
        slowly(rank, step)
        while step.number == TOTAL // 2 and not checkpoints(folder):
            time.sleep(0.01)

    return after


def fleet(folder: Path, name: str, *, workers: int = 3, body: Any = None, **options: Any) -> Agent:
    """An agent whose workers train slowly and whose checkpoints go to `folder`/checkpoints."""
    (folder / name).mkdir()
    settings = {**EVERY, "checkpoint_dir": folder / "checkpoints", "checkpoint_every_steps": 3, **options}
    return Agent(body or script(folder, total=TOTAL, after=slowly), folder / name, workers=workers, **settings)


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints so far, oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"))


def kill_everything(agent: Agent) -> None:
    """As a power cut does: the agent first, then all that it has started."""
    ours = agent.running()
    os.kill(agent.pid, signal.SIGKILL)
    for pid in ours:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.join()


def finals(folder: Path) -> set[str]:
    """The digests that workers came to."""
    return {path.read_text().split()[0] for path in folder.glob("digest-*")}


def resumed(folder: Path, *, workers: int) -> None:
    """Go on from the newest checkpoint to the end: the bits are a plain run's."""
    assert not finals(folder)
    with fleet(folder, "second", workers=workers, resume=True) as agent:
        assert agent.join(60.0) == 0, agent.output()
        first = agent.events("view_installed")[0]
    assert first["step"] > 0, "it began anew"
    assert finals(folder) == {plain(TOTAL)}


def killed_at_a_random_moment(folder: Path, seed: int) -> None:
    """One run that is killed somewhere after its first checkpoint, and the one that goes on."""
    dice = random.Random(f"resume {seed}")
    body = script(folder, total=TOTAL, after=waiting_for_a_checkpoint(folder))
    with fleet(folder, "first", body=body) as agent:
        agent.until(lambda: checkpoints(folder), 60.0)
        time.sleep(dice.uniform(0.0, 0.6))
        assert not finals(folder), "the run was over before it was killed"
        kill_everything(agent)
    resumed(folder, workers=dice.choice([1, 2, 3, 5]))


@pytest.mark.parametrize("seed", range(3))
def test_everything_killed_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    killed_at_a_random_moment(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_everything_killed_at_twenty_random_moments(tmp_path: Path, seed: int) -> None:
    killed_at_a_random_moment(tmp_path, seed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_run_leaves_a_checkpoint_of_its_newest_mirror(tmp_path: Path, number: int) -> None:
    with fleet(tmp_path, "first", checkpoint_every_steps=1000) as agent:
        agent.until(lambda: agent.events("mirrored"), 60.0)
        agent.signal(number)
        assert agent.join(60.0) == (130 if number == signal.SIGINT else 143), agent.output()
    assert len(checkpoints(tmp_path)) == 1, agent.output()
    resumed(tmp_path, workers=2)


def test_below_the_minimum_for_too_long_leaves_a_checkpoint(tmp_path: Path) -> None:
    body = script(tmp_path, total=TOTAL, after=slowly, inside=at(1, 9, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    options = {"min_workers": 3, "max_restarts": 0, "checkpoint_every_steps": 1000, "body": body}
    with fleet(tmp_path, "first", **options) as agent:
        assert agent.join(60.0) == 7, agent.output()
    assert len(checkpoints(tmp_path)) == 1, agent.output()
    resumed(tmp_path, workers=3)


def test_another_script_is_refused(tmp_path: Path) -> None:
    with fleet(
        tmp_path, "first", body=script(tmp_path, total=TOTAL, after=waiting_for_a_checkpoint(tmp_path))
    ) as agent:
        agent.until(lambda: checkpoints(tmp_path), 60.0)
        kill_everything(agent)
    other = script(tmp_path, total=TOTAL, after=slowly, global_batch_size=12)
    with fleet(tmp_path, "second", resume=True, body=other) as agent:
        assert agent.join(60.0) == 4, agent.output()
    assert "is of another script" in agent.output()
    assert "relume checkpoint export" in agent.output()
