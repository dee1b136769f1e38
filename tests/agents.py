"""A fleet whose agent is a process of its own, so that it can be sent signals and killed.

`tests.fleet` runs the agent in the pytest process. Here that process is a fork; everything else is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from relume.agent.output import Terminal
from relume.agent.settings import Settings
from relume.agent.supervisor import Supervisor
from tests import processes
from tests.fleet import Forked

WAIT_S = 20.0


class Agent:
    """`with Agent(body, folder, workers=2) as agent:` starts it; at the end nothing of it is left."""

    def __init__(self, body: Callable[[int], None], folder: Path, *, workers: int, **options: Any) -> None:
        self.run_dir = folder / "run"
        self.screen = folder / "screen"
        self.settings = Settings(("forked",), workers, self.run_dir, f"agent-{os.getpid()}-{id(self):x}", **options)
        self._body = body
        self.pid = 0
        self.started_s = 0.0
        self._code: int | None = None

    def __enter__(self) -> Self:
        self.started_s = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_the_agent()
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        left = self.running()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _be_the_agent(self) -> None:
        code = 70
        try:
            screen = self.screen.open("wb", buffering=0)
            for descriptor in (1, 2):
                os.dup2(screen.fileno(), descriptor)
            terminal = Terminal(screen, screen, colour=False)
            result = asyncio.run(self._supervise(terminal))
            terminal.say(result.reason)
            terminal.close()
            code = result.exit_code
        except BaseException:  # noqa: BLE001 - as an interpreter ends
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    async def _supervise(self, terminal: Terminal) -> Any:
        return await Supervisor(self.settings, Forked(self._body), terminal).run()

    # What it shows ------------------------------------------------------------------------------------------------

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of events.jsonl so far, of one kind or of all."""
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line)["event"] for line in lines if line.endswith("\n")]
        return [event for event in events if kind in {None, event["kind"]}]

    @property
    def workers(self) -> dict[int, int]:
        """The pids of the workers, by rank."""
        return {event["rank"]: event["pid"] for event in self.events("worker_started")}

    def output(self) -> str:
        """What is on the terminal."""
        return self.screen.read_text(errors="replace")

    def running(self) -> list[int]:
        """The pids that run in any worker's process group, or are the guardian's."""
        groups = set(self.workers.values())
        found = []
        for pid, process in processes.table().items():
            with contextlib.suppress(OSError):
                ours = os.getpgid(pid) in groups or f"guardian.py {self.pid} " in processes.command_line(pid) + " "
                if ours and process.state not in {"Z", "X"}:
                    found.append(pid)
        return found

    # What is done to it -------------------------------------------------------------------------------------------

    def until(self, what: Callable[[], Any], limit_s: float = WAIT_S) -> Any:
        """Wait until `what()` is true, and return it."""
        return until(what, limit_s, self.output)

    def signal(self, number: int) -> float:
        """Send the agent a signal; return when."""
        os.kill(self.pid, number)
        return time.monotonic()

    def join(self, limit_s: float = WAIT_S) -> int:
        """Wait for the agent's end; return its exit code, negative for a signal."""
        self.until(self._is_over, limit_s)
        assert self._code is not None
        return self._code

    def _is_over(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None


def until(what: Callable[[], Any], limit_s: float = WAIT_S, told: Callable[[], str] = str) -> Any:
    """Wait until `what()` is true, and return it; fail with what `told` tells."""
    end = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < end, f"not within {limit_s} s:\n{told()}"
        time.sleep(0.01)
    return value
