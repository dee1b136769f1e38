"""Runs what a schedule asks for, with the real command line: a reference, fleets under kills, and the verdict.

Every process is a child of this one, is waited for with a limit, and is gone when its function returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relume.chaos.effort import Effort, Witness
from relume.chaos.evidence import Evidence, Who, read_evidence
from relume.chaos.outside import Killer
from relume.chaos.schedule import Action
from relume.chaos.shipped import shipped
from relume.errors import ConfigError, RunLost

START_S = 120.0
"""A run may take so long beyond what its steps take, for the imports of all workers on few cores."""
SLOWER_MAX = 20.0
"""A fleet may be so many times slower than the plain run."""
END_S = 15.0
"""A run that is told to end has this long, which is more than the agent's own limits add up to."""
VERDICT_S = 120.0
_ENDING = (signal.SIGINT, signal.SIGTERM)
_NAMES = ("RECORD", "SHARDS", "THREADS", "TRAPS", "BURNER", "AGENT", "RUN_ID", "RUN_DIR")
SETTINGS = frozenset(f"RELUME_{name}" for name in _NAMES)
"""What is set for each run on purpose, and so is not taken over from whoever started this."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is run, again and again. `arguments` are the script's own; `--steps N` is added to them.

    `options` are those of `relume run` that say whether the lost come back.
    """

    script: Path
    arguments: tuple[str, ...]
    workers: int
    steps: int
    shards: int | None = None
    threads: int = 1
    loss: str = "loss"
    options: tuple[str, ...] = ("--max-restarts", "0")

    @property
    def command(self) -> list[str]:
        """The script as one types it."""
        return [str(self.script), *self.arguments, "--steps", str(self.steps)]


@dataclass(frozen=True, slots=True)
class Kills:
    """Who is to die in a fleet: `traps` as in RELUME_TRAPS. `burner`: a CPU burner takes the place of each dead one."""

    traps: Sequence[Mapping[str, Any]]
    outside: Sequence[Action] = ()
    burner: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet that is over. `killed_ns`: when this harness killed whom from outside, one by one.

    `all_killed`: the same of each time that it killed all. `scaled`: when it asked for how many workers. `efforts`:
    what each joiner did until it was level.
    """

    exit_code: int
    seconds: float
    evidence: Evidence
    killed_ns: dict[Who, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    all_killed: list[dict[Who, int]] = field(default_factory=list)
    scaled: list[tuple[int, int]] = field(default_factory=list)
    efforts: dict[Who, Effort] = field(default_factory=dict)

    @property
    def kill_times(self) -> dict[Who, int]:
        """When each was killed, but for those killed with all others: by its trap's own clock, or by ours."""
        trapped = {who: loss.killed_ns for who, loss in self.evidence.lost.items() if loss.killed_ns}
        return trapped | self.killed_ns

    @property
    def outside_times(self) -> dict[Who, int]:
        """When this harness killed whom, those killed with all others included."""
        return self.killed_ns | {who: at_ns for killed in self.all_killed for who, at_ns in killed.items()}

    @property
    def all_kill_times(self) -> dict[Who, int]:
        """When anybody was killed."""
        return self.kill_times | self.outside_times


