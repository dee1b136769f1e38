"""What is done to a live fleet from outside, when it can be done, and to whom: events by hand, processes that sleep."""

import os
import subprocess
import sys
import time

import msgspec
import pytest

from relume.chaos import outside
from relume.chaos.effort import Effort, Witness, effort
from relume.chaos.outside import Killer
from relume.chaos.scene import Scene
from relume.chaos.schedule import KillAll, Pick, Rescale
from relume.chaos.stranger import Strangers
from relume.wire.events import Line, RunStarted, Scaled, ViewInstalled, WorkerLeft, WorkerLevel, WorkerStarted
from relume.wire.messages import ScaleReply
from tests.unit.chaos.test_trial import lost, record_line


class Run:
    """A run's events, as they come."""

    def __init__(self, folder, workers):
        self.path = folder / "events.jsonl"
        self.tell(RunStarted("run", os.getpid(), workers, ()))

    def tell(self, *events):
        with self.path.open("ab") as file:
            for event in events:
                file.write(msgspec.json.encode(Line(1, 100.0, time.monotonic_ns(), event)) + b"\n")

    def view(self, number, members):
        self.tell(ViewInstalled((1, number), 0, members, ()))


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, 3)


@pytest.fixture
def sleepers():
    """Processes that wait to be killed, by (rank, life)."""
    found = {}

    def start(*who):
        for each in who:
            found[each] = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        return [WorkerStarted(rank, found[rank, life].pid, life) for rank, life in who]

    start.found = found
    yield start
    for process in found.values():
        process.kill()
        process.wait()


def seen(tmp_path):
    scene = Scene.of(tmp_path)
    scene.look()
    return scene


def test_who_is_there_is_told_by_the_events(run, tmp_path):
    assert not Scene.of(tmp_path / "nowhere").there
    run.tell(*(WorkerStarted(rank, 10 + rank) for rank in range(4)))
    run.view(1, (0, 1, 2))
    scene = seen(tmp_path)
    assert scene.live == [(0, 0), (1, 0), (2, 0)]
    assert scene.there == [*scene.live, (3, 0)]  # a spare
    assert (scene.whole, scene.joiners, scene.run) == (True, [], "run")

    run.tell(lost(2, "sum", 5), WorkerStarted(2, 22, 1))
    scene.look()
    assert (scene.live, scene.whole, scene.joiners) == ([(0, 0), (1, 0)], False, [(2, 1)])
    run.view(2, (0, 1))
    run.tell(WorkerLevel(2, 22, 1, 9, 0, "d"))
    scene.look()
    assert (scene.live, scene.joiners) == ([(0, 0), (1, 0)], [])
    run.view(3, (0, 1, 2))
    scene.look()
    assert (scene.live, scene.whole) == ([(0, 0), (1, 0), (2, 1)], True)
    run.tell(Scaled(3, 2), WorkerLeft(1, 11, 0, "scaled"))
    scene.look()
    assert (scene.live, scene.whole) == ([(0, 0), (2, 1)], True)
    assert scene.late == {(2, 1)}


def killer(tmp_path, *actions):
    (tmp_path / "record-0.jsonl").write_bytes(record_line(0, 0))
    return Killer(tmp_path, tmp_path, os.getpid(), actions)


def working(hand, *, alive_s=0.5):
    end = time.monotonic() + alive_s
    hand.work(lambda: time.monotonic() < end, end + 10)
    return hand


def test_a_pick_kills_a_member_that_is_not_spared(run, sleepers, tmp_path):
    run.tell(*sleepers((0, 0), (1, 0), (2, 0), (3, 0)))
    run.view(1, (0, 1, 2))
    hand = working(killer(tmp_path, Pick(0.5, 1, "dice", frozenset({0, 1}))))
    assert list(hand.killed_ns) == [(2, 0)]
    assert sleepers.found[2, 0].wait(10) == -9
    assert hand.errors == []


def test_whom_a_pick_kills_is_decided_by_the_seed(run, sleepers, tmp_path):
    run.tell(*sleepers((0, 0), (1, 0), (2, 0)))
    run.view(1, (0, 1, 2))
    hands = [killer(tmp_path, Pick(0.5, 1, f"dice {seed}", frozenset())) for seed in range(30)]
    for hand in hands:
        hand._scene.look()
    chosen = [hand._pick(hand._actions[0]) for hand in hands]
    assert {who for (who,) in chosen} == {(0, 0), (1, 0), (2, 0)}
    assert chosen == [hand._pick(hand._actions[0]) for hand in hands]


def test_a_pick_waits_until_somebody_would_be_left(run, sleepers, tmp_path):
    run.tell(*sleepers((0, 0), (1, 0)))
    run.view(1, (0, 1))
    run.tell(lost(1, "sum", 0))
    hand = working(killer(tmp_path, Pick(0.5, 1, "dice", frozenset())), alive_s=0.1)
    assert hand.killed_ns == {}
    assert hand.errors == ["the run was over before the kill of 1 from outside at step 0.5"]


