"""Who waits, sleeps: in the kernel, until it is rung; and who dies is heard of, and not found by looking."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from relume.agent import vigil
from relume.agent.supervisor import Supervisor
from relume.arena import knell
from tests.fleet import run_fleet
from tests.training import at, check, script

WORKERS = 6
SLOW_S = 1.0


def test_more_workers_than_cores_wait_for_a_slow_one_and_use_no_processor(tmp_path):
    """The CPU time of five that wait a second for the sixth, all their threads counted."""
    begun = {}

    def before(rank, step):
        begun[step.number] = time.monotonic(), time.process_time()

    def after(rank, step):
        since, used = begun[step.number]
        if step.number == 3:
            told = [time.monotonic() - since, time.process_time() - used]
            (tmp_path / f"waited-{rank}").write_text(json.dumps(told))

    slow = at(0, 3, lambda: time.sleep(SLOW_S / 2))  # it has two shards
    body = script(tmp_path, before=before, after=after, inside=slow, global_batch_size=24, shards=2 * WORKERS)
    result = run_fleet(body, workers=WORKERS, tmp_path=tmp_path)
    assert result.exit_code == 0, result.output
    assert not result.incidents
    for rank in range(1, WORKERS):
        waited_s, used_s = json.loads((tmp_path / f"waited-{rank}").read_text())
        assert waited_s >= SLOW_S * 0.9
        assert used_s < SLOW_S / 4, f"worker {rank} used {used_s:.2f} s of processor in {waited_s:.2f} s"


@pytest.mark.skipif(not knell.supported(), reason="needs robust futexes, of Linux on a known machine")
def test_a_death_is_heard_by_the_agent_and_found_by_looking_then(tmp_path, monkeypatch):
    """Nobody looks by the clock here: what is dealt with before the process can be waited for was heard."""
    monkeypatch.setattr(vigil, "DOOM_POLL_S", 0.2)
    heard, dealt_with = [], []

    def on_knell(self, rank):
        heard.append(rank)
        ring(self, rank)

    def doomed(self, worker, status):
        dealt_with.append((worker.rank, os.WTERMSIG(status), worker.wait_status))
        lose(self, worker, status)

    ring, lose = Supervisor._on_knell, Supervisor._doomed
    monkeypatch.setattr(Supervisor, "_on_knell", on_knell)
    monkeypatch.setattr(Supervisor, "_doomed", doomed)

    def die():
        big = bytearray(128 << 20)  # to be torn down: the time in which only the knell tells of it
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(len(big))

    result = run_fleet(script(tmp_path, inside=at(2, 3, die)), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={2: "signal"})
    assert heard[0] == 2
    assert dealt_with[0] == (2, signal.SIGKILL, None)


def test_a_worker_that_ends_well_tolls_and_is_no_loss(tmp_path):
    result = run_fleet(script(tmp_path), workers=2, tmp_path=tmp_path)
    check(tmp_path, result, lost={})
