"""The lines of a file that somebody else is still writing, as they come.

A line counts once its newline is there: what follows the last one may be half a line (the writer is in the middle of
it, or died there). This module does not know what a line means.
"""

from __future__ import annotations

from pathlib import Path

CHUNK_BYTES_MAX = 16 << 20
"""Of a file that grew by more than this since the last look, the rest waits for the next one."""


class Tail:
    """Reads `path` from its start, or from about `last_bytes` before its end. The file may not be there yet.

    The file is not kept open: whoever forgets a `Tail` leaves nothing behind.
    """

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        self._path = path
        self._last_bytes = last_bytes
        self._read = 0
        self.rest = b""

    def lines(self) -> list[bytes]:
        """Return the lines that are new since the last call, without their newlines. Raises `OSError`."""
        try:
            with self._path.open("rb") as file:
                if self._last_bytes is not None and not self._read:
                    self._read = max(0, file.seek(0, 2) - self._last_bytes)
                file.seek(self._read)
                data = file.read(CHUNK_BYTES_MAX)
        except FileNotFoundError:
            return []
        self._read += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines
