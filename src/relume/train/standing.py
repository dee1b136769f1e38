"""Where this worker stands: the view in force, what is promised and planned, and the pen between its two threads.

The pen (rule 3) is a lock inside the worker. The main thread seals, sums and starts a take only while it holds the
pen and no ballot is promised; the background thread promises a ballot only while it holds the pen. From a promise
until a view at least as new is installed, the main thread writes nothing that others read.

A view that somebody joins or leaves by plan is proposed ahead of the step that it begins with (rule 10). Accepting it
is a promise too, under the same pen: not to begin that step before it is known whether the view comes. Once installed
it waits for its step. Messages may come twice or late: numbers decide.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable

from relume.arena.doorbell import Doorbells
from relume.core import view as views
from relume.errors import RunLost
from relume.wire.messages import Accepted, Ballot, Refused, Replay, View

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
        self.replay: Replay | None = None
        self._bells = bells
        self._view = view
        self._promised: Ballot = views.NONE
        self._withdrawn: Ballot = views.NONE
        self._accepted: dict[Ballot, View] = {}
        self._planned: dict[Ballot, View] = {}
        self._begun = -1
        self.waits: list[tuple[int, int]] = []
        self.on_look: Callable[[], None] = lambda: None
        self.on_view: Callable[[], None] = lambda: None
        """Called when another view is known, or one comes to nothing, by whoever hears of it: it must not wait."""

    # The background thread ----------------------------------------------------------------------------------

    def promise(self, ballot: Ballot) -> None:
        """Promise `ballot`: returns once the main thread can write nothing more under an older view.

        Older proposals come to nothing with it; what was installed stays planned.
        """
        with self.pen:
            self._promised = max(self._promised, ballot)
            self._accepted = {number: view for number, view in self._accepted.items() if number > ballot}

    def retire(self) -> None:
        """Promise never to write again: this worker has fenced itself (its script failed, or it leaves by plan)."""
        self.promise((1 << 62, 0))

    def propose(self, view: View) -> Accepted | Refused | None:
        """Promise not to begin the first step of `view` without it, or refuse; None if it is out of date (rule 10)."""
        with self.pen:
            if view.number in self._accepted:
                return Accepted(view.number)
            if view.number <= max(self._promised, self._withdrawn, self._newest()):
                return None
            if self._begun >= view.step:
                return Refused(view.number, self._begun)
            self._accepted[view.number] = view
        self.on_view()
        return Accepted(view.number)

    def withdraw(self, number: Ballot) -> None:
        """The proposal `number`, and any older one that is not installed, comes to nothing."""
        with self.pen:
            self._withdrawn = max(self._withdrawn, number)
            self._accepted = {other: view for other, view in self._accepted.items() if other > number}
        self.on_view()
        self.wake()

    def install(self, view: View) -> bool:
        """Put `view` in force, or, if it was accepted as a proposal, let it wait for its step (rules 9 and 10).

        Refused, with False, is what is older than the newest promise or than the view in force.
        """
        with self.pen:
            if view.number < self._promised or (self._view is not None and view.number < self._view.number):
                return False
            known = view.number in self._planned or (self._view is not None and view.number == self._view.number)
            if not known and self._accepted.pop(view.number, None) is not None:
                self._planned[view.number] = view
            elif not known:
                self._view = view
                self._planned = {number: other for number, other in self._planned.items() if number > view.number}
        self.on_view()
        self.wake()
        return True

    def close(self, view: View) -> None:
        """Every member has left its loop."""
        self.closed = view
        self.wake()

    def go_replay(self, order: Replay) -> None:
        """The run is under way: this worker has to come level before it can be admitted."""
        if self.replay is None or order.end > self.replay.end:
            self.replay = order
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

    def foreseen(self, step: int) -> View | None:
        """Return the view with this worker that will be in force in `step`, or the first one after, if any is known.

        A foresight and no promise: a proposal may come to nothing, and a loss changes everything. Any thread may ask.
        """
        known = [view for view in (self._view, *self._planned.values(), *self._accepted.values()) if view is not None]
        mine = [view for view in known if self.rank in view.members]
        due = [view for view in mine if view.step <= step]
        return max(due, key=lambda view: view.number) if due else min(mine, key=lambda view: view.step, default=None)

    @property
    def promised(self) -> bool:
        """True while a ballot is promised and its view is not there yet."""
        return self._view is None or self._view.number < self._promised

    def joined(self) -> None:
        """Wait until the agent has answered `Join`: with a view, or with the order to replay."""
        while (self._view is None or self.promised) and self.replay is None:
            self.wait()

    def begin(self, step: int) -> View | None:
        """Begin `step` once nothing proposed for it is undecided. Return the view, None if it leaves this worker out.

        From here on every proposal that begins with this step or an older one is refused.
        """
        if self._begun >= 0:  # the wait before the first step, for all to join, is told with that step
            self.waits = []
        while True:
            with self.pen:
                if all(view.step > step for view in self._accepted.values()):
                    self._enter_planned(step)
                    if not self.promised and self._view is not None:
                        self._begun = max(self._begun, step)
                        return self._view if self.rank in self._view.members else None
            self.wait()

    def admitted(self, step: int) -> bool:
        """True if a view with this worker is in force for `step`; asked by one that replays. It waits for nothing."""
        with self.pen:
            if any(view.step <= step for view in self._accepted.values()):
                return False
            self._enter_planned(step)
            view = self._view
            return view is not None and not self.promised and view.step <= step and self.rank in view.members

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

    @property
    def rings_always(self) -> bool:
        """True where a worker cannot be sure to see what another has sealed by the time that it has sealed itself.

        Where it can, only the last one of a phase rings: each looks after its own seal, so that one of them sees all.
        """
        return _WEAKLY_ORDERED

    def ring_others(self) -> None:
        """Tell the others that there is something new to read."""
        if self._bells is not None:
            self._bells.ring_others()

    # Within, under the pen ----------------------------------------------------------------------------------

    def _newest(self) -> Ballot:
        view = views.NONE if self._view is None else self._view.number
        return max([view, *self._planned])

    def _enter_planned(self, step: int) -> None:
        """Put the newest planned view that begins with `step` or before in force, and forget the ones before it."""
        due = [number for number, view in self._planned.items() if view.step <= step]
        if due:
            newest = max(due)
            self._view = self._planned[newest]
            self._planned = {number: view for number, view in self._planned.items() if number > newest}
