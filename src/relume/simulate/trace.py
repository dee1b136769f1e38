"""What happened, in order: kept as values, written out only when somebody wants to read it."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from relume.simulate.scheduler import Scheduler

TAIL = 60
"""Lines that are shown of a history that went wrong."""


class Trace:
    """`note` is called very often and does nothing but remember. `length` None keeps everything."""

    def __init__(self, scheduler: Scheduler, length: int | None = TAIL) -> None:
        self._scheduler = scheduler
        self._entries: deque[tuple[float, object, tuple[object, ...]]] = deque(maxlen=length)

    def note(self, who: object, *what: object) -> None:
        """Remember that `who` (a rank, or a name) did `what`."""
        self._entries.append((self._scheduler.now, who, what))

    def lines(self) -> list[str]:
        """Return what is remembered, oldest first."""
        return [
            f"{at * 1000.0:10.3f} ms  {f'worker {who}' if isinstance(who, int) else who:<12} "
            + " ".join(_text(part) for part in what)
            for at, who, what in self._entries
        ]


def _text(value: Any) -> str:  # noqa: ANN401 - anything that a note may hold
    if isinstance(value, str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{field.name}={_text(getattr(value, field.name))}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in {"traceback", "shape"}]
        return f"{type(value).__name__}({', '.join(f'{name}={_text(getattr(value, name))}' for name in names)})"
    return repr(value)
