"""A run's `events.jsonl`, read while it grows, by somebody who trusts no line of it.

A line that cannot be read is skipped, counted, and told; so is one of a newer schema. What follows the last newline
is a line that is being written, or that was never finished.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from relume.errors import ConfigError
from relume.observe.find import EVENTS
from relume.observe.tail import Tail
from relume.wire.events import SCHEMA, Line


class _Version(msgspec.Struct):
    v: int


_version = msgspec.json.Decoder(_Version)
_line = msgspec.json.Decoder(Line)


class Journal:
    """The events of the run in `folder`. `corrupt` and `newer` count the lines that were skipped."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS
        self._tail = Tail(self._path)
        self.corrupt = 0
        self.newer = 0

    @property
    def torn(self) -> bool:
        """True if the file ends in the middle of a line."""
        return bool(self._tail.rest)

    def read(self) -> list[Line]:
        """Return the events that are new since the last call, in order. Raises `ConfigError` if it may not read."""
        try:
            texts = self._tail.lines()
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        return [line for text in texts if (line := self._parse(text)) is not None]

    def _parse(self, text: bytes) -> Line | None:
        try:
            if _version.decode(text).v > SCHEMA:
                self.newer += 1
                return None
            return _line.decode(text)
        except (msgspec.MsgspecError, ValueError):
            self.corrupt += 1
            return None

    def problems(self, *, ended: bool) -> list[str]:
        """Say in sentences what could not be read. `ended`: nobody is writing any more, so a torn line stays torn."""
        found = []
        if self.corrupt:
            found.append(f"{_lines(self.corrupt)} of {EVENTS} cannot be read and {_were(self.corrupt)} skipped")
        if self.newer:
            text = f"{_lines(self.newer)} of {EVENTS} {_were(self.newer)} written by a newer relume and skipped"
            found.append(f"{text}: this one reads schema {SCHEMA}")
        if ended and self.torn:
            found.append(f"the last line of {EVENTS} was never finished and is skipped")
        return found


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
