"""Fleets of real processes around the real agent, in a fraction of a second each: workers are forks of this process.

Only how a worker comes to be differs from `relume run`: the pytest process, which has torch imported and no threads
of its own, forks, and the child runs a function instead of a script. Sockets, arena, doorbells, pens, fences and
kills are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it on their first step: once here, not in every fork

import relume.train.run as run_module
from relume.agent.output import Terminal
from relume.agent.rundir import new_run_id
from relume.agent.settings import Settings
from relume.agent.spawn import Started
from relume.agent.supervisor import Supervisor
from relume.wire.events import Event, WorkerLost


class Forked:
    """A spawner that forks this process and calls `body(rank)` in the child."""

    def __init__(self, body: Callable[[int], None]) -> None:
        """Take what every worker runs."""
        self._body = body

    def spawn(self, command: Sequence[str], environment: dict[str, str], descriptors: Sequence[int]) -> Started:
        """Fork a worker that leads its own process group."""
        del command
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.dup2(out_write, 1)
            os.dup2(err_write, 2)
            self._close_others({0, 1, 2, *descriptors})
            self._child(environment)
        os.setpgid(pid, pid)
        os.close(out_write)
        os.close(err_write)
        return Started(pid, out_read, err_read)

    @staticmethod
    def _close_others(kept: set[int]) -> None:
        """As a fresh program would have it: the agent's ends of sockets and pipes are the agent's alone."""
        for link in Path("/proc/self/fd").iterdir():
            if int(link.name) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(link.name))

    def _child(self, environment: dict[str, str]) -> None:
        code = 1
        try:
            asyncio._set_running_loop(None)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
            sys.__stderr__ = sys.stderr  # type: ignore[misc]
            sys.excepthook = traceback.print_exception
            os.environ.clear()
            os.environ.update(environment)
            run_module._current = None
            try:
                self._body(int(environment["RANK"]))
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except BaseException:  # noqa: BLE001 - as the interpreter does for a script
                sys.last_value = sys.exc_info()[1]
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            if run_module._current is not None:
                run_module._current.leave()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


@dataclass
class FleetResult:
    """How a fleet ended."""

    exit_code: int
    outcome: str
    reason: str
    incidents: list[WorkerLost]
    events: list[dict[str, Any]]
    survivors: list[int]
    output: str
    run_dir: Path
    seen: list[Event] = field(default_factory=list)


def run_fleet(
    body: Callable[[int], None],
    *,
    workers: int,
    tmp_path: Path,
    shards: int | None = None,
    traps: Sequence[dict[str, Any]] = (),
    watcher: Callable[[Event], None] | None = None,
    **options: Any,
) -> FleetResult:
    """Run `body(rank)` on `workers` forked workers under the real agent and return how it ended."""
    assert torch.get_num_threads() == 1, "forking a process with a thread pool is not what workers are"
    run_id = new_run_id()
    environment = {"RELUME_TRAPS": json.dumps(list(traps)), **options.pop("environment", {})}
    folder = options.pop("run_dir", tmp_path / f"run-{run_id}")
    settings = Settings(("forked",), workers, folder, run_id, shards=shards, environment=environment, **options)
    seen: list[Event] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if watcher is not None:
            watcher(event)

    with (tmp_path / f"run-{run_id}.screen").open("w+b") as screen:
        terminal = Terminal(screen, screen, colour=False)
        try:
            result = asyncio.run(_supervise(settings, Forked(body), terminal, watch))
        finally:
            terminal.close()
        screen.seek(0)
        output = screen.read().decode(errors="replace")
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    incidents = [event for event in seen if isinstance(event, WorkerLost)]
    survivors = [rank for rank in range(workers) if rank not in {incident.rank for incident in incidents}]
    return FleetResult(
        result.exit_code, result.outcome, result.reason, incidents, lines, survivors, output, folder, seen
    )


async def _supervise(settings: Settings, spawner: Forked, terminal: Terminal, watcher: Callable[[Event], None]) -> Any:
    return await Supervisor(settings, spawner, terminal, watcher).run()
