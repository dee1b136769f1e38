"""Strangers: processes as heavy as a joiner that have nothing to do with the run, for the control (see `beside`).

A stranger runs the same script by itself, from its imports on, at a joiner's priority, and is ended when it has had as
much CPU time as the joiner took until it was level.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from relume.chaos.effort import Effort, effort
from relume.chaos.outside import LOOK_S, Pace


class Strangers:
    """Starts one beside the fleet at each of `steps` of its run, in a thread: `with Strangers(...) as they:`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        record_dir: Path,
        steps: Sequence[float],
        like: Effort,
    ) -> None:
        self._command, self._environment, self._like = list(command), dict(environment), like
        self._pace = Pace(record_dir)
        self._steps = sorted(steps)
        self._running: list[tuple[subprocess.Popen[bytes], int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="relume-strangers", daemon=True)
        self.seen: list[tuple[int, int]] = []
        """When each began and ended."""

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End those that are still there."""
        self._over.set()
        self._thread.join()
        for process, began_ns in self._running:
            self._end(process, began_ns)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            while self._steps and self._pace.age() >= self._steps[0]:
                self._steps.pop(0)
                self._start()
            for process, began_ns in list(self._running):
                done = effort(process.pid)
                if done is None or done.cpu_s >= self._like.cpu_s:
                    self._running.remove((process, began_ns))
                    self._end(process, began_ns)

    def _start(self) -> None:
        began_ns = time.monotonic_ns()
        null = subprocess.DEVNULL
        process = subprocess.Popen(self._command, stdin=null, stdout=null, stderr=null, env=self._environment)
        self._running.append((process, began_ns))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, self._like.nice)
            if self._like.policy:
                os.sched_setscheduler(process.pid, self._like.policy, os.sched_param(0))

    def _end(self, process: subprocess.Popen[bytes], began_ns: int) -> None:
        process.kill()
        process.wait()
        self.seen.append((began_ns, time.monotonic_ns()))
