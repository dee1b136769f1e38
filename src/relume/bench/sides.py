"""The processes that are measured, from the controller's side: started, ordered about, watched, and gone at the end.

A side is a number of processes that get the same orders. It is started in process groups of its own, so that Ctrl-C
reaches the controller alone, which then ends everything. Every wait has a limit; a side that dies or does not answer is
an error that shows what it said last.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from relume.agent.spawn import environment
from relume.bench.orders import RELUME, Answer, Done, Line, Order, Ready, Terms
from relume.errors import RunLost

START_S = 180.0
"""All workers on few cores have to import torch in this time."""
ANSWER_S = 300.0
"""An order takes so long at most."""
END_S = 10.0
_LOOK_S = 0.2
_TAIL_LINES = 15


@dataclass
class Side:
    """One side: `processes` are those that were started, by name; `pids` those that are measured, by rank."""

    name: str
    workers: int
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    torch: str = ""

    def order(self, order: Order) -> list[Done]:
        """Give `order` to all processes and return their answers. Raises `RunLost` if one dies or takes too long."""
        for line in self.lines:
            line.send(order)
        return [self._answer(rank, line) for rank, line in enumerate(self.lines)]

    def _answer(self, rank: int, line: Line) -> Done:
        try:
            answer = line.receive()
        except TimeoutError:
            raise self.lost(f"process {rank} gave no answer within {ANSWER_S:.0f} s") from None
        if answer is None:
            raise self.lost(f"process {rank} ended in the middle of the measurement")
        assert isinstance(answer, Done)
        return answer

    def lost(self, what: str) -> RunLost:
        """Return the error that says so, with the last words of whoever said something."""
        time.sleep(_LOOK_S)  # what it dies of may still be on its way
        said = [f"--- {path.name}\n{tail}" for path in sorted(self.folder.glob("*.log")) if (tail := _tail(path))]
        heard = "\n".join(said) or "it said nothing"
        return RunLost(f"the side {self.name} of the measurement failed: {what}. Its output ends with\n{heard}")

    def finish(self) -> None:
        """Let the processes come to their end, since there are no more orders. Raises `RunLost` if they do not."""
        for line in self.lines:
            line.close()
        for name, process in self.processes.items():
            try:
                code = process.wait(END_S)
            except subprocess.TimeoutExpired:
                raise self.lost(f"{name} did not end within {END_S:.0f} s") from None
            if code != 0:
                raise self.lost(f"{name} ended with exit code {code}, though every step was made")

    def end(self) -> None:
        """End whatever still runs, at once, and wait until it is gone."""
        for line in self.lines:
            line.close()
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            # An agent ends its workers first. Others have nobody, and nothing to tidy up.
            process.send_signal(signal.SIGTERM if self.name == RELUME else signal.SIGKILL)
        for process in running:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its workers see that and end by themselves
                process.wait()


class Stage:
    """Where sides are started: a folder and an address. `with Stage(folder, terms) as stage:` ends all of them."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self.workers = folder, workers
        self._address = str(folder / "controller")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen(workers)
        self.sides: dict[str, Side] = {}

    def __enter__(self) -> Self:
        """Nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._listener.close()
        for side in self.sides.values():
            side.end()

    def start_run(self, terms: Terms) -> Side:
        """Start relume as a person does, everything at its defaults, and return it when its workers wait."""
        side = self._side(RELUME)
        text = msgspec.json.encode(terms).decode()
        command = [sys.executable, "-m", "relume", "run", "--workers", str(self.workers)]
        command += ["--run-dir", str(side.folder / "run"), "-m", "relume.bench.ours", self._address, text]
        self._start(side, "run", command, _cleared(), ())
        return self._gather(side)

    def start_peers(self, name: str, port: int, arguments: Sequence[str] = (), descriptors: Sequence[int] = ()) -> Side:
        """Start processes without relume."""
        side = self._side(name)
        for rank in range(self.workers):
            command = [sys.executable, "-u", "-m", "relume.bench.peers", self._address, name, *arguments]
            variables = environment(rank, self.workers, threads=1, port=port, run={"GLOO_SOCKET_IFNAME": "lo"})
            self._start(side, f"rank-{rank}", command, variables, descriptors)
        return self._gather(side)

    def _side(self, name: str) -> Side:
        folder = self._folder / name
        folder.mkdir()
        self.sides[name] = side = Side(name, self.workers, folder)
        return side

    def _start(
        self, side: Side, name: str, command: Sequence[str], variables: dict[str, str], descriptors: Sequence[int]
    ) -> None:
        with (side.folder / f"{name}.log").open("wb") as output:
            side.processes[name] = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                process_group=0,
            )

    def _gather(self, side: Side) -> Side:
        """Wait until all processes of `side` are there."""
        found: dict[int, tuple[Line, Ready]] = {}
        deadline = time.monotonic() + START_S
        while len(found) < self.workers:
            there, _, _ = select.select([self._listener], [], [], _LOOK_S)
            if there:
                line, ready = self._accept(side)
                found[ready.rank] = line, ready
            ended = [name for name, process in side.processes.items() if process.poll() is not None]
            if ended and not there:
                raise side.lost(f"{ended[0]} ended with exit code {side.processes[ended[0]].returncode} at its start")
            if time.monotonic() > deadline:
                raise side.lost(f"{len(found)} of {self.workers} were ready after {START_S:.0f} s")
        for rank in range(self.workers):
            line, ready = found[rank]
            side.lines.append(line)
            side.pids.append(ready.pid)
            side.torch = ready.torch
        return side

    def _accept(self, side: Side) -> tuple[Line, Ready]:
        connection, _ = self._listener.accept()
        line = Line(connection, Answer)
        line.limit(ANSWER_S)
        ready = line.receive()
        if ready is None:
            raise side.lost("a process ended at its start")
        assert isinstance(ready, Ready)
        return line, ready


def _cleared() -> dict[str, str]:
    """Return this process's environment without what would change how relume runs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RELUME_") or name in _KEPT}


_KEPT = ("RELUME_TESTS",)
"""By this the tests know what they have started."""


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
