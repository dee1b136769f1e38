"""Where a simulated worker stands: the pen between its two threads, its promise and its view.

A model of `train.standing` and of the handling in `train.link`. The main thread's methods are generators: every `yield`
is a point at which anything may happen, except that while the pen is held no promise can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from relume.core import view as views
from relume.simulate.processes import Way
from relume.wire.messages import Ask, Ballot, Close, Install, Promised, View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker

TOUCH_S = 0.00002
"""A write, or a look at shared words."""

NEVER: Ballot = (1 << 62, 0)
"""Promised by a worker that fences itself."""


class Standing:
    """The pen's rules (rule 3)."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.pen = worker.pen
        self.bell = worker.bell
        self.view: View | None = None
        self.promise_made: Ballot = views.NONE
        self.closed: View | None = None
        self.waits = False
        """The main thread waits for a view, in the middle of something else."""
        self.waited_s = 0.0
        """When it last did."""

    @property
    def promised(self) -> bool:
        """True while a ballot is promised and its view is not there yet."""
        return self.view is None or self.view.number < self.promise_made

    # The background thread ----------------------------------------------------------------------------------

    def listen(self) -> Way:
        """Answer the agent for ever."""
        while True:
            message = yield self.worker.inbox
            yield TOUCH_S
            if isinstance(message, Ask):
                yield from self.promise(message.ballot)
                yield TOUCH_S
                self.worker.send(Promised(message.ballot))
            elif isinstance(message, Install):
                yield self.pen
                if message.view.number >= self.promise_made:
                    self.view = message.view
                self.pen.release()
                self.bell.ring()
            elif isinstance(message, Close):
                self.closed = message.view
                self.bell.ring()

    def promise(self, ballot: Ballot) -> Way:
        """Promise `ballot` under the pen."""
        yield self.pen
        self.promise_made = max(self.promise_made, ballot)
        self.pen.release()

    # The main thread ----------------------------------------------------------------------------------------

    def write(self, *actions: Callable[[], None]) -> Way:
        """Do `actions` under the pen as soon as nothing is promised; the process may die between two of them."""
        while True:
            yield self.pen
            if not self.promised:
                for action in actions:
                    action()
                    yield TOUCH_S
                self.pen.release()
                return
            self.pen.release()
            yield from self._wait()

    def _wait(self) -> Way:
        self.waits = True
        yield self.bell
        self.waits, self.waited_s = False, self.worker.world.scheduler.now

    def write_if(self, view: View, *actions: Callable[[], None]) -> Generator[Any, Any, bool]:
        """Do `actions` under the pen if `view` is still in force and nothing is promised; False if they were not."""
        yield self.pen
        if self.view is not view or self.promised:
            self.pen.release()
            return False
        for action in actions:
            action()
            yield TOUCH_S
        self.pen.release()
        return True

    def settled(self) -> Generator[Any, Any, View]:
        """Return the view in force once no ballot is promised."""
        while True:
            yield self.pen
            settled, view = not self.promised, self.view
            self.pen.release()
            if settled and view is not None:
                return view
            yield from self._wait()
