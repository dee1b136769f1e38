"""`relume run`: what its flags become."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from relume.cli import run
from relume.cli.main import main
from relume.cli.torchrun import advice
from relume.errors import ConfigError


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def settings(*arguments):
    return run.settings_from(run.parser().parse_args(arguments))


def test_the_defaults(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(run, "_listdir", lambda path: [])
    made = settings("train.py")
    assert (made.workers, made.shards, made.threads, made.min_workers, made.hang_timeout_s) == (6, None, 1, 1, 300.0)
    assert made.run_dir == tmp_path / "relume-runs" / made.run_id
    assert made.command[-1] == "train.py"
    assert made.environment == {}
    assert not made.burner


def test_one_worker_per_gpu_where_there_are_some(monkeypatch):
    monkeypatch.setattr(run, "_listdir", lambda path: ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"])
    assert settings("train.py").workers == 2
    assert settings("--workers", "auto", "train.py").workers == 2
    assert settings("--nproc-per-node", "gpu", "train.py").workers == 2


@pytest.mark.parametrize("flag", ["--workers", "--nproc-per-node", "--nproc_per_node"])
def test_workers_go_by_torchruns_names_too(flag, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert settings(flag, "3", "train.py").workers == 3
    assert settings(f"{flag}=3", "train.py").workers == 3
    assert settings(flag, "cpu", "train.py").workers == 6


def test_what_follows_the_script_is_the_scripts():
    made = settings("--workers", "2", "train.py", "--workers", "3", "-m", "--debug", "-x")
    assert made.workers == 2
    assert made.command[-6:] == ("train.py", "--workers", "3", "-m", "--debug", "-x")


def test_a_module_need_not_be_a_file():
    assert settings("-m", "package.train", "--lr", "1").command[-4:] == ("-m", "package.train", "--lr", "1")
    with pytest.raises(
        ConfigError, match=r"there is no script package\.train\. Give a path, or -m and a module's name"
    ):
        settings("package.train")


def test_folders_are_the_persons_own(tmp_path):
    made = settings("--run-dir", "mine", "--record", "proof", "train.py")
    assert made.run_dir == tmp_path / "mine"
    assert made.environment == {"RELUME_RECORD": str(tmp_path / "proof")}


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_it_says_what_it_needs(platform, monkeypatch, capsys):
    monkeypatch.setattr(run.sys, "platform", platform)
    assert main(["run", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "`relume run` needs Linux" in said
    assert "run the script with plain `python`: a run of one worker, same bits" in said


def test_a_torch_that_is_too_old_is_told_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(metadata, "version", lambda name: "2.12.0")
    assert main(["run", "train.py"]) == 2
    assert "relume needs torch 2.13 or newer; 2.12.0 is installed" in capsys.readouterr().err
    assert not Path("relume-runs").exists()


def test_advice_on_torchruns_flags():
    said = advice("unrecognized arguments: --nnodes --rdzv_backend=c10d --start-method --mine")
    assert [line.split()[0] for line in said.splitlines() if line] == ["--nnodes", "--rdzv-backend", "--start-method"]
    assert advice("unrecognized arguments: --mine") == ""


def test_every_flag_explains_itself():
    for action in run.parser()._actions:
        assert action.help
