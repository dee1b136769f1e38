"""Step and loss from the records that workers write when RELUME_RECORD names a folder.

Plain runs write them too, so an undisturbed run without any agent can be watched by them. What a record proves is
`tools/verify.py`'s business; here it is only shown.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from relume.observe.tail import Tail


class _Record(msgspec.Struct):
    step: int
    means: dict[str, str]


_record = msgspec.json.Decoder(_Record)


class Records:
    """The newest step in the records under `folder`, whoever wrote it. `loss` is the logged value to show."""

    def __init__(self, folder: Path, loss: str = "loss") -> None:
        self._folder = folder
        self._name = loss
        self._tails: dict[str, Tail] = {}
        self.steps = 0
        self.loss = math.nan

    def read(self) -> None:
        """Take in what is new."""
        try:
            for path in sorted(self._folder.glob("record-*.jsonl")):
                tail = self._tails.setdefault(path.name, Tail(path))
                for line in tail.lines():
                    self._take(line)
        except OSError:
            return  # nothing to show, and nothing that anybody else would miss

    def _take(self, text: bytes) -> None:
        try:
            record = _record.decode(text)
            if record.step < self.steps:
                return
            self.loss = float.fromhex(record.means.get(self._name, "nan"))
        except (msgspec.MsgspecError, ValueError):
            return
        self.steps = record.step + 1
