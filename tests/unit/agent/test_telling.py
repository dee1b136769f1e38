"""What workers wait for is done before anything is written for people."""

from __future__ import annotations

from types import SimpleNamespace

from relume.agent.supervisor import Supervisor
from relume.core import events as core
from relume.core import view as views
from relume.core.states import State


class Bare(Supervisor):
    """A supervisor without anything around it, that notes what it does."""

    def __init__(self, answer):
        self._result = None
        self.done = []
        self._core = SimpleNamespace(handle=lambda *_: answer, state=State.STEADY)

    def __getattribute__(self, name):
        if name in {"_send", "_on_view", "_on_incident", "_fence", "_remark", "_left"}:
            return lambda *arguments: self.done.append((name, arguments[0]))
        return super().__getattribute__(name)


def test_every_survivor_has_its_view_before_the_first_line_is_written():
    view = views.first(1, [0, 2, 3], 4)
    cause = core.Cause("signal", "it was killed")
    incident = core.Incident(1, cause, (1, 2), 3, {}, 0.0, 0.0, 0.0, 0.0)
    bare = Bare([core.Tell("respawn", "x", 1), *(core.InstallView(rank, view) for rank in (0, 2, 3)), incident])
    bare._tell(core.Tick())
    sent = [("_send", rank) for rank in (0, 2, 3)]
    assert bare.done == [*sent, ("_remark", 1), ("_on_view", view), ("_on_incident", incident)]


def test_the_kill_and_the_ballot_go_out_before_what_is_told_of_it():
    bare = Bare([core.Tell("respawn", "x", 1), core.Fence(1), core.AskPromise(0, (1, 2)), core.Left(3, "so")])
    bare._tell(core.Tick())
    assert bare.done == [("_fence", 1), ("_send", 0), ("_remark", 1), ("_left", 3)]


def test_nothing_is_done_once_the_run_is_over():
    bare = Bare([core.Fence(1)])
    bare._result = object()
    bare._tell(core.Tick())
    assert bare.done == []
