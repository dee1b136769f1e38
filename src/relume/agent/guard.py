"""The agent's hold on its guardian: a process that ends the workers should the agent be killed (see `guardian.py`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from relume.errors import ConfigError

WAIT_S = 1.0


class Guard:
    """Starts the guardian and keeps it informed. A guardian that is gone itself costs nothing while the agent lives."""

    def __init__(self, run_dir: Path) -> None:
        script = str(Path(__file__).with_name("guardian.py"))
        command = [sys.executable, "-I", "-S", script, str(os.getpid()), str(run_dir)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
            )
        except OSError as error:
            text = f"the guardian cannot be started ({error.strerror})."
            raise ConfigError(text + " Raise the limits on processes and open files (ulimit -a)") from error

    def watch(self, rank: int, pid: int) -> None:
        """The worker `rank` is there and leads the process group `pid`."""
        self._say(f"{rank} {pid}")

    def gone(self, pid: int) -> None:
        """The process group `pid` has ended: the number may be somebody else's from now on."""
        self._say(f"gone {pid}")

    def close(self) -> None:
        """End the guardian: the run is over. Waits a second at most, should somebody have stopped it."""
        self._say("done")
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._stdin.write(f"{line}\n".encode())
