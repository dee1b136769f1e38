"""What the harness holds against its own kills, where it replays them, and how it tells how old a run is."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import pytest

from relume.chaos.control import replay
from relume.chaos.driver import Fleet
from relume.chaos.evidence import Evidence, read_evidence
from relume.chaos.outside import Killer, Pace
from relume.chaos.schedule import Exact, Outside, Schedule
from relume.chaos.trial import check_kills, own_blocks, shards_of_reference
from relume.core.view import first
from relume.errors import RunLost
from relume.wire.events import ArenaReserved, Line, ViewInstalled, WorkerLost, WorkerStarted

SCHEDULE = Schedule((Exact(1, "backward", 5, 0, 3, "backward"),), (Outside((2,), 8.5),))


def lost(rank, phase, step, shard=-1, *, status=9, killed_ns=0, view=(1, 2)):
    times = dict.fromkeys(("lost_ns", "fenced_ns", "promised_ns", "installed_ns"), 2000)
    return WorkerLost(
        rank, 100 + rank, "signal", "a story", {}, status, phase, step, shard, view, {}, 2, killed_ns=killed_ns, **times
    )


def fleet(*incidents, killed=None, exit_code=0, errors=()):
    evidence = Evidence(
        {}, incidents, (first(1, range(4), 8),), {(rank, 0): 100 + rank for rank in range(4)}, None, 0.0
    )
    return Fleet(exit_code, 1.0, evidence, {(2, 0): 1000} if killed is None else killed, list(errors))


TRAPPED = lost(1, "backward", 5, 2, killed_ns=1000)
FOUND = lost(2, "wait", 8)


def test_kills_that_went_as_planned_are_right():
    assert check_kills(SCHEDULE, fleet(TRAPPED, FOUND)) == []


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (fleet(FOUND), "worker 1 in backward of step 5 never sprang"),
        (fleet(lost(1, "backward", 5), FOUND), "never sprang"),  # it died, but of something else than its trap
        (fleet(lost(1, "sum", 5, killed_ns=1000), FOUND), "sprang in sum of step 5"),
        (fleet(lost(1, "backward", 6, killed_ns=1000), FOUND), "sprang in backward of step 6"),
        (fleet(TRAPPED), "worker 2 was killed from outside, but no incident"),
        (
            fleet(TRAPPED, FOUND, killed={(2, 0): 3000}),
            "worker 2 was killed from outside, but no incident",
        ),  # dead before
        (fleet(TRAPPED, FOUND, lost(3, "load", 9)), "worker 3 was lost though nobody killed it"),
        (fleet(TRAPPED, FOUND, FOUND), "lost twice"),
        (fleet(TRAPPED, lost(2, "wait", 8, status=256)), "worker 2 died of something else"),
        (fleet(TRAPPED, lost(2, "wait", 8, status=None)), "worker 2 died of something else"),
        (fleet(TRAPPED, FOUND, exit_code=8), "exit code 8"),
    ],
)
def test_kills_that_went_wrong_are_told(told, said):
    assert any(said in error for error in check_kills(SCHEDULE, told)), check_kills(SCHEDULE, told)


def test_a_kill_while_another_loss_is_handled_may_come_in_any_step():
    schedule = Schedule((Exact(1, "view", 0, None, 1, "view"),), (Outside((2,), 8.5),))
    assert check_kills(schedule, fleet(lost(1, "view", 8, killed_ns=1000), FOUND)) == []
    assert check_kills(schedule, fleet(lost(1, "load", 8, killed_ns=1000), FOUND)) != []


@pytest.mark.parametrize(
    ("found", "phase", "entry", "nth"),
    [
        (lost(2, "forward", 8, 5), "forward", 1, 0),  # worker 2 has shards 4 and 5
        (lost(2, "backward", 8, 4), "backward", 0, 0),
        (lost(2, "wait", 8), "publish", 1, 2),  # the seal of its last shard is where waiting begins
        (lost(2, "take", 8), "take", 0, 0),
        (lost(2, "view", 8), "update", 0, 0),
    ],
)
def test_what_came_from_outside_is_replayed_where_it_found_its_victim(found, phase, entry, nth):
    exact, outside = replay(SCHEDULE, fleet(TRAPPED, found).evidence)
    assert exact == SCHEDULE.exact[0]
    assert (outside.rank, outside.step) == (2, 8)
    assert (outside.phase, outside.entry, outside.nth) == (phase, entry, nth)


# --- files ------------------------------------------------------------------------------------------------------------


def record_line(rank, step, shards=((0, 1, 2), (1, 2, 3))):
    line = {"v": 1, "run": "r", "rank": rank, "pid": 7, "step": step, "epoch_view": [1, 1], "members": [0, 1]}
    times = {"begin_ns": 0, "shards": shards, "waits": [[3, 4]], "taken_ns": 5, "end_ns": 6}
    return msgspec.json.encode({**line, "digest": "d", "means": {"loss": (1.5).hex()}, **times}) + b"\n"


def event_line(event, mono_ns=0):
    return msgspec.json.encode(Line(1, 100.0, mono_ns, event)) + b"\n"


def test_a_run_is_read_from_its_files_and_torn_lines_are_left_out(tmp_path):
    (tmp_path / "record-0.jsonl").write_bytes(record_line(0, 0) + record_line(0, 1) + record_line(0, 2)[:40])
    events = [
        WorkerStarted(0, 71),
        ArenaReserved(9, 9, 2),
        ViewInstalled((1, 1), 0, (0,), ((0, 1),)),
        lost(0, "sum", 1),
    ]
    (tmp_path / "events.jsonl").write_bytes(b"".join(event_line(event, 2_000_000_000) for event in events) + b"{")
    evidence = read_evidence(tmp_path, tmp_path)
    assert sorted(evidence.records) == [(0, 0), (0, 1)]
    assert evidence.records[0, 1].waits == ((3, 4),)
    assert (evidence.pids, evidence.survivors) == ({(0, 0): 71}, ())
    assert evidence.views[0].shards == 2
    assert evidence.ended is None
    assert evidence.clock_s == 98.0


def test_s_is_read_from_the_reference_which_has_to_be_as_long_as_asked(tmp_path):
    (tmp_path / "record-0.jsonl").write_bytes(record_line(0, 0) + record_line(0, 1))
    assert shards_of_reference(tmp_path, 2) == 2
    with pytest.raises(RunLost, match="recorded 2 steps, not 3"):
        shards_of_reference(tmp_path, 3)


def test_only_a_large_model_surely_has_a_block_for_everybody(tmp_path):
    final = tmp_path / "final-0.pt"
    final.write_bytes(bytes(1 << 20))
    assert not own_blocks(final, 4)
    final.write_bytes(bytes(4 << 20))
    assert own_blocks(final, 4)


def test_the_age_of_a_run_is_what_is_recorded_and_goes_on_with_the_clock(tmp_path):
    pace = Pace(tmp_path)
    assert pace.age() == 0
    with (tmp_path / "record-1.jsonl").open("ab", buffering=0) as file:
        file.write(record_line(1, 0) + record_line(1, 1)[:30])
        assert pace.age() == 1  # half a line is no step
        time.sleep(0.02)
        file.write(record_line(1, 1)[30:])
        assert 2 <= pace.age() < 3
        time.sleep(0.05)
        assert 2.9 < pace.age() < 3  # however long the next step takes, it is not done


# --- killing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def killer(tmp_path, pid, kills, agent=None):
    (tmp_path / "events.jsonl").write_bytes(event_line(WorkerStarted(2, pid)))
    (tmp_path / "record-2.jsonl").write_bytes(record_line(2, 0))
    return Killer(tmp_path, tmp_path, os.getpid() if agent is None else agent, kills)


def test_a_kill_from_outside_kills_that_very_process_and_notes_the_time_before(tmp_path, sleeper):
    hand = killer(tmp_path, sleeper.pid, [Outside((2,), 0.5)])
    before = time.monotonic_ns()
    hand.work(lambda: True, time.monotonic() + 10)
    assert sleeper.wait(10) == -9
    assert before < hand.killed_ns[2, 0] < time.monotonic_ns()
    assert hand.errors == []


def test_a_kill_that_finds_its_worker_gone_is_an_error(tmp_path, sleeper):
    sleeper.kill()
    while not sleeper.poll():
        time.sleep(0.01)
    hand = killer(tmp_path, sleeper.pid, [Outside((2,), 0.5)])
    hand.work(lambda: True, time.monotonic() + 10)
    assert hand.killed_ns == {}
    assert "worker 2" in hand.errors[0]
    assert "was gone" in hand.errors[0]


def test_nobody_elses_process_is_killed(tmp_path, sleeper):
    """A pid comes back: a process that is not the agent's child is not the worker."""
    hand = killer(tmp_path, sleeper.pid, [Outside((2,), 0.5)], agent=1)
    hand.work(lambda: True, time.monotonic() + 10)
    assert sleeper.poll() is None
    assert hand.errors


def test_a_kill_that_comes_after_the_end_of_the_run_is_an_error(tmp_path, sleeper):
    hand = killer(tmp_path, sleeper.pid, [Outside((2,), 5.5)])
    hand.work(lambda: False, time.monotonic() + 10)
    assert "the run was over" in hand.errors[0]
    assert replace(SCHEDULE.outside[0]).ranks == (2,)
