"""A side that dies, or does not answer, is an error that shows what it said; nobody waits for ever."""

import os
import sys

import pytest

from relume.bench import sides
from relume.bench.orders import Done, Save
from relume.bench.sides import Stage
from relume.errors import RunLost

PEER = """
import os, sys
from relume.bench.orders import Done, Line, Ready
line = Line.to_controller(sys.argv[1])
line.send(Ready("ddp", int(sys.argv[2]), os.getpid(), "2.13.0"))
while line.receive() is not None:
    {body}
"""


@pytest.fixture
def stage(tmp_path):
    with Stage(tmp_path, 2) as stage:
        yield stage


@pytest.fixture
def start(stage, tmp_path):
    def start(body):
        """Start a side of two processes that do `body` for each order."""
        side = stage._side("ddp")
        for rank in range(2):
            script = [sys.executable, "-c", PEER.format(body=body), str(tmp_path / "controller"), str(rank)]
            stage._start(side, f"rank-{rank}", script, dict(os.environ), ())
        return stage._gather(side)

    return start


def test_all_of_a_side_get_an_order_and_all_answer(start):
    side = start("line.send(Done(steps=int(sys.argv[2])))")
    assert side.order(Save("")) == [Done(steps=0), Done(steps=1)]
    assert len(set(side.pids)) == 2
    assert side.torch == "2.13.0"
    side.finish()
    assert [process.returncode for process in side.processes.values()] == [0, 0]


def test_one_that_dies_in_the_middle_is_told_with_its_last_words(start):
    side = start("sys.exit('no luck today') if sys.argv[2] == '1' else line.send(Done())")
    with pytest.raises(RunLost, match=r"(?s)process 1 ended in the middle.*--- rank-1\.log\nno luck today"):
        side.order(Save(""))


def test_one_that_does_not_answer_is_not_waited_for_for_ever(start, monkeypatch):
    monkeypatch.setattr(sides, "ANSWER_S", 0.3)
    side = start("sys.argv[2] == '0' or line.send(Done())")
    with pytest.raises(RunLost, match="process 0 gave no answer within 0 s"):
        side.order(Save(""))


def test_one_that_ends_with_an_error_though_all_was_done_is_an_error(start):
    side = start("line.send(Done())\n    import atexit; atexit.register(os._exit, 3)")
    side.order(Save(""))
    with pytest.raises(RunLost, match="rank-0 ended with exit code 3, though every step was made"):
        side.finish()


def test_a_side_that_cannot_start_says_why(stage):
    side = stage._side("ddp")
    stage._start(side, "rank-0", [sys.executable, "-c", "raise SystemExit('no such thing')"], dict(os.environ), ())
    with pytest.raises(RunLost, match=r"(?s)rank-0 ended with exit code 1 at its start.*no such thing"):
        stage._gather(side)


def test_what_changes_how_relume_runs_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("RELUME_TRAPS", "[]")
    monkeypatch.setenv("RELUME_SHARDS", "3")
    assert {name for name in sides._cleared() if name.startswith("RELUME_")} <= {"RELUME_TESTS"}
