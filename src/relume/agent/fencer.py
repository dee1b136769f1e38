"""Having a worker fenced: kill it, and say when it can write no more (Invariant 4).

A worker that has fenced itself (its script raised, or it left by plan) writes nothing any more and may end in its own
time. For the control of `relume chaos` a CPU burner takes the place of each that is gone.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

from relume.agent.fence import is_fenced, kill_group
from relume.agent.worker import Worker

LOOKS, NAP_S = 5, 0.0001
"""So often it is looked again very soon, each time after what else there is to do: where cores are idle, the threads of
a dying worker need 0.1 ms to be on their way out, and the loop itself cannot sleep for less than a millisecond."""
POLL_S = 0.001
LAST_WORDS_S = 5.0
"""A worker whose script raised has this long for its own clean-up; it writes nothing in the arena meanwhile."""


class Fencer:
    """`fenced(worker)` is called once for each that can write no more."""

    def __init__(self, fenced: Callable[[Worker], None], *, burner: bool) -> None:
        self._fenced = fenced
        self._burner = burner
        self._burners: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def fence(self, worker: Worker) -> None:
        """Kill `worker` and everything that it started."""
        loop = asyncio.get_running_loop()
        worker.condemned = True
        if worker.wait_status is not None or worker.self_fenced:
            loop.call_soon(self.note, worker)
            loop.call_later(LAST_WORDS_S, self._end_by_force, worker)
            return
        kill_group(worker.pid)
        loop.call_soon(self._poll, worker, LOOKS)

    def note(self, worker: Worker) -> None:
        """It can write no more: it is known to be fenced, or its process has ended."""
        if not worker.fenced:
            worker.fenced = True
            self._fenced(worker)
            if not worker.self_fenced:
                self._burn()

    def close(self) -> None:
        """End what was started here."""
        self._closed = True
        for burner in self._burners:
            burner.kill()
            burner.wait()

    def _poll(self, worker: Worker, looks: int) -> None:
        if worker.fenced:
            return
        if worker.wait_status is not None or is_fenced(worker.pid):
            self.note(worker)
        elif looks:
            time.sleep(NAP_S)
            asyncio.get_running_loop().call_soon(self._poll, worker, looks - 1)
        else:
            asyncio.get_running_loop().call_later(POLL_S, self._poll, worker, 0)

    def _end_by_force(self, worker: Worker) -> None:
        if worker.wait_status is None and not self._closed:
            kill_group(worker.pid)
            self._burn()  # until now it burned itself

    def _burn(self) -> None:
        if self._burner and not self._closed:
            self._burners.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
