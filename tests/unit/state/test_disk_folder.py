"""What is kept of a folder of checkpoints, and what is never touched in it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.state import folder, manifest
from tests.unit.state import states

TINY = {"model": {"weight": torch.ones(2)}}


def test_the_newest_are_kept_and_latest_is_never_removed(tmp_path):
    for step in (8, 16, 24, 32, 40):
        states.save(tmp_path, step, TINY)
        folder.tidy(tmp_path, 3)
    assert folder.steps(tmp_path) == [40, 32, 24]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("step-00000024")
    states.save(tmp_path, 48, TINY)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("step-00000024")
    assert folder.tidy(tmp_path, 1).steps == [32, 40]
    assert folder.steps(tmp_path) == [48, 24]


def test_a_broken_one_does_not_count_and_goes_once_newer_ones_are_enough(tmp_path):
    for step in (8, 16, 24):
        states.save(tmp_path, step, TINY)
    (tmp_path / "step-00000016" / "skeleton").unlink()
    assert folder.tidy(tmp_path, 2).steps == []  # 24 and 8 are the whole ones
    assert folder.tidy(tmp_path, 1, broken=[24]).steps == []  # 24 looks whole and is not: 8 is all there is
    states.save(tmp_path, 32, TINY)
    assert folder.tidy(tmp_path, 2).steps == [8, 16]
    assert folder.steps(tmp_path) == [32, 24]


def test_what_it_does_not_know_as_its_own_is_left_alone(tmp_path):
    for step in (8, 16, 24, 32):
        states.save(tmp_path, step, TINY)
    (tmp_path / "step-00000008" / "notes.txt").write_text("the good one")
    (tmp_path / "step-00000016" / "manifest.json").unlink()  # whose is it now?
    mine = {
        "step-00000001": "a file",
        "step-1": None,
        "step-00000002": None,
        "best": None,
        ".partial-x": None,
        "thesis.tex": "text",
    }
    for name, text in mine.items():
        if text is None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "inside").write_text(name)
        else:
            (tmp_path / name).write_text(text)
    (tmp_path / "step-00000003").symlink_to("best")
    assert folder.tidy(tmp_path, 1).steps == [24]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*mine, "step-00000003", "step-00000008", "step-00000016", "step-00000032", "latest"}
    assert (tmp_path / "best" / "inside").read_text() == "best"


def test_a_checkpoint_that_is_being_written_is_no_leftover(tmp_path):
    partial = folder.Partial(tmp_path, 8)
    (partial.path / "half").write_text("of it")
    assert folder.tidy(tmp_path, 3).leftovers == 0
    assert (partial.path / "half").exists()
    partial.discard()
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_the_dead_are_cleared(tmp_path):
    code = """
import os, sys
from pathlib import Path
from relume.state import folder
partial = folder.Partial(Path(sys.argv[1]), 8)
(partial.path / "half").write_text("of it")
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False, env=environment)
    (tmp_path / ".latest-4711").symlink_to("step-00000008")
    (tmp_path / ".partial-00000000-4711").write_text("a probe")
    assert folder.leftovers(tmp_path) == 2
    assert folder.tidy(tmp_path, 3).leftovers == 3
    assert list(tmp_path.iterdir()) == []


def test_two_writers_know_of_each_other(tmp_path):
    first = folder.Lock(tmp_path)
    with pytest.raises(BlockingIOError):
        folder.Lock(tmp_path)
    first.release()
    folder.Lock(tmp_path).release()


@given(
    whole=st.sets(st.integers(1, 40)),
    broken=st.sets(st.integers(1, 40)),
    keep=st.integers(1, 5),
    named=st.none() | st.integers(1, 40),
)
def test_retention_keeps_enough(whole, broken, keep, named):
    broken -= whole
    gone = folder.superfluous(whole, broken, keep, named)
    left = whole - set(gone)
    assert named not in gone
    assert sorted(left - {named})[-keep:] == sorted(left - {named})  # no more than are asked for, but `latest`
    assert sorted(whole)[-keep:] == sorted(left)[-keep:]  # the newest of all
    assert set(gone) <= whole | broken
    if len(whole) >= keep:
        assert all(step > sorted(whole)[-keep] for step in broken - set(gone) - {named})
    assert folder.superfluous(left, broken - set(gone), keep, named) == []


def test_looking_is_quick_and_sees_what_a_crash_leaves(tmp_path):
    path = states.save(tmp_path, 8, TINY).path
    assert folder.fault(path) is None
    with (path / "__0_0.distcp").open("r+b") as file:
        file.truncate(100)
    assert folder.fault(path).startswith("__0_0.distcp is cut short (100 bytes where ")
    (path / manifest.MANIFEST).write_bytes(b"")
    assert folder.fault(path).startswith("manifest.json is damaged")
    assert folder.fault(tmp_path / "nowhere") == "there is no such folder"


def test_no_torch_is_needed_to_look(tmp_path):
    """The agent and `relume checkpoint ls` have none."""
    code = "import sys, relume.state.folder, relume.state.errands, relume.agent.keeper; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
