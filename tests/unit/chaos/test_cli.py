"""The command line of `relume chaos`: whose option is whose, and what is refused before anything runs."""

import pytest

from relume.chaos import returning, trial
from relume.chaos.agenda import Respawn
from relume.cli.chaos import main
from relume.errors import ConfigError


@pytest.fixture
def asked(monkeypatch):
    """Return what would have been run; nothing is."""
    seen = []

    class Stop(Exception):
        pass

    def instead(job, request, folder, tell):
        seen.extend((job, request, folder))
        raise Stop

    monkeypatch.setattr(trial, "run_trial", instead)
    monkeypatch.setattr(returning, "run_return", instead)

    def ask(*arguments):
        seen.clear()
        with pytest.raises(Stop):
            main(arguments)
        return seen

    return ask


def test_options_that_are_not_its_own_go_to_the_script_in_their_order(asked, tmp_path):
    keep = str(tmp_path / "kept")
    job, request, folder = asked(
        "s.py", "--batch", "24", "--workers", "3", "--fast", "--seed", "5", "--keep", keep, "--", "--seed", "7"
    )
    assert job.command == ["s.py", "--batch", "24", "--fast", "--seed", "7", "--steps", "60"]
    assert (job.workers, request.seed, request.kills, request.control) == (3, 5, 2, True)
    assert str(folder) == keep


def test_all_options_reach_the_trial(asked, tmp_path):
    options = "--workers 5 --steps 9 --kills 4 --kill-together 2 --shards 6 --threads 2 --loss nll --no-control --keep"
    job, request, _ = asked("s.py", *options.split(), str(tmp_path / "kept"))
    assert (job.workers, job.steps, job.shards, job.threads, job.loss) == (5, 9, 6, 2, "nll")
    assert (request.kills, request.together, request.control) == (4, 2, False)


def test_the_run_of_the_issue_is_long_enough_for_all_to_come_back(asked, tmp_path):
    options = "--workers 4 --respawn --kills 8 --seed 1 --json --keep"
    job, request, _ = asked("s.py", *options.split(), str(tmp_path / "kept"))
    assert (job.workers, job.steps) == (4, 60 + 8 * 20)
    assert (request.kills, request.seed, request.respawn) == (8, 1, Respawn())


def test_all_options_about_coming_back_reach_the_trial(asked, tmp_path):
    options = "--respawn --spares 1 --mirror-every 4 --kill-all 2 --scale 2,5,3 --keep"
    job, request, _ = asked("s.py", *options.split(), str(tmp_path / "kept"))
    assert request.respawn == Respawn(spares=1, mirror_every=4, kill_all=2, scale=(2, 5, 3))
    assert (request.kills, job.steps) == (0, 60 + 5 * 40)


def test_without_respawn_nobody_comes_back(asked, tmp_path):
    job, request, _ = asked("s.py", "--keep", str(tmp_path / "kept"))
    assert (job.steps, job.options, request.respawn) == (60, ("--max-restarts", "0"), None)


@pytest.mark.parametrize("option", ["--spares=1", "--kill-all=1", "--scale=2,3", "--mirror-every=4"])
def test_what_is_about_coming_back_needs_respawn(option):
    with pytest.raises(ConfigError, match=option.partition("=")[0] + ".*needs --respawn"):
        main(["s.py", option])


@pytest.mark.parametrize("numbers", ["", "2,", "2,x", "-1,2"])
def test_numbers_of_workers_that_are_none_are_a_usage_error(numbers, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["s.py", "--respawn", f"--scale={numbers}"])
    assert stop.value.code == 2
    assert "no list of numbers of workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--respawn", "--kills", "-1"], "--kills"),
        (["--respawn", "--steps", "7"], "--steps 7"),
        (["--workers", "0"], "--workers 0"),
        (["--threads", "0"], "--threads 0"),
        (["--shards", "0"], "--shards 0"),
        (["--kills", "4"], "--kills 4"),
        (["--steps", "2"], "--steps 2"),
        (["--kill-together", "4"], "--kill-together 4"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, said, tmp_path):
    script = tmp_path / "s.py"
    script.touch()
    with pytest.raises(ConfigError, match=said):
        main([str(script), *options])


def test_a_script_that_is_not_there_is_told_with_one_that_is():
    with pytest.raises(ConfigError, match=r"no script nowhere\.py.*charlm\.py"):
        main(["nowhere.py"])


def test_records_of_two_trials_do_not_mix(tmp_path):
    (tmp_path / "old").touch()
    with pytest.raises(ConfigError, match="not empty"):
        main(["s.py", "--keep", str(tmp_path)])
