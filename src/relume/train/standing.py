"""Where this worker stands: the view in force, the ballot promised, and the pen between its two threads.

The pen (rule 3) is a lock inside the worker. The main thread seals, sums and starts a take only while it holds the
pen and no ballot is promised; the background thread promises a ballot only while it holds the pen. From a promise
until a view at least as new is installed, the main thread writes nothing that others read.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable

from relume.arena.doorbell import Doorbells
from relume.core import view as views
from relume.errors import RunLost
from relume.wire.messages import Ballot, View

WAIT_S = 1.0
"""Every wait looks again after this long, so that a lost ring costs a second and never a run (Invariant 6)."""
_SAME_WAIT_NS = 1_000_000
_WEAKLY_ORDERED = platform.machine().lower() not in {"x86_64", "amd64", "i386", "i686"}


class Standing:
    """Shared by the main thread and the background thread of one worker."""

    def __init__(self, rank: int, bells: Doorbells | None, view: View | None = None) -> None:
        self.rank = rank
        self.pen = threading.Lock()
        self.closed: View | None = None
        self._bells = bells
        self._view = view
        self._promised: Ballot = views.NONE
        self.waits: list[tuple[int, int]] = []
        self.on_look: Callable[[], None] = lambda: None

    # The background thread ----------------------------------------------------------------------------------

    def promise(self, ballot: Ballot) -> None:
        """Promise `ballot`: returns once the main thread can write nothing more under an older view."""
        with self.pen:
            self._promised = max(self._promised, ballot)

    def retire(self) -> None:
        """Promise never to write again: this worker has fenced itself (its script failed, or it leaves by plan)."""
        self.promise((1 << 62, 0))

    def install(self, view: View) -> bool:
        """Put `view` in force unless something newer is promised (rule 9); True if it is now."""
        with self.pen:
            if view.number < self._promised:
                return False
            self._view = view
        self.wake()
        return True

    def close(self, view: View) -> None:
        """Every member has left its loop."""
        self.closed = view
        self.wake()

    def wake(self) -> None:
        """Ring this worker's own doorbell."""
        if self._bells is not None:
            self._bells.ring_self()

    # The main thread ----------------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        """The view in force; a newer ballot may be promised."""
        return self._view

    @property
    def promised(self) -> bool:
        """True while a ballot is promised and its view is not there yet."""
        return self._view is None or self._view.number < self._promised

    def write_if(self, view: View, action: Callable[[], None]) -> bool:
        """Run `action` under the pen if `view` is still in force and nothing is promised; False if it was not run."""
        with self.pen:
            if self._view is not view or self.promised:
                return False
            action()
            return True

    def write(self, action: Callable[[], None]) -> None:
        """Run `action`, a seal, under the pen as soon as no ballot is promised."""
        if _WEAKLY_ORDERED:
            with self.pen:
                pass  # its release puts the payload before the seal (rule 1); x86 keeps stores in order by itself
        while True:
            with self.pen:
                if not self.promised:
                    action()
                    return
            self.wait()

    def settled(self) -> View:
        """Return the view in force, after waiting until no ballot is promised."""
        while True:
            with self.pen:
                if not self.promised and self._view is not None:
                    return self._view
            self.wait()

    def wait(self) -> bool:
        """Wait for the doorbell, at most `WAIT_S`."""
        if self._bells is None:
            raise RunLost("a run of one worker waits for nobody: this is a defect in relume")
        self.on_look()  # who waits is no culprit, also where the wait is in the middle of its own work
        start = time.monotonic_ns()
        rung = self._bells.wait(WAIT_S)
        if self.waits and start - self.waits[-1][1] < _SAME_WAIT_NS:
            start = self.waits.pop()[0]
        self.waits.append((start, time.monotonic_ns()))
        return rung

    def ring_others(self) -> None:
        """Tell the others that there is something new to read."""
        if self._bells is not None:
            self._bells.ring_others()
