"""Workers' output on the terminal: whole lines with the rank in front, written by threads of their own.

A terminal that is paused or a pipe that nobody reads must not stop the agent from answering a death, so lines wait in
a bounded queue; what does not fit is counted, told, and still in the run's folder.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import BinaryIO

LINES_MAX = 10_000
LINE_BYTES_MAX = 8192
"""A longer line is shown in pieces: progress bars never end one."""
_COLOURS = (36, 33, 35, 32, 34, 31, 96, 93)


class _Pump:
    """Writes what is put to one stream, in a thread of its own: a stream that is stuck holds up no other."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name=f"relume-terminal-{name}", daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, droppable: bool) -> bool:
        """Have `line` written; False if too many wait and it may be dropped."""
        if droppable and self._queue.qsize() >= LINES_MAX:
            return False
        self._queue.put(line)
        return True

    def settle(self, limit_s: float) -> None:
        """Wait until what was put so far is written, at most `limit_s`."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(limit_s)

    def close(self, limit_s: float) -> None:
        """Write what is left, waiting at most `limit_s` for a stream that does not take it."""
        self._queue.put(None)
        self._thread.join(limit_s)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line)
                if self._queue.empty():
                    self._stream.flush()


class Terminal:
    """Writes prefixed lines to `out` and `err` (binary streams)."""

    def __init__(self, out: BinaryIO, err: BinaryIO, *, colour: bool) -> None:
        self._pumps = {"out": _Pump(out, "out"), "err": _Pump(err, "err")}
        self._colour = colour
        self._partial: dict[tuple[int, str], bytes] = {}
        self._dropped = 0

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Take what a worker wrote, in any pieces."""
        *lines, rest = (self._partial.get((rank, stream), b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines.append(rest)
            rest = b""
        self._partial[rank, stream] = rest
        for line in lines:
            self._put(stream, self._prefix(rank) + line + b"\n")

    def say(self, text: str) -> None:
        """Write a line of the agent's own to standard error; it is never dropped."""
        mark = b"\x1b[1mrelume:\x1b[0m " if self._colour else b"relume: "
        self._pumps["err"].put(mark + text.encode("utf-8", "surrogateescape") + b"\n", droppable=False)

    def settle(self) -> None:
        """Write what workers have said so far, so that what follows stands below it; a second at most."""
        for (rank, stream), rest in self._partial.items():
            if rest:
                self._put(stream, self._prefix(rank) + rest + b"\n")
        self._partial = {}
        for pump in self._pumps.values():
            pump.settle(1.0)

    def close(self) -> None:
        """Write what is left, waiting at most a second for a terminal that does not take it."""
        self.settle()
        if self._dropped:
            self.say(f"{self._dropped} lines were not shown; they are in the run's folder")
        for pump in self._pumps.values():
            pump.close(1.0)

    def _prefix(self, rank: int) -> bytes:
        text = f"[{rank}] "
        return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m".encode() if self._colour else text.encode()

    def _put(self, stream: str, line: bytes) -> None:
        if not self._pumps[stream].put(line, droppable=True):
            self._dropped += 1
