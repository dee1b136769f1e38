"""`relume chaos` as a person starts it: real runs, real kills, the verdict; and trials that have to fail.

Each starts several interpreters that import torch, which is most of the time they take.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHARLM = ROOT / "examples" / "charlm.py"
SMALL = ["--batch", "16", "--width", "32", "--layers", "1", "--context", "32"]

SCRIPT = """
import argparse, os, signal, torch, relume
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps
run = relume.init(seed=0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run.protect(model=model, optimizer=optimizer)
items = [(x, x.sum().reshape(1)) for x in torch.randn(64, 8, generator=torch.Generator().manual_seed(0))]
for step in run.steps(relume.Shards(items, global_batch_size=16, shards=4, seed=0), total=steps):
    for x, y in step:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        step.log(loss=loss)
    IMPURITY
    optimizer.step()
"""

pytestmark = pytest.mark.timeout(300)


def chaos(script, *options):
    """Return (exit code, the object on stdout, stderr)."""
    command = [sys.executable, "-m", "relume", "chaos", str(script), *options, "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.fixture
def write(tmp_path):
    def write(impurity):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.replace("IMPURITY", impurity))
        return path

    return write


def test_kills_change_nothing_and_are_measured(tmp_path):
    """Seed 11: one in a backward, one from outside; then the control."""
    options = ["--workers", "3", "--steps", "16", "--kills", "2", "--seed", "11", "--keep", str(tmp_path / "kept")]
    code, said, text = chaos(CHARLM, *SMALL, *options)
    assert code == 0, text
    assert said["ok"]
    assert said["errors"] == []
    assert (said["kills"], said["steps"], said["lost_steps"], said["differing_bits"]) == (2, 16, 0, 0)
    assert said["verdict"]["ok"]
    assert said["verdict"]["differences"] == []
    assert said["baseline_step_ms"] > 0

    kills = said["per_kill"]
    assert sorted((kill["how"], kill["story"]) for kill in kills) == [("exact", "backward"), ("outside", "outside")]
    assert len({kill["rank"] for kill in kills}) == len({kill["pid"] for kill in kills}) == 2
    for kill in kills:
        assert os.WTERMSIG(kill["wait_status"]) == 9
        assert 0 < kill["detected_ms"] < kill["installed_ms"]
        assert kill["time"] > 1.7e9
    for name in ("exposed_wait_ms", "redo_ms", "raw_excess_ms", "control_excess_ms"):
        assert said[name]["values"] == [kill[name] for kill in kills]
    assert min(said["exposed_wait_ms"]["values"]) >= 0
    assert said["exposed_wait_ms"]["max"] == max(said["exposed_wait_ms"]["values"])
    # What was lost was recomputed, so redoing took time.
    assert all((kill["redo_ms"] > 0) == bool(kill["moved"]) for kill in kills)
    assert any(kill["moved"] for kill in kills if kill["phase"] == "backward")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"reference", "trial", "disturbed", "control"}


def test_a_script_that_is_not_the_same_in_a_fleet_is_found_out(write):
    """Its update depends on how many workers there are."""
    script = write("model.bias.grad += 1e-3 * (int(os.environ.get('WORLD_SIZE', '1')) > 1)")
    code, said, text = chaos(script, "--workers", "2", "--steps", "8", "--kills", "1", "--seed", "5", "--no-control")
    assert code == 1
    assert not said["ok"]
    assert said["differing_bits"] > 0
    assert said["verdict"]["differences"]
    assert said["kills"] == 1
    assert said["control_excess_ms"] is None
    assert "records and output are in" in text


def test_those_who_are_killed_come_back_and_that_is_measured_beside_a_stranger(write, tmp_path):
    """Steps are slow, so that there is time to come back."""
    script = write("import time; time.sleep(0.04)")
    options = ["--workers", "3", "--respawn", "--steps", "160", "--kills", "1", "--seed", "0"]
    code, said, text = chaos(script, *options, "--keep", str(tmp_path / "kept"))
    assert code == 0, text
    assert (said["kills"], said["recovered"], said["lost_steps"], said["differing_bits"]) == (1, 1, 0, 0)
    (kill,) = said["per_kill"]
    assert 0 < kill["respawned_ms"] < kill["level_ms"] <= kill["admitted_ms"] < kill["worked_ms"]
    assert kill["worked_ms"] <= kill["full_strength_ms"]
    assert said["kill_to_full_strength_ms"]["median"] == kill["full_strength_ms"]
    assert said["survivors_step_ratio"] > 0
    assert said["verdict"]["final_states"] == 3
    assert sum(worker["replayed"] for worker in said["verdict"]["workers"]) > 0
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"reference", "trial", "control"}


def test_a_joiner_whose_state_is_not_the_others_is_found_out(write):
    """A value that the script carries outside of what it protects: the one that comes back begins with the first."""
    script = write("import time; time.sleep(0.04); seen = globals().get('seen', 0) + 1; model.bias.grad += 1e-4 * seen")
    options = ["--workers", "3", "--respawn", "--steps", "120", "--kills", "1", "--seed", "7", "--no-control"]
    code, said, _ = chaos(script, *options, "--mirror-every", "2")
    assert said["per_kill"][0]["step"] > 8  # it comes back from a mirror, not from the start, where all are equal
    assert code == 1
    assert not said["ok"]


def test_a_worker_that_dies_by_itself_is_held_against_the_run(write):
    """One kill too many, though all bits are right."""
    script = write("if step.number == 4 and os.environ.get('RANK') == '2': os.kill(os.getpid(), signal.SIGKILL)")
    code, said, _ = chaos(script, "--workers", "3", "--steps", "8", "--kills", "0", "--no-control")
    assert code == 1
    assert said["verdict"]["ok"]
    assert said["differing_bits"] == 0
    assert ["worker 2 was lost though nobody killed it" in error for error in said["errors"]] == [True]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_trial_that_is_ended_ends_all_that_it_started(write, number, code):
    """That nothing is left is seen to by the guard around every test."""
    script = write("import time; time.sleep(0.3)")
    command = [sys.executable, "-m", "relume", "chaos", str(script), "--workers", "2", "--kills", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    with process, process.stderr:
        folder = None
        assert "reference" in process.stderr.readline()
        process.send_signal(number)
        for line in process.stderr:
            folder = line.rpartition("output are in ")[2].strip() if "output are in" in line else folder
        assert process.wait(30) == code
    if folder is not None:  # it had come so far as to write something
        shutil.rmtree(folder)


def test_a_script_that_fails_plainly_says_why_and_leaves_no_number(write):
    code, said, text = chaos(write("raise ValueError('no luck')"), "--workers", "2", "--steps", "8")
    assert (code, said) == (1, None)
    assert "run plainly, ended with exit code 1" in text
    assert "no luck" in text
