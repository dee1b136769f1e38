"""`relume scale`: what it asks, how it waits, and what it says when nothing comes of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from relume.agent.status import StatusServer
from relume.cli import scale
from relume.cli.main import main
from relume.wire.messages import ScaleReply
from tests.unit.observe.paper import DEAD_PID, events_of_a_run, reply_with, worker, write_run

FOUR = [worker(rank) for rank in range(4)]
RUN = f"test-scale-{os.getpid()}"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(scale, "PERIOD_S", 0.001)


class Agent:
    """An agent that answers and starts nobody: `replies` come one after the other, the last one for ever."""

    def __init__(self, *replies, refused=""):
        self.replies, self.refused, self.asked = list(replies), refused, []
        self._loop = asyncio.new_event_loop()
        self._server = StatusServer(RUN, self._status, self._scale)
        self._thread = threading.Thread(target=self._loop.run_forever)

    def _status(self):
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def _scale(self, workers):
        self.asked.append(workers)
        return ScaleReply(4, workers, self.refused)

    def __enter__(self):
        self._server.start(self._loop)
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close(self._loop)
        self._loop.close()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A live run's folder, `latest` in the current directory."""
    monkeypatch.setattr("tests.unit.observe.paper.RUN", RUN)
    folder = write_run(tmp_path / "relume-runs", events_of_a_run(ended=False, agent_pid=os.getpid()), RUN)
    (folder.parent / "latest").symlink_to(RUN)
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_latest_run_is_asked_and_what_comes_of_it_is_said(run, capsys):
    with Agent(reply_with(*FOUR, target=4)) as agent:
        assert main(["scale", "5"]) == 0
        assert main(["scale", "4", RUN]) == 0
        assert main(["scale", "2", "--wait", "--timeout", "0", RUN]) == 1  # flags may stand anywhere
        assert main(["scale", "--json", "2", str(run)]) == 0
    assert agent.asked == [5, 4, 2, 2]
    *lines, as_json = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"run {RUN}: 5 workers instead of 4", f"run {RUN}: 4 workers, as before"]
    told = json.loads(as_json)
    assert (told["before"], told["workers"], told["refused"], told["members"]) == (4, 2, "", None)


def test_a_refusal_says_why(run, capsys):
    with Agent(reply_with(*FOUR), refused="this run has 8 seats (--max-workers)"):
        assert main(["scale", "9"]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert f"relume scale: run {RUN} refuses 9 workers: this run has 8 seats (--max-workers)" in err
        assert main(["scale", "9", "--wait", "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["refused"] == "this run has 8 seats (--max-workers)"


def test_waiting_tells_how_it_goes_and_ends_with_the_last_one_in(run, capsys):
    stages = [
        reply_with(*FOUR, target=4),
        reply_with(*FOUR, worker(4, "starting"), target=5),
        reply_with(*FOUR, worker(4, "starting"), target=5),
        reply_with(*FOUR, worker(4, "replaying"), target=5),
        reply_with(*FOUR, worker(4, "spare"), target=5),
        reply_with(*FOUR, worker(4), target=5),
    ]
    with Agent(*stages):
        assert main(["scale", "5", "--wait"]) == 0
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        "4 workers in, worker 4 starting",
        "4 workers in, worker 4 replaying",
        "4 workers in, worker 4 level",
        "5 members: 0, 1, 2, 3 and 4",
    ]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (reply_with(*FOUR, state="closed", target=5), "every step is done"),
        (reply_with(*FOUR, state="ended", target=5), "the run is over"),
        (reply_with(*FOUR, target=3), "the run is to have 3 workers now"),
        (reply_with(*FOUR, worker(4, "starting"), target=5), "4 workers in, worker 4 starting after 0.0 ms"),
    ],
)
def test_waiting_in_vain_ends_and_says_why(run, reply, why, capsys):
    with Agent(reply_with(*FOUR, target=4), reply):
        assert main(["scale", "5", "--wait", "--timeout", "0"]) == 1
    assert f"relume scale: {why}" in capsys.readouterr().err


def test_waiting_ends_when_nobody_answers_any_more():
    """Once is no reason: an agent may be late."""
    answers = iter([None, reply_with(*FOUR, target=5), None, None, None])
    reached = scale.wait(RUN, 5, 60.0, lambda line: None, asking=lambda run: next(answers))
    assert (reached.members, reached.missed) == ((), scale.GONE)


def test_only_a_live_run_can_be_scaled(tmp_path, capsys):
    write_run(tmp_path, events_of_a_run(), "over")
    write_run(tmp_path, events_of_a_run(ended=False, agent_pid=DEAD_PID), "dead")
    for name, words in (("over", "is over (completed): every step is done"), ("dead", "is dead"), ("none", "no run")):
        assert main(["scale", "3", name, "--run-dir-root", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("relume scale: ")
        assert words in err


@pytest.mark.parametrize("words", [["0"], ["-1"], ["many"], [], ["2", "--timeout", "nan"], ["2", "--timeout", "inf"]])
def test_a_number_that_is_none_is_refused_before_anybody_is_asked(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["scale", *words])
    assert stop.value.code == 2
    assert "relume scale: error" in capsys.readouterr().err
