"""Workers' output on the terminal: whole lines with the rank in front, written by a thread of its own.

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


class Terminal:
    """Writes prefixed lines to `out` and `err` (binary streams)."""

    def __init__(self, out: BinaryIO, err: BinaryIO, *, colour: bool) -> None:
        self._streams = {"out": out, "err": err}
        self._colour = colour
        self._partial: dict[tuple[int, str], bytes] = {}
        self._queue: queue.Queue[tuple[str, bytes] | None] = queue.Queue(LINES_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="relume-terminal", daemon=True)
        self._thread.start()

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
        """Write a line of the agent's own to standard error."""
        mark = b"\x1b[1mrelume:\x1b[0m " if self._colour else b"relume: "
        self._put("err", mark + text.encode() + b"\n")

    def close(self) -> None:
        """Write what is left, waiting at most a second for a terminal that does not take it."""
        for (rank, stream), rest in self._partial.items():
            if rest:
                self._put(stream, self._prefix(rank) + rest + b"\n")
        if self._dropped:
            self._put("err", f"relume: {self._dropped} lines were not shown; they are in the run's folder\n".encode())
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1.0)
        self._thread.join(timeout=1.0)

    def _prefix(self, rank: int) -> bytes:
        text = f"[{rank}] "
        return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m".encode() if self._colour else text.encode()

    def _put(self, stream: str, line: bytes) -> None:
        try:
            self._queue.put_nowait((stream, line))
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            stream, line = item
            with contextlib.suppress(OSError, ValueError):
                self._streams[stream].write(line)
                if self._queue.empty():
                    self._streams[stream].flush()
