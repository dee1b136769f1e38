"""What a worker is doing, as one small coloured mark per look: the strip beside each worker in the live view."""

from __future__ import annotations

from collections import deque

from rich.text import Text

from relume.observe.observer import Snapshot

STRIP_MAX = 200
LOST = "lost"
GONE = "gone"
REPLAY = "replay"
SPARE = "spare"

_KINDS = {
    "load": "load",
    "forward": "forward",
    "backward": "backward",
    "publish": "sum",
    "sum": "sum",
    "take": "sum",
    "update": "update",
    "between": "update",
    "wait": "wait",
    "view": "view",
}
_LOOKS = {
    "load": ("▁", "l", "blue"),
    "forward": ("▃", "f", "cyan"),
    "backward": ("▅", "b", "green"),
    "sum": ("▆", "s", "magenta"),
    "update": ("▇", "u", "yellow"),
    "wait": ("·", ".", "bright_black"),
    "view": ("!", "!", "bold yellow"),
    "other": ("-", "-", "bright_black"),
    REPLAY: ("»", "r", "bold blue"),
    SPARE: ("○", "o", "bright_black"),
    LOST: ("✗", "X", "bold red"),
    GONE: (" ", " ", ""),
}


def kind(phase: str) -> str:
    """Return which of the marks shows `phase`."""
    return _KINDS.get(phase, "other")


def style(phase: str) -> str:
    """Return the colour of `phase`."""
    return _LOOKS[kind(phase)][2]


_STATES = {"starting": GONE, "ended": GONE, "replaying": REPLAY, "spare": SPARE}
"""What a worker's state shows, if not its phase."""


class Strips:
    """The latest marks of every worker."""

    def __init__(self, *, ascii_only: bool) -> None:
        self._which = 1 if ascii_only else 0
        self._strips: dict[int, deque[str]] = {}
        self._lives: dict[int, int] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Add a mark for each worker. All strips keep the same time, so a lost worker's goes dark."""
        for worker in snapshot.reply.workers if snapshot.reply is not None else ():
            strip = self._strips.setdefault(worker.rank, deque(maxlen=STRIP_MAX))
            replaced = worker.life > self._lives.setdefault(worker.rank, worker.life)
            self._lives[worker.rank] = worker.life
            if worker.state == "lost" or (replaced and strip[-1] not in {LOST, GONE}):
                strip.append(GONE if strip and strip[-1] in {LOST, GONE} else LOST)
            else:
                strip.append(_STATES.get(worker.state, kind(worker.phase)))

    def strip(self, rank: int, width: int) -> Text:
        """Return the `width` newest marks of `rank`, the newest on the right."""
        newest = list(self._strips.get(rank, ()))[-width:]
        text = Text(" " * (width - len(newest)))
        for mark in newest:
            text.append(self._sign(mark), _LOOKS[mark][2])
        return text

    def legend(self) -> Text:
        """Say what the marks mean; those of a state are beside its name."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for name in ("load", "forward", "backward", "sum", "update", "wait", LOST):
            text.append(self._sign(name), _LOOKS[name][2])
            text.append(f" {name}   ", "bright_black")
        text.rstrip()
        return text

    def _sign(self, mark: str) -> str:
        return _LOOKS[mark][self._which]
