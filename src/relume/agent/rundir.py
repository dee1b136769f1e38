"""The run's folder: events, the record of what bits depend on, per-worker output; and `latest` beside it.

A disk that fills up costs lines, never the run (scenario 18): every write that fails is counted and told once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from relume.errors import ConfigError
from relume.wire.events import SCHEMA, Event, Line

_encode = msgspec.json.Encoder().encode


def new_run_id() -> str:
    """Return a fresh run id: the time, and a few letters against collisions."""
    return time.strftime("%Y%m%d-%H%M%S") + "-" + secrets.token_hex(2)


class RunDir:
    """Files of one run. `trouble` is told once when the disk refuses."""

    def __init__(self, path: Path, trouble: Callable[[str], None]) -> None:
        """Create the folder. Raises `ConfigError` if it cannot be made or holds another run."""
        self.path = path
        self._trouble = trouble
        self._refused = False
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the run folder {path} cannot be made ({error.strerror}): choose another --run-dir"
            ) from error
        if not os.access(path, os.W_OK):
            raise ConfigError(f"the run folder {path} cannot be written to: choose another --run-dir")
        try:
            (path / "events.jsonl").touch(exist_ok=False)
        except FileExistsError as error:
            text = f"the run folder {path} holds another run: choose another --run-dir, or remove it"
            raise ConfigError(text) from error
        except OSError as error:
            self._tell(error)
        self._events = self._open("events.jsonl")
        self._logs: dict[int, BinaryIO | None] = {}

    def event(self, event: Event) -> None:
        """Append an event."""
        line = Line(v=SCHEMA, time=time.time(), mono_ns=time.monotonic_ns(), event=event)
        self._write(self._events, _encode(line) + b"\n")

    def output(self, rank: int, data: bytes) -> None:
        """Append to a worker's log."""
        if rank not in self._logs:
            self._logs[rank] = self._open(f"worker-{rank}.log")
        self._write(self._logs[rank], data)

    def record(self, facts: dict[str, Any]) -> None:
        """Write `run.json`: what the run's bits depend on. Whole or not at all."""
        path = self.path / "run.json"
        partial = path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            self._tell(error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every file."""
        for file in (self._events, *self._logs.values()):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _open(self, name: str) -> BinaryIO | None:
        try:
            return (self.path / name).open("ab", buffering=0)
        except OSError as error:
            self._tell(error)
            return None

    def _write(self, file: BinaryIO | None, data: bytes) -> None:
        if file is None:
            return
        try:
            written = file.write(data)
            if written < len(data):  # the disk is full: no half lines
                os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - written)
                self._tell(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            self._trouble(
                f"the run folder {self.path} refuses writes ({error.strerror}); training goes on without them"
            )

    def link_latest(self) -> None:
        """Have `latest`, beside the folder, point to it: it is the newest run now."""
        latest = self.path.parent / "latest"
        partial = self.path.parent / f".latest-{os.getpid()}"
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
            partial.symlink_to(self.path.name)
            partial.replace(latest)
