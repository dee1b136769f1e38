"""`relume run` as a person types it: a process of its own, and workers that are fresh interpreters.

What needs no training is tested with scripts that do not import torch, which start in a fraction of the time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import msgspec
import pytest
import torch

from relume.agent.settings import EXIT_CODES
from relume.agent.status import ask
from relume.wire.events import SCHEMA, Line, RunEnded, RunStarted, ViewInstalled, WorkerLost, WorkerStarted
from tests import processes
from tests.agents import until

RELUME = (sys.executable, "-m", "relume")

TRAINING = """
    import hashlib, os, sys, time
    import torch
    import relume

    print("arguments", sys.argv[1:], __name__, flush=True)
    run = relume.init(seed=1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    run.protect(model=model, optimizer=optimizer)
    data = relume.Shards(torch.arange(64.0).view(16, 4), global_batch_size=8)
    for step in run.steps(data, total=40):
        for batch in step:
            loss = model(batch).square().mean()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        if os.path.exists("slowly"):
            open(f"step-{step.number}", "w").close()
            time.sleep(0.05)
    print("bits", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
    print("is main:", run.is_main, file=sys.stderr)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder of its own; return a function that writes a script into it."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="train.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write


def run(*arguments, **options):
    """Run a command to its end."""
    return subprocess.run([*RELUME, *arguments], capture_output=True, text=True, timeout=100, check=False, **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Run the training script with plain Python, and return the line with its bits."""
    path = tmp_path_factory.mktemp("plain") / "train.py"
    path.write_text(textwrap.dedent(TRAINING))
    environment = {**os.environ, "RELUME_SHARDS": "4"}
    result = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=True)
    return next(line for line in result.stdout.splitlines() if line.startswith("bits"))


def start(*arguments):
    """Start a command that leads a process group, as in a shell."""
    return subprocess.Popen(
        [*RELUME, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def latest(tmp_path):
    """The folder of the newest run."""
    return (tmp_path / "relume-runs" / "latest").resolve()


def events(folder):
    """The run's events, decoded by the published structs."""
    lines = [msgspec.json.decode(line, type=Line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
    assert {line.v for line in lines} == {SCHEMA}
    assert [line.mono_ns for line in lines] == sorted(line.mono_ns for line in lines)
    return [line.event for line in lines]


def kinds(found, kind):
    return [event for event in found if isinstance(event, kind)]


# A run ------------------------------------------------------------------------------------------------------------


def test_a_run_and_all_that_it_leaves(here, plain, tmp_path):
    here(TRAINING)
    result = run("run", "--standalone", "--nproc-per-node", "2", "--shards", "4", "train.py", "--lr", "3", "-x")
    assert result.returncode == 0, result.stderr

    out, err = result.stdout.splitlines(), result.stderr.splitlines()
    assert sorted(line for line in out if "arguments" in line) == [
        f"[{rank}] arguments ['--lr', '3', '-x'] __main__" for rank in range(2)
    ]
    assert sorted(line for line in err if "main:" in line) == ["[0] is main: True", "[1] is main: False"]
    bits = {line.partition(" ")[2] for line in out if "bits" in line}
    assert f"[completed]; folder {latest(tmp_path)}" in err[-1]

    folder = latest(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"events.jsonl", "run.json", "worker-0.log", "worker-1.log"}
    for rank in range(2):
        log = (folder / f"worker-{rank}.log").read_text().splitlines()
        assert log[0].startswith("arguments")
        assert log[-1] == f"is main: {rank == 0}"

    record = json.loads((folder / "run.json").read_text())
    assert record["run"] == folder.name
    assert (record["workers"], record["threads"], record["shards"], record["steps"]) == (2, 1, 4, 40)
    assert record["command"][-4:] == ["train.py", "--lr", "3", "-x"]
    assert record["numerics"]["torch"] == torch.__version__
    assert record["numerics"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert record["numerics"]["python_hash_seed"] == "0"

    found = events(folder)
    assert isinstance(found[0], RunStarted)
    assert found[-1] == RunEnded("completed", "every step is done", 0)
    assert len(kinds(found, WorkerStarted)) == 2
    (view,) = kinds(found, ViewInstalled)
    assert (view.members, view.assigned) == ((0, 1), ((0, 1), (2, 3)))

    assert bits == {plain}


def test_a_worker_killed_by_hand_changes_nothing_and_is_told(here, plain, tmp_path):
    here(TRAINING)
    (tmp_path / "slowly").touch()
    with start("run", "--workers", "2", "--shards", "4", "--run-dir", "here", "train.py") as process:
        until((tmp_path / "step-5").exists, 60)
        status = ask(next(iter(kinds(events(tmp_path / "here"), RunStarted))).run)
        assert (status.state, status.total, len(status.workers)) == ("steady", 40, 2)
        os.kill(status.workers[0].pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert plain in output
    assert "[1] is main: True" in output  # the other one is main from then on
    (loss,) = kinds(events(tmp_path / "here"), WorkerLost)
    assert (loss.rank, loss.cause, loss.wait_status, loss.pid) == (0, "signal", 9, status.workers[0].pid)
    (told,) = [line for line in output.splitlines() if line.startswith("relume: worker 0")]
    assert "it was killed by signal 9 (SIGKILL)" in told
    assert "view 1.2 after" in told


# The environment --------------------------------------------------------------------------------------------------


def test_workers_have_torchruns_environment(here):
    here("""
        import json, os
        print(json.dumps(dict(os.environ)))
    """)
    result = run("run", "--workers", "2", "--threads", "3", "train.py", env={**os.environ, "MINE": "yes", "RANK": "9"})
    lines = sorted(result.stdout.splitlines())
    for rank, line in enumerate(lines):
        variables = json.loads(line.removeprefix(f"[{rank}] "))
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "100",
            "OMP_NUM_THREADS": "3",
            "PYTHONHASHSEED": "0",
            "MINE": "yes",
        }
        assert {name: variables.get(name) for name in expected} == expected
        assert int(variables["MASTER_PORT"]) > 1023
        assert variables["TORCHELASTIC_RUN_ID"] == variables["RELUME_RUN_ID"]
    assert len(lines) == 2


def test_a_module_is_run_by_its_name(here, tmp_path):
    (tmp_path / "package").mkdir()
    here("", "package/__init__.py")
    here("import sys; print(__name__, __package__, sys.argv[1:])", "package/train.py")
    result = run("run", "--workers", "1", "-m", "package.train", "--steps", os.fsdecode(b"\xff"))
    assert result.stdout == "[0] __main__ package ['--steps', '\\udcff']\n"
    assert result.returncode == 3
    assert run("run", "--workers", "1", "-m", "package.nothing").returncode == 1


def test_debug_is_one_worker_with_the_terminals_input(here, tmp_path):
    here("""
        import os
        x = 41
        breakpoint()
        print("x is", x, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["RELUME_SHARDS"])
    """)
    result = run("run", "--workers", "4", "--shards", "6", "--debug", "train.py", input="x += 1\ncontinue\n")
    assert result.returncode == 0, result.stderr
    assert "x is 42 0 1 6" in result.stdout
    assert not (tmp_path / "relume-runs").exists()


# What cannot work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "required: script.py"),
        (["run", "nothere.py"], "there is no script nothere.py. Give a path, or -m and a module's name"),
        (["run", "--workers", "0", "train.py"], "'0' is not a number of workers: a whole number from 1, or auto"),
        (["run", "--workers", "two", "train.py"], "'two' is not a number of workers"),
        (["run", "--shards", "0", "train.py"], "--shards 0: between 1 and 4095"),
        (["run", "--shards", "5000", "train.py"], "--shards 5000: between 1 and 4095"),
        (["run", "--threads", "0", "train.py"], "--threads 0: at least 1"),
        (["run", "--hang-timeout", "0", "train.py"], "--hang-timeout 0.0: a number of seconds above 0"),
        (["run", "--hang-timeout", "nan", "train.py"], "--hang-timeout nan: a number of seconds above 0"),
        (["run", "--workers", "2", "--min-workers", "3", "train.py"], "between 1 and --workers, which is 2"),
        (["run", "--nnodes", "2", "train.py"], "--nnodes is torchrun's: here a run is on one host. Leave it out"),
        (["run", "--monitor_interval=3", "train.py"], "--monitor-interval is torchrun's: here lost workers"),
        (["run", "--wrokers", "2", "train.py"], "unrecognized arguments: --wrokers"),
        (["walk"], "invalid choice: 'walk'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_says_what_to_do(arguments, words, here, capsys):
    from relume.cli.main import main

    here("pass")
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == EXIT_CODES["usage"] == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_it_says_its_version_and_its_exit_codes():
    from relume.version import __version__

    assert run("--version").stdout == f"relume {__version__}\n"
    said = " ".join(run("run", "--help").stdout.split())
    for name, code in EXIT_CODES.items():
        assert f"{code} {name}" in said


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("print('hello')", 3, "the script ended without calling run.steps()"),
        (
            "if True print('hello')",
            1,
            "the script failed in all 2 workers: its script ended with exit code 1 (SyntaxError",
        ),
        ("raise ValueError('a mistake')", 1, "exit code 1 (ValueError: a mistake)"),
        ("import sys; sys.exit(3)", 1, "its script ended with exit code 3"),
        ("import sys; sys.exit('no data')", 1, "exit code 1 (no data)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 6, "no worker is left: it was killed by signal 9"),
    ],
    ids=["no steps", "syntax error", "raises", "exits with 3", "exits with words", "killed"],
)
def test_scripts_that_never_train(text, code, words, here, tmp_path):
    here(text)
    result = run("run", "--workers", "2", "train.py")
    assert result.returncode == code, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("relume: ")
    assert words in last
    assert kinds(events(latest(tmp_path)), RunEnded)[0].exit_code == code


def test_a_used_folder_is_refused_before_anything_starts(here, tmp_path):
    here("print('hello')")
    assert run("run", "--workers", "1", "--run-dir", "mine", "train.py").returncode == 3
    before = (tmp_path / "mine" / "events.jsonl").read_bytes()
    result = run("run", "--workers", "1", "--run-dir", "mine", "train.py")
    assert (result.returncode, result.stdout) == (2, "")
    assert "holds another run: choose another --run-dir, or remove it" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "mine" / "events.jsonl").read_bytes() == before


# How it ends ------------------------------------------------------------------------------------------------------

SLEEP = "import time; print('here', flush=True); time.sleep(60)"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_it_within_seconds(number, code, here, tmp_path):
    """To the whole foreground process group, as a terminal sends it: the workers are not in it."""
    here(SLEEP)
    with start("run", "--workers", "2", "train.py") as process:
        until((tmp_path / "relume-runs" / "latest" / "worker-1.log").exists)
        began = time.monotonic()
        os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=10)
        assert time.monotonic() - began < 3.0
    assert process.returncode == code
    assert "Traceback" not in output
    assert output.splitlines()[-1].startswith(f"relume: the run was ended by {number.name}")
    assert kinds(events(latest(tmp_path)), RunEnded)[0].exit_code == code


def test_a_killed_agent_leaves_nothing(here, tmp_path):
    here(SLEEP)
    before = {process.identity for process in processes.table().values()}
    with start("run", "--workers", "2", "train.py") as process:
        until((tmp_path / "relume-runs" / "latest" / "worker-1.log").exists)
        process.kill()
        output, _ = process.communicate(timeout=10)  # the guardian has the terminal, and gives it back when all is done
    assert "its 2 workers have ended" in output
    assert processes.leftovers(before, grace_s=5.0) == []


def test_nobody_has_to_read_the_output(here, tmp_path):
    """A pipe whose reader is gone costs lines on it, and nothing else: the folder has them."""
    here("for i in range(5000): print('line', i)")
    shell = f"{sys.executable} -m relume run --workers 2 train.py 2>errors | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "3"
    errors = (tmp_path / "errors").read_text()
    assert "Broken" not in errors
    assert "Exception" not in errors
    assert (latest(tmp_path) / "worker-0.log").read_text().splitlines()[-1] == "line 4999"


def test_no_warning_is_kept_from_anybody(here):
    """The agent leaves no file, socket or process unclosed."""
    here("print('hello')")
    warnings = ("-W", "error", "-X", "dev", "-m", "relume", "run", "--workers", "2", "train.py")
    result = subprocess.run([sys.executable, *warnings], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 3, result.stderr
    assert "Warning" not in result.stderr


def test_the_agent_needs_no_torch_in_its_memory():
    """It starts in a fraction of a second, and is small beside what it guards."""
    code = "import sys, relume.cli.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
