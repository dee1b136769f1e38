"""Where a simulated worker stands: the pen between its two threads, its promises and its views.

A model of `train.standing` and of the handling in `train.link`. The main thread's methods are generators: every `yield`
is a point at which anything may happen, except that while the pen is held no promise can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from relume.core import view as views
from relume.simulate.processes import Way
from relume.wire.messages import (
    Accepted,
    Ask,
    Ballot,
    Close,
    Install,
    Promised,
    Propose,
    Refused,
    Replay,
    Stop,
    View,
    Withdraw,
)

if TYPE_CHECKING:
    from relume.simulate.worker import Worker

TOUCH_S = 0.00002
"""A write, or a look at shared words."""

NEVER: Ballot = (1 << 62, 0)
"""Promised by a worker that fences itself."""


class Standing:
    """The pen's rules (rules 3, 9 and 10)."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.pen = worker.pen
        self.bell = worker.bell
        self.view: View | None = None
        self.promise_made: Ballot = views.NONE
        self.withdrawn: Ballot = views.NONE
        self.accepted: dict[Ballot, View] = {}
        self.planned: dict[Ballot, View] = {}
        self.begun = -1
        self.closed: View | None = None
        self.replay: Replay | None = None

    @property
    def promised(self) -> bool:
        """True while a ballot is promised and its view is not there yet."""
        return self.view is None or self.view.number < self.promise_made

    # The background thread ----------------------------------------------------------------------------------

    def listen(self) -> Way:  # noqa: C901 - one flat case per message
        """Answer the agent for ever."""
        worker = self.worker
        while True:
            message = yield worker.inbox
            worker.hears = "admission" if isinstance(message, Propose | Withdraw) else "view"
            yield TOUCH_S
            if isinstance(message, Ask):
                yield from self.promise(message.ballot)
                yield TOUCH_S
                worker.send(Promised(message.ballot))
            elif isinstance(message, Install):
                yield from self.install(message.view)
            elif isinstance(message, Propose):
                answer = yield from self.propose(message.view)
                yield TOUCH_S
                if answer is not None:
                    worker.send(answer)
            elif isinstance(message, Withdraw):
                yield from self.withdraw(message.number)
            elif isinstance(message, Replay):
                if self.replay is None or message.end > self.replay.end:
                    self.replay = message
                self.bell.ring()
            elif isinstance(message, Close):
                self.closed = message.view
                self.bell.ring()
            elif isinstance(message, Stop):
                worker.kill()
            worker.hears = "view"

    def promise(self, ballot: Ballot) -> Way:
        """Promise `ballot` under the pen. Older proposals come to nothing with it; what is planned stays."""
        yield self.pen
        self.promise_made = max(self.promise_made, ballot)
        self.forget(ballot)
        self.pen.release()

    def forget(self, ballot: Ballot) -> None:
        """Drop what was proposed before `ballot`."""
        self.accepted = {number: view for number, view in self.accepted.items() if number > ballot}

    def propose(self, view: View) -> Generator[Any, Any, Accepted | Refused | None]:
        """Promise not to begin the first step of `view` without it, or refuse; None if it is out of date (rule 10)."""
        yield self.pen
        answer = self.answer(view)
        self.pen.release()
        return answer

    def answer(self, view: View) -> Accepted | Refused | None:
        """Judge a proposal, under the pen."""
        if view.number in self.accepted:
            return Accepted(view.number)
        if view.number <= max(self.promise_made, self.withdrawn, self._newest()):
            return None
        if self.begun >= view.step:
            return Refused(view.number, self.begun)
        self.accepted[view.number] = view
        return Accepted(view.number)

    def withdraw(self, number: Ballot) -> Way:
        """The proposal `number`, and any older one that is not installed, comes to nothing."""
        yield self.pen
        self.withdrawn = max(self.withdrawn, number)
        self.forget(number)
        self.pen.release()
        self.bell.ring()

    def install(self, view: View) -> Way:
        """Put `view` in force, or, if it was accepted as a proposal, let it wait for its step (rules 9 and 10)."""
        yield self.pen
        if view.number >= self.promise_made and (self.view is None or view.number >= self.view.number):
            known = view.number in self.planned or (self.view is not None and view.number == self.view.number)
            if not known and self.accepted.pop(view.number, None) is not None:
                self.planned[view.number] = view
            elif not known:
                self.view = view
                self.planned = {number: other for number, other in self.planned.items() if number > view.number}
        self.pen.release()
        self.bell.ring()

    # The main thread ----------------------------------------------------------------------------------------

    def joined(self) -> Way:
        """Wait until the agent has answered `Join`: with a view, or with the order to replay."""
        while self.promised and self.replay is None:
            yield from self.wait()

    def begin(self, step: int) -> Generator[Any, Any, View | None]:
        """Begin `step` once nothing proposed for it is undecided; return the view, None if this worker is not in it."""
        while True:
            yield self.pen
            if self.undisputed(step):
                self._enter_planned(step)
                if not self.promised and self.view is not None:
                    self.begun = max(self.begun, step)
                    view = self.view
                    self.worker.world.check.begun(self.worker, step, view)
                    self.pen.release()
                    return view if self.worker.rank in view.members else None
            self.pen.release()
            yield from self.wait()

    def undisputed(self, step: int) -> bool:
        """Return whether no undecided proposal begins with `step` or before."""
        return all(view.step > step for view in self.accepted.values())

    def admitted(self, step: int) -> Generator[Any, Any, bool]:
        """Return whether a view with this worker is in force for `step`; asked by one that replays."""
        yield self.pen
        admitted = False
        if self.undisputed(step):
            self._enter_planned(step)
            admitted = self.includes(step)
        self.pen.release()
        return admitted

    def includes(self, step: int) -> bool:
        """Return whether the view in force is for `step` and has this worker in it."""
        view = self.view
        return view is not None and not self.promised and view.step <= step and self.worker.rank in view.members

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
            yield from self.wait()

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
            yield from self.wait()

    def wait(self) -> Way:
        """Wait for the doorbell, at most its limit (Invariant 6). Each look moves the counter, so it is no culprit."""
        self.worker.advance()
        yield self.bell

    # Within, under the pen ----------------------------------------------------------------------------------

    def _newest(self) -> Ballot:
        view = views.NONE if self.view is None else self.view.number
        return max([view, *self.planned])

    def _enter_planned(self, step: int) -> None:
        due = [number for number, view in self.planned.items() if view.step <= step]
        if due:
            newest = max(due)
            self.view = self.planned[newest]
            self.planned = {number: view for number, view in self.planned.items() if number > newest}
