"""How much work a process has done, and how politely: from /proc, while it is still there."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from relume.chaos.evidence import Who
from relume.chaos.scene import Scene

LOOK_S = 0.02
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Effort:
    """CPU seconds, over all threads; niceness; scheduling policy (0: the normal one)."""

    cpu_s: float
    nice: int
    policy: int


def effort(pid: int) -> Effort | None:
    """Return what `pid` has done so far, None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in {"Z", "X"}:
        return None
    return Effort((int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[16]), int(fields[38]))


class Witness:
    """Notes, in a thread of its own, what each joiner of a run did until it was level: `with Witness(...) as it:`."""

    def __init__(self, run_dir: Path) -> None:
        self._scene = Scene.of(run_dir)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="relume-witness", daemon=True)
        self.efforts: dict[Who, Effort] = {}

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            before = set(self._scene.joiners)
            self._scene.look()
            for who in {*before, *self._scene.joiners}:  # those who have just come level once more
                if (found := effort(self._scene.pids[who])) is not None:
                    before_that = self.efforts.get(who, found)  # its priority is given back when it is level
                    politest = max(found.nice, before_that.nice), max(found.policy, before_that.policy)
                    self.efforts[who] = Effort(found.cpu_s, *politest)