def test_the_only_worker_of_a_run_of_one_is_killed_all_the_same(tmp_path, sleepers):
    run = Run(tmp_path, 1)
    run.tell(*sleepers((0, 0)))
    run.view(1, (0,))
    assert list(working(killer(tmp_path, Pick(0.5, 1, "dice", frozenset()))).killed_ns) == [(0, 0)]


def test_when_all_are_killed_spares_and_joiners_are_too(run, sleepers, tmp_path):
    run.tell(*sleepers((0, 0), (1, 0), (2, 0), (3, 0)))
    run.tell(lost(3, "replay", 0), *sleepers((3, 1)))
    run.view(1, (0, 1, 2))
    hand = working(killer(tmp_path, KillAll(0.5)))
    assert sorted(hand.all_killed[0]) == [(0, 0), (1, 0), (2, 0), (3, 1)]
    assert hand.killed_ns == {}
    instants = list(hand.all_killed[0].values())
    assert max(instants) - min(instants) < 50_000_000


def test_all_are_killed_only_when_all_are_in(run, sleepers, tmp_path):
    run.tell(*sleepers((0, 0), (1, 0), (2, 0)))
    run.view(1, (0, 1))
    hand = working(killer(tmp_path, KillAll(0.5)), alive_s=0.1)
    assert (hand.all_killed, len(hand.errors)) == ([], 1)
    assert all(process.poll() is None for process in sleepers.found.values())


def test_a_worker_that_was_forked_from_a_template_is_the_agents_too(run, tmp_path):
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); "
    code += "sys.stdin.read(); p.kill()"
    template = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with template:
        run.tell(WorkerStarted(0, int(template.stdout.readline()), 1))
        run.view(1, (0,))
        hand = killer(tmp_path)
        hand._scene.look()
        assert list(hand._kill([(0, 1)])) == [(0, 1)]
        template.stdin.close()


def test_the_agent_is_asked_for_another_number_of_workers(run, tmp_path, monkeypatch):
    run.tell(*(WorkerStarted(rank, 10 + rank) for rank in range(3)))
    run.view(1, (0, 1, 2))
    asked = []
    answers = {5: ScaleReply(3, 5, ""), 9: ScaleReply(3, 3, "there are 8 seats"), 2: None}

    def ask_scale(run_id, workers):
        asked.append((run_id, workers))
        return answers[workers]

    monkeypatch.setattr(outside, "ask_scale", ask_scale)
    hand = working(killer(tmp_path, *(Rescale(0.1 * i, workers) for i, workers in enumerate((5, 9, 2)))))
    assert asked == [("run", 5), ("run", 9), ("run", 2)]
    assert [workers for _, workers in hand.scaled] == [5]
    assert hand.errors == [
        "the agent was asked for 9 workers: there are 8 seats",
        "the agent was asked for 2 workers: it did not answer",
    ]


# --- how much a process does ------------------------------------------------------------------------------------------

BURN = "import os; os.nice(7)\nwhile True: pass"


def until(what, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_cpu_time_and_niceness_are_read_while_a_process_lives():
    with subprocess.Popen([sys.executable, "-S", "-c", BURN]) as process:
        until(lambda: (effort(process.pid) or Effort(0, 0, 0)).cpu_s >= 0.1)
        assert effort(process.pid).nice == 7
        process.kill()
    assert effort(process.pid) is None


def test_a_joiner_is_watched_until_it_is_level(run, tmp_path):
    with subprocess.Popen([sys.executable, "-S", "-c", BURN]) as process:
        with Witness(tmp_path) as witness:
            run.tell(WorkerStarted(1, process.pid, 0))
            run.view(1, (1,))
            run.tell(WorkerStarted(2, process.pid, 1))
            until(lambda: witness.efforts.get((2, 1), Effort(0, 0, 0)).nice == 7)
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0))
            until(lambda: witness.efforts[2, 1].cpu_s >= 0.1)
            run.tell(WorkerLevel(2, process.pid, 1, 9, 0, "d"))
            until(lambda: (2, 1) in witness._scene.level)
        watched = witness.efforts
        process.kill()
    assert set(watched) == {(2, 1)}
    assert watched[2, 1].nice == 7  # though it is given its priority back in the end


def test_a_stranger_is_started_at_its_step_and_ended_when_it_has_done_as_much(tmp_path):
    record = tmp_path / "record-0.jsonl"
    record.touch()
    command = [sys.executable, "-S", "-c", "while True: pass"]
    with Strangers(command, {}, tmp_path, [1.5, 90.0], Effort(0.15, 3, 0)) as strangers:
        time.sleep(0.05)
        assert strangers._running == []
        record.write_bytes(record_line(0, 0) + record_line(0, 1))
        until(lambda: strangers._running)
        process = strangers._running[0][0]
        until(lambda: effort(process.pid) is None or effort(process.pid).nice == 3)
        until(lambda: strangers.seen)
    assert process.returncode == -9
    ((began_ns, ended_ns),) = strangers.seen
    assert ended_ns - began_ns >= 140_000_000
