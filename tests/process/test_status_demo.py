"""`relume status` of runs that live, that ended, and whose agent was killed; and `relume demo`, shortened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import relume
from relume.agent.status import ask
from relume.wire.events import WorkerLost
from tests.fleet import run_fleet


def relume_command(*words, cwd, check=True, timeout_s=60):
    """Run `relume` with these words as a person would and return what it did."""
    command = [sys.executable, "-m", "relume", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def train(gate):
    """Take six small steps, waiting before the fifth until somebody opens `gate`, a named pipe."""
    run = relume.init(seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.protect(model=model, optimizer=optimizer)
    data = relume.Shards(torch.utils.data.TensorDataset(torch.arange(32.0).view(8, 4)), global_batch_size=8, shards=4)
    for step in run.steps(data, total=6):
        if step.number == 4:
            gate.read_bytes()
        for (batch,) in step:
            model(batch).sum().backward()
        optimizer.step()


def test_a_live_run_is_asked_and_an_ended_one_is_read(tmp_path):
    gates = {rank: tmp_path / f"gate-{rank}" for rank in range(3)}
    for gate in gates.values():
        os.mkfifo(gate)
    told, askers = [], []

    def look(folder):
        try:
            hows = (["--json"], [])
            told.extend(relume_command("status", folder, *how, cwd=tmp_path, check=False) for how in hows)
        finally:
            for rank in (0, 2):
                gates[rank].write_bytes(b"go on")

    def on_event(event):
        if isinstance(event, WorkerLost) and not askers:  # asked from beside the agent's loop, as it would be in life
            (folder,) = tmp_path.glob("run-*[0-9a-f]")
            askers.append(threading.Thread(target=look, args=(folder,), daemon=True))
            askers[0].start()

    torch.set_num_threads(1)  # as in a worker: this process is forked
    traps = [{"rank": 1, "step": 2, "phase": "backward"}]
    result = run_fleet(lambda rank: train(gates[rank]), workers=3, traps=traps, tmp_path=tmp_path, watcher=on_event)
    assert result.exit_code == 0, result.output
    askers[0].join(timeout=10)
    as_json, as_text = told
    live = json.loads(as_json.stdout)
    assert (live["standing"], live["state"], live["total"], live["shards"]) == ("live", "steady", 6, 4)
    assert live["agent_pid"] == os.getpid()
    assert live["view"]["members"] == [0, 2]
    assert [worker["state"] for worker in live["workers"]] == ["in", "lost", "in"]
    assert 2 <= live["step"] <= 4
    assert [incident["rank"] for incident in live["incidents"]] == [1]
    assert "live, training" in as_text.stdout
    assert "worker 1 (pid" in as_text.stdout

    ended = json.loads(relume_command("status", result.run_dir, "--json", cwd=tmp_path).stdout)
    assert (ended["standing"], ended["outcome"], ended["exit_code"]) == ("ended", "completed", 0)
    assert (ended["step"], ended["total"]) == (6, 6)
    assert [incident["phase"] for incident in ended["incidents"]] == ["backward"]
    text = relume_command("status", "latest", "--run-dir-root", tmp_path, cwd=tmp_path).stdout
    assert f"run {ended['run']}: completed, exit code 0: every step is done" in text
    assert "in backward of step 2" in text


def test_a_run_whose_agent_was_killed_is_told_as_dead(tmp_path):
    (tmp_path / "sleeper.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "relume", "run", "--workers", "1", "sleeper.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as agent:
        assert "up" in agent.stdout.readline()
        live = json.loads(relume_command("status", "--json", cwd=tmp_path).stdout)
        assert (live["standing"], live["state"], live["agent_pid"]) == ("live", "forming", agent.pid)
        agent.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert ask(live["run"], timeout_s=0.1) is None  # bounded, as every wait
        assert time.monotonic() - start < 5
        agent.kill()
    text = relume_command("status", cwd=tmp_path).stdout
    assert f"run {live['run']}: dead: its agent (pid {agent.pid}) is not there any more" in text
    assert json.loads(relume_command("status", "--json", cwd=tmp_path).stdout)["standing"] == "dead"
    watched = relume_command("status", "--watch", cwd=tmp_path).stdout  # there is nothing to watch: told at once
    assert watched == text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nobody"], "relume status: there is no run 'nobody': relume-runs holds none. Start one"),
        (["--json", "--watch"], "not allowed with argument"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(tmp_path, words, error):
    done = relume_command("status", *words, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)  # 15 s on two quiet cores, most of it spent on importing torch four times
def test_the_demo_kills_tells_and_finds_every_bit_the_same(tmp_path):
    words = ["--steps", 6, "--workers", 2, "--kills", 1, "--seed", 7, "--json"]
    done = relume_command("demo", *words, cwd=tmp_path, timeout_s=280)
    told = json.loads(done.stdout)
    assert (told["ok"], told["kills"], told["steps"], told["lost_steps"], told["differing_bits"]) == (True, 1, 6, 0, 0)
    (kill,) = told["per_kill"]
    assert (kill["wait_status"], kill["how"]) == (9, "outside")
    assert f"worker {kill['rank']} killed (SIGKILL) in {kill['phase']} of step {kill['step']}" in done.stderr
    assert "1 of 2 workers was killed without warning." in done.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())  # it leaves nothing behind


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--workers", 1], "--kills 0: at least 1"),
        (["--kills", 4], "--kills 4"),
        (["--steps", 2], "--steps 2: at least 4"),
    ],
)
def test_a_demo_that_cannot_be_is_refused_in_a_line(tmp_path, words, error):
    done = relume_command("demo", *words, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert f"relume demo: {error}" in done.stderr
    assert "Traceback" not in done.stderr
