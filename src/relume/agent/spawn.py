"""Starting workers: each leads a process group of its own, and inherits the arena, the doorbells and a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Started:
    """A started process: its pid, and the read ends of its standard output and error."""

    pid: int
    out: int
    err: int


class Spawner(Protocol):
    """How worker processes come to be. The default is a fresh interpreter; tests fork."""

    def spawn(self, command: Sequence[str], environment: dict[str, str], descriptors: Sequence[int]) -> Started:
        """Start a worker in its own process group that inherits `descriptors`."""
        ...


class FreshInterpreter:
    """Starts `command` as a new process."""

    def __init__(self, stdin: int | None = None) -> None:
        self._stdin = stdin

    def spawn(self, command: Sequence[str], environment: dict[str, str], descriptors: Sequence[int]) -> Started:
        """See `Spawner.spawn`."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL if self._stdin is None else self._stdin,
                stdout=out_write,
                stderr=err_write,
                process_group=0,
            )
        finally:
            os.close(out_write)
            os.close(err_write)
        process.returncode = 0  # the supervisor waits for the pid itself; Popen shall not
        return Started(process.pid, out_read, err_read)


def environment(rank: int, workers: int, *, threads: int, port: int, run: dict[str, str]) -> dict[str, str]:
    """Return a worker's environment: this process's, torchrun's variables, then relume's own (`run`)."""
    result = dict(os.environ)
    result.setdefault("PYTHONUNBUFFERED", "1")
    result.setdefault("PYTHONHASHSEED", "0")
    result.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_WORLD_SIZE": str(workers),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(workers),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": run.get("RELUME_RUN_ID", "none"),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "RELUME_THREADS": str(threads),
            **run,
        }
    )
    return result


def free_port() -> int:
    """Return a port of this host that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python_command(script: Sequence[str]) -> list[str]:
    """Return the command that runs `script` (a path or `-m module`, and its arguments) in this interpreter."""
    return [sys.executable, "-u", *script]