def run_reference(job: Job, folder: Path) -> float:
    """Run the script plainly, recording into `folder`/record; return the seconds. Raises `RunLost` if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = plain_environment(job) | {"RELUME_RECORD": str(folder / "record")}
    begin = time.monotonic()
    limit_s = START_S + 60.0 * job.steps
    with _process([sys.executable, "-u", *job.command], folder / "output.log", variables) as process:
        code = _wait(process, limit_s, "the script, run plainly")
    if code != 0:
        raise RunLost(f"the script, run plainly, ended with exit code {code}: {_last_lines(folder / 'output.log')}")
    return time.monotonic() - begin


def run_fleet(
    job: Job,
    folder: Path,
    kills: Kills,
    reference_s: float,
    company: Callable[[Path], AbstractContextManager[object]] | None = None,
) -> Fleet:
    """Run the script with `relume run` under `kills`. Raises `RunLost` if it does not end in time.

    `reference_s`: what the plain run took, from which the limit follows. `company` is entered beside the run, with the
    folder of its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = [] if job.shards is None else ["--shards", str(job.shards)]
    command = [sys.executable, "-m", "relume", "run", "--workers", str(job.workers), "--threads", str(job.threads)]
    command += [*shards, *job.options, "--run-dir", str(folder / "run"), "--record", str(folder / "record")]
    variables = {"RELUME_TRAPS": json.dumps(list(kills.traps)), **({"RELUME_BURNER": "1"} if kills.burner else {})}
    begin = time.monotonic()
    deadline = begin + START_S + SLOWER_MAX * reference_s
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(_process([*command, *job.command], folder / "output.log", variables))
        witness = stack.enter_context(Witness(folder / "run"))
        if company is not None:
            stack.enter_context(company(folder / "record"))
        killer = Killer(folder / "run", folder / "record", process.pid, kills.outside)
        killer.work(lambda: process.poll() is None, deadline)
        code = _wait(process, deadline - time.monotonic(), "the fleet")
    if not (folder / "run" / "events.jsonl").exists():
        raise RunLost(f"the fleet did not start (exit code {code}): {_last_lines(folder / 'output.log')}")
    return Fleet(
        exit_code=code,
        seconds=time.monotonic() - begin,
        evidence=read_evidence(folder / "run", folder / "record"),
        killed_ns=killer.killed_ns,
        errors=killer.errors,
        all_killed=killer.all_killed,
        scaled=killer.scaled,
        efforts=witness.efforts,
    )


def plain_environment(job: Job) -> dict[str, str]:
    """Return the environment in which the script runs by itself."""
    variables = {"RELUME_THREADS": str(job.threads), "PYTHONHASHSEED": "0"}
    if job.shards is not None:
        variables["RELUME_SHARDS"] = str(job.shards)
    return {name: value for name, value in os.environ.items() if name not in SETTINGS} | variables


def verdict(job: Job, reference: Path, fleet: Path, survivors: Sequence[Who]) -> dict[str, Any]:
    """Have `tools/verify.py` compare the records under the two folders; return what it says."""
    command = [sys.executable, str(shipped("verify.py")), "--json", "--loss", job.loss]
    command += ["--reference", str(reference / "record"), "--run", str(fleet / "record")]
    command += ["--survivors", ",".join(f"{rank}.{life}" for rank, life in survivors)]
    command += ["--events", str(fleet / "run" / "events.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERDICT_S, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise RunLost(f"verify.py gave no verdict (exit code {done.returncode}): {done.stderr.strip()}") from error
    return said


def check_script(script: Path) -> None:
    """Raise `ConfigError` if there is no such script."""
    if not script.is_file():
        raise ConfigError(f"there is no script {script}. An example that ships with relume is {shipped('charlm.py')}")


@contextlib.contextmanager
def _process(command: list[str], output: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command` with its output in a file, and see to it that it is over at the end, whatever happens here."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | dict(variables)
    process: subprocess.Popen[bytes] | None = None
    with output.open("wb") as file:
        try:
            with _uninterrupted():
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
                )
            yield process
        finally:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()  # its workers see that and end by themselves
                    process.wait()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have a signal that ends this process wait until what is being started is known, and so can be ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are met by the main thread only
        return
    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _wait(process: subprocess.Popen[bytes], limit_s: float, what: str) -> int:
    try:
        return process.wait(max(1.0, limit_s))
    except subprocess.TimeoutExpired as error:
        raise RunLost(f"{what} did not end in time ({limit_s:.0f} s more) and was ended") from error


def _last_lines(path: Path, count: int = 5) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(line for line in lines[-count:] if line.strip()) or "it said nothing"
