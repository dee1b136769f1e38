"""A thread that sums this worker's blocks while its main thread is in backward.

It has work only where a shard has one backward (`run.steps(..., single_backward=True)`), and is made only where there
are more cores than workers keep busy: on a core that backward needs as well, it would take what it gives. What it may
do is the engine's affair; it follows the same rules, under the same pen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

LOOK_S = 0.0005
"""How long it rests before it looks again, while a leaf is open: what others have made whole comes without a ring."""
REST_S = 1.0


def is_worth_it(workers: int, threads: int) -> bool:
    """True if `workers` of this host, with `threads` each, leave a core free. `RELUME_OVERLAP` (on, off) overrules."""
    forced = os.environ.get("RELUME_OVERLAP", "")
    if forced in {"on", "off"}:
        return forced == "on"
    return len(os.sched_getaffinity(0)) > workers * threads


class Summer:
    """Calls `sum_one`, which says whether there was something to do, from the first `look` until the next `pause`."""

    def __init__(self, sum_one: Callable[[], bool]) -> None:
        self._sum_one = sum_one
        self._looking = False
        self._ended = False
        self._wanted = threading.Event()
        self._at_work = threading.Lock()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="relume-summer", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """There may be something to sum."""
        if not self._looking:
            self._looking = True
            self._wanted.set()

    def pause(self) -> None:
        """Return once it does nothing any more, which takes a block at most. Raises what it has met with."""
        self._looking = False
        self._wanted.clear()
        with self._at_work:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """End the thread."""
        self._ended, self._looking = True, False
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            if not self._wanted.wait(REST_S):
                continue
            with self._at_work:
                worked = self._looking and self._try()
            if not worked:
                time.sleep(LOOK_S)

    def _try(self) -> bool:
        try:
            return self._sum_one()
        except BaseException as error:  # noqa: BLE001  (it is raised where somebody hears it)
            self._error = error
            self._looking = False
            self._wanted.clear()
            return False
