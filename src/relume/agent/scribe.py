"""The agent's hold on its scribe, the process that writes checkpoints (see `state/scribe.py`).

Two pipes of lines and a pidfd, all served by the agent's loop. Nothing here waits: a request is a line that fits into
the pipe, an answer comes when it comes, and an end is told with its cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from relume.state import errands

NICENESS = 10
"""About a tenth of a core beside busy workers: enough to import torch in seconds, little enough not to be felt."""
LAST_WORDS_S = 1.0
LAST_WORDS_S = 1.0
_TAIL_BYTES = 4000
_HERE = str(Path(__file__).resolve().parents[2])
_START = (  # this very relume, wherever the agent has it from, and nothing that lies in the current folder
    f"import sys; sys.path[0:0] = [p for p in [{_HERE!r}] if p not in sys.path]; "
    "from relume.state.scribe import main; sys.exit(main(sys.argv[1:]))"
)


class Scribe:
    """One life of the scribe. `on_reply` gets what it says, `on_end` once why it is gone."""

    def __init__(
        self,
        arguments: Sequence[str],
        descriptors: Sequence[int],
        on_reply: Callable[[errands.Reply], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Start it. Raises `OSError`."""
        self._on_reply, self._on_end = on_reply, on_end
        self._loop = asyncio.get_running_loop()
        self._buffer, self._tail = b"", b""
        self._ended = False
        command = [sys.executable, "-P", "-c", _START, str(os.getpid()), *arguments, f"nice={NICENESS}"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # a Ctrl-C at the terminal is the agent's to deal with
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(self._stdout.fileno(), self._on_output)
        self._loop.add_reader(self._stderr.fileno(), self._on_words)
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended, was waited for, and nothing of it is open any more."""
        return self._ended

    def ask(self, request: errands.Request) -> bool:
        """Send a request; False if it takes none (its end is near, and will be told)."""
        data = errands.line(request)
        try:
            return os.write(self._stdin.fileno(), data) == len(data)
        except (OSError, ValueError):
            return False

    def dismiss(self) -> None:
        """Let it end by itself once it has done what it was asked."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def kill(self) -> None:
        """End it at once."""
        if not self.gone:
            self._process.kill()

    async def until_gone(self, limit_s: float) -> bool:
        """Wait until it is gone, `limit_s` at most; a process that is stuck in the kernel may not be."""
        end = self._loop.time() + limit_s
        while not self.gone and self._loop.time() < end:  # noqa: ASYNC110 - `_on_exit` sees it; this is the bound
            await asyncio.sleep(0.005)
        return self.gone

    def abandon(self) -> None:
        """Close everything though the process is still there: nothing more can be done about it."""
        if not self.gone:
            self._close()

    def _on_output(self) -> None:
        data = _read(self._stdout)
        if data == b"":
            self._loop.remove_reader(self._stdout.fileno())
            # Nothing more will be heard of it, so it shall not write either; unless it is ending, and can say why.
            self._loop.call_later(LAST_WORDS_S, self.kill)
        elif data is not None:
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            try:
                reply = errands.reply(line)
            except msgspec.DecodeError:  # not ours: whatever printed it goes into its last words
                self._tail = (self._tail + line + b"\n")[-_TAIL_BYTES:]
            else:
                self._on_reply(reply)

    def _on_words(self) -> None:
        data = _read(self._stderr)
        if data == b"":
            self._loop.remove_reader(self._stderr.fileno())
        elif data is not None:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def _on_exit(self) -> None:
        while data := _read(self._stdout):  # what it said before it died holds
            self._take(data)
        self._on_words()
        self._process.wait()
        self._close()
        self._ended = True
        self._on_end(self._cause())

    def _close(self) -> None:
        for pipe in (self._stdout, self._stderr):
            self._loop.remove_reader(pipe.fileno())
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def _cause(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"it was killed by {signal.Signals(-code).name}"
        words = [line for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return f"it ended with exit code {code}" + (f" ({words[-1].strip()[:300]})" if words else "")

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def _stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr


def _read(pipe: IO[bytes]) -> bytes | None:
    """Return what is in the pipe; None: nothing now; b"": its other end is closed."""
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""
