"""The lines of a file that somebody else is still writing, as they come.

A line counts once its newline is there: what follows the last one may be half a line (the writer is in the middle of
it, or died there). This module does not know what a line means.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES_MAX = 16 << 20
"""Of a file that grew by more than this since the last look, the rest waits for the next one."""


class Tail:
    """Reads `path` from its start, or from about `last_bytes` before its end. The file may not be there yet."""

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        self._path = path
        self._last_bytes = last_bytes
        self._file: BinaryIO | None = None
        self.rest = b""

    def lines(self) -> list[bytes]:
        """Return the lines that are new since the last call, without their newlines. Raises `OSError`."""
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        *lines, self.rest = (self.rest + self._file.read(CHUNK_BYTES_MAX)).split(b"\n")
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        if self._last_bytes is not None:
            size = os.fstat(self._file.fileno()).st_size
            if size > self._last_bytes:
                self._file.seek(size - self._last_bytes)
                self._file.readline()  # the line that begins before our window
        return True
