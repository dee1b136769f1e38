"""`relume bench` with the real command line: it says what it measured, and leaves nothing behind however it ends.

That no process is left is seen to by the guard around every test.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]
SMALL = ("step", "--workers", "2", "--size-mb", "1", "--quick")
STEP, ENDLESS = (*SMALL, "--pairs", "2", "--json"), (*SMALL, "--pairs", "100000", "--json")

pytestmark = pytest.mark.timeout(300)


def command(*arguments):
    return [sys.executable, "-m", "relume", "bench", *map(str, arguments)]


@pytest.fixture
def variables(tmp_path):
    """Temporary files go where the test can see whether they are gone."""
    (tmp_path / "temporary").mkdir()
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path / "temporary")}


@pytest.fixture
def bench(variables):
    def bench(*arguments):
        """Return (exit code, the object on stdout, stderr)."""
        done = subprocess.run(
            command(*arguments), env=variables, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return bench


def left_in(variables):
    return [path.name for path in Path(variables["TMPDIR"]).iterdir() if path.name.startswith("relume")]


def test_both_sides_do_the_same_work_and_it_is_told_how_long_it_took(bench, variables):
    code, said, text = bench(*STEP)
    assert code == 0, text
    assert said["ok"]
    assert [len(pair) for pair in said["pairs"]] == [2, 2]
    assert min(min(values) for values in said["all_ms"].values()) > 0
    assert set(said["median_ms"]) == {"relume", "ddp", "alone", "raw", "gloo", "memory_pass"}
    assert said["terms"]["parameter_tensors"] == said["own_time_us"]["budget"] - 300
    close = said["parameters_close"]
    assert 0 <= close["of_way"] < close["tolerance"]
    # Two workers' parameters, gradients and slots are in memory, and the arena beside them is as large as it has to be.
    arena = said["arena_mib"]
    assert (arena["slots"], arena["results"]) == (4.0, 12.0)
    assert arena["total"] == pytest.approx(sum(value for name, value in arena.items() if name != "total"), abs=0.1)
    for side in ("relume", "ddp", "bare"):
        assert said["memory"][side]["workers_mib"] > 50
    assert said["memory"]["relume"]["agent_mib"] > 0
    assert "pair 2 of 2" in text
    assert left_in(variables) == []


def test_for_people_the_ratio_comes_first(variables):
    done = subprocess.run(
        command(*STEP[:-1], "--seed", "3"), env=variables, cwd=ROOT, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("A step of relume takes ")
    assert "--quick: these figures say nothing" in done.stdout


def test_ctrl_c_ends_all_of_it_within_seconds(variables):
    with subprocess.Popen(command(*ENDLESS), env=variables, stderr=subprocess.PIPE, text=True) as process:
        until(process, "pair 1 of")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130
    assert time.monotonic() - began < 15
    assert "ended by a signal" in rest
    assert left_in(variables) == []


def test_what_it_started_ends_by_itself_when_it_is_killed(variables):
    before = {process.identity for process in processes.table().values()}
    with subprocess.Popen(command(*ENDLESS), env=variables, stderr=subprocess.PIPE, text=True) as process:
        until(process, "pair 1 of")
        process.kill()
        process.wait(30)
    assert processes.leftovers(before, grace_s=60) == []


def test_a_side_that_loses_a_process_is_an_error_and_no_figure(variables):
    """The run itself would go on with a new worker, but that one has seen no order."""
    before = {process.identity for process in processes.table().values()}
    with subprocess.Popen(
        command(*ENDLESS), env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(process, "pair 1 of")
        lines = {each.pid: processes.command_line(each.pid) for each in processes.started_since(before)}
        victims = [pid for pid, line in lines.items() if "-u -m relume.bench.ours" in line]
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        out, text = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert "of the measurement failed: process" in text
    assert left_in(variables) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["step", "--workers", "0"], "--workers 0: between 1 and 64"),
        (["step", "--size-mb", "0"], "--size-mb 0: a number of MiB, at least 0.01"),
        (["step", "--model", "gpt"], "invalid choice: 'gpt'"),
        (["step", "--model", "charlm", "--size-mb", "4"], "--size-mb: the size of charlm is its own"),
        (["step", "--size-mb", "200000"], "Use fewer --workers, or a smaller --size-mb"),
        (["step", "--pairs", "0"], "--pairs 0: at least 1"),
        (["sweep", "--pairs", "-1"], "--pairs -1: at least 1"),
        ([], "arguments are required: step|sweep"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(bench, variables, tmp_path, arguments, said):
    out = ["--out", tmp_path / "out"] if arguments[:1] == ["sweep"] else []
    code, found, text = bench(*arguments, *out)
    assert (code, found) == (2, None)
    assert said in text
    assert "Traceback" not in text
    assert left_in(variables) == []


def test_a_sweep_writes_its_points_and_draws_them(bench, tmp_path):
    code, said, text = bench("sweep", "--quick", "--pairs", "1", "--out", tmp_path / "out", "--json")
    assert code == 0, text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "sweep.json", "step-by-size.svg", "step-by-workers.svg",
    }  # fmt: skip
    assert len(said["points"]) == 3
    code, again, text = bench("sweep", "--quick", "--pairs", "1", "--out", tmp_path / "out", "--json", "--resume")
    assert code == 0, text
    assert "3 of them measured already" in text
    assert again["points"] == said["points"]


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (["--workers", "4", "--size-mb", "16"], 0.80),
        (["--workers", "4", "--size-mb", "64"], 0.80),
        (["--workers", "2", "--size-mb", "64"], 0.80),
    ],
)
def test_a_step_takes_at_most_four_fifths_of_ddp_s(bench, arguments, most):
    """The goal, on a quiet machine."""
    code, said, text = bench("step", *arguments, "--json")
    assert code == 0, text
    assert said["relume_over_ddp"]["median"] <= most


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["charlm", "tiny-1000"])
def test_small_models_pay_two_percent_at_most(bench, model):
    code, said, text = bench("step", "--model", model, "--json")
    assert code == 0, text
    assert said["relume_over_ddp"]["high"] <= 1.02


def until(process, words):
    """Read what it tells until it says `words`."""
    told = []
    for line in process.stderr:
        told.append(line)
        if words in line:
            return
    pytest.fail("".join(told))
