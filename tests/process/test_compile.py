"""`torch.compile` takes the same code path on every worker: a fleet's bits are those of a plain run."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch, relume
run = relume.init(seed=0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = torch.compile(net, backend="aot_eager", dynamic=False)
optimizer = torch.optim.AdamW(model.parameters())
run.protect(model=model, optimizer=optimizer)
sizes = int(sys.argv[1])
data = relume.Shards(lambda t, s: torch.ones(2 + (t * 4 + s) % sizes, 8), shards=4)
for step in run.steps(data, total=4):
    for x in step:
        loss = model(x).square().mean()
        loss.backward()
        step.log(loss=loss)
    optimizer.step()
    if step.is_main:
        print(step.number, step.mean("loss").hex(), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_compiled_fleet_that_loses_a_worker_has_the_bits_of_a_plain_compiled_run(script, tmp_path):
    plain = subprocess.run([sys.executable, script, "1"], capture_output=True, text=True, timeout=100, check=False)
    assert plain.returncode == 0, plain.stderr
    trap = '[{"rank": 1, "step": 2, "phase": "backward", "nth": 0}]'
    fleet = subprocess.run(
        [sys.executable, "-m", "relume", "run", "--workers", "2", "--run-dir", tmp_path / "run", script, "1"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "RELUME_TRAPS": trap},
    )
    assert fleet.returncode == 0, fleet.stderr
    assert fleet.stdout.replace("[0] ", "") == plain.stdout


def test_a_recompile_limit_is_an_error_and_no_silent_fall_to_eager(script):
    result = subprocess.run([sys.executable, script, "16"], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 1
    assert "recompile_limit" in result.stderr
