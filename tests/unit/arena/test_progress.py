"""The last words of a worker can be read by others, and traps spring exactly where they were set."""

from __future__ import annotations

import json
import os
import signal

import pytest

from relume.arena import progress
from relume.arena.layout import RECORDER_ENTRIES, RECORDER_ENTRY_WORDS, ControlLayout
from relume.arena.progress import PHASES, Progress, Pulse, Trap, in_use, parse_traps, pulses, read, taken


class Killed(BaseException):
    """In place of the signal."""


@pytest.fixture
def words():
    return memoryview(bytearray(ControlLayout(3).size)).cast("Q")


@pytest.fixture
def killed(monkeypatch):
    def kill(pid, number):
        assert pid == os.getpid()
        raise Killed(signal.Signals(number).name)

    monkeypatch.setattr(progress.os, "kill", kill)


def make(words, rank=1, *traps):
    return Progress(words, ControlLayout(3), rank, list(traps))


def test_who_has_not_begun_reads_as_joining_before_any_step(words):
    moment = read(words, ControlLayout(3), 2)
    assert (moment.phase, moment.step, moment.shard, moment.taken, moment.pid, moment.killed_ns) == (
        "joining",
        -1,
        -1,
        -1,
        0,
        0,
    )


@pytest.mark.parametrize("phase", PHASES)
def test_what_a_worker_does_is_read_by_others(words, phase):
    mine = make(words)
    mine.step = 12
    mine.enter(phase, 3)
    moment = read(words, ControlLayout(3), 1)
    assert (moment.phase, moment.step, moment.shard, moment.pid) == (phase, 12, 3, os.getpid())
    assert moment.since_ns > 0
    mine.enter(phase)
    assert read(words, ControlLayout(3), 1).shard == -1
    assert read(words, ControlLayout(3), 0).pid == 0, "and writes nobody else's block"
    assert read(words, ControlLayout(3), 2).pid == 0


def test_every_move_raises_the_counter(words):
    mine, counts = make(words), []
    for move in (lambda: mine.enter("load"), mine.advance, lambda: mine.enter("load"), mine.advance, mine.advance):
        move()
        counts.append(read(words, ControlLayout(3), 1).counter)
    assert counts == sorted(set(counts))


def test_what_is_taken_is_told_apart_from_where_it_is(words):
    mine = make(words)
    assert taken(words, ControlLayout(3), 1) == -1
    mine.take(0)
    assert taken(words, ControlLayout(3), 1) == 0
    mine.take(41)
    assert (taken(words, ControlLayout(3), 1), read(words, ControlLayout(3), 1).step) == (41, -1)


def test_the_flight_recorder_keeps_the_latest(words):
    mine, layout = make(words), ControlLayout(3)
    for step in range(RECORDER_ENTRIES + 10):
        mine.step = step
        mine.enter("load", step % 7)
    ring = words[layout.recorder(1) : layout.recorder(1) + RECORDER_ENTRIES * RECORDER_ENTRY_WORDS].tolist()
    steps = sorted(ring[2::RECORDER_ENTRY_WORDS])
    assert steps == list(range(11, RECORDER_ENTRIES + 11)), "the oldest are written over"
    assert not any(words[layout.progress(2) : layout.progress(2) + 16]), "and not the neighbour's block"


def test_a_trap_springs_at_its_step_and_phase_and_nowhere_else(words, killed):
    mine = make(words, 1, Trap(1, "backward", step=5))
    for step in range(8):
        mine.step = step
        for phase in PHASES:
            if (step, phase) == (5, "backward"):
                with pytest.raises(Killed, match="SIGKILL"):
                    mine.enter(phase, 2)
                moment = read(words, ControlLayout(3), 1)
                assert (moment.phase, moment.step, moment.shard) == ("backward", 5, 2)
                assert moment.killed_ns >= moment.since_ns
            else:
                mine.enter(phase)


def test_the_nth_time_is_counted_from_zero_over_the_step(words, killed):
    mine = make(words, 1, Trap(1, "publish", step=2, nth=2))
    mine.step = 1
    for _ in range(5):
        mine.spring("publish")
    mine.step = 2
    mine.enter("publish")
    mine.spring("publish")
    with pytest.raises(Killed):
        mine.spring("publish")


def test_a_trap_without_a_step_springs_in_any(words, killed):
    mine = make(words, 1, Trap(1, "wait", nth=1))
    mine.step = 3
    mine.enter("wait")
    mine.step = 9
    with pytest.raises(Killed):
        mine.enter("wait")


def test_two_equal_traps_are_as_good_as_one(words, killed):
    mine = make(words, 1, Trap(1, "wait", nth=1), Trap(1, "wait", nth=1))
    mine.enter("wait")
    with pytest.raises(Killed):
        mine.enter("wait")


def test_a_trap_in_the_background_thread_is_told_with_its_own_phase(words, killed):
    mine = make(words, 1, Trap(1, "view", step=4))
    mine.step = 4
    mine.enter("forward", 1)
    with pytest.raises(Killed):
        mine.spring("view")
    assert read(words, ControlLayout(3), 1).phase == "view"


def test_a_trap_may_raise_or_stop_instead(words, killed):
    mine = make(words, 1, Trap(1, "load", action="raise"), Trap(1, "take", action="stop"))
    with pytest.raises(RuntimeError, match="a trap in phase load"):
        mine.enter("load")
    with pytest.raises(Killed, match="SIGSTOP"):
        mine.enter("take")


def test_traps_are_read_for_ones_own_rank():
    text = json.dumps(
        [{"rank": 1, "step": 5, "phase": "sum", "nth": 3, "action": "kill"}, {"rank": 0, "phase": "load"}]
    )
    assert parse_traps(text, 1) == [Trap(1, "sum", 5, 3, "kill")]
    assert parse_traps(text, 0) == [Trap(0, "load")]
    assert parse_traps("[]", 0) == []


def shard_by_shard(mine, step, shards, moments):
    mine.step = step
    for shard in range(shards):
        mine.enter("forward", shard)
        mine.enter("backward", shard)
        for _ in range(moments):
            mine.spring("backward")
    mine.enter("wait")


def test_a_trap_in_the_second_shard_counts_its_moments_there(words, killed):
    mine = make(words, 1, Trap(1, "backward", step=2, nth=3, entry=1))
    shard_by_shard(mine, 1, 3, 10)
    with pytest.raises(Killed):
        shard_by_shard(mine, 2, 3, 10)
    assert read(words, ControlLayout(3), 1).shard == 1


def test_a_trap_with_too_few_moments_springs_at_the_end_of_the_phase(words, killed):
    mine = make(words, 1, Trap(1, "backward", step=2, nth=50, entry=1))
    with pytest.raises(Killed):
        shard_by_shard(mine, 2, 3, 4)
    moment = read(words, ControlLayout(3), 1)
    assert (moment.phase, moment.shard) == ("backward", 1), "not in the next shard"


def test_a_trap_for_a_shard_that_the_worker_does_not_have_never_springs(words, killed):
    mine = make(words, 1, Trap(1, "backward", step=2, entry=3))
    for step in range(5):
        shard_by_shard(mine, step, 3, 4)


def test_a_trap_in_a_view_change_waits_for_the_first_one_from_its_step_on(words, killed):
    mine = make(words, 1, Trap(1, "view", step=3))
    mine.step = 2
    mine.spring("view")
    mine.step = 6
    with pytest.raises(Killed):
        mine.spring("view")


def test_whoever_has_left_its_loop_says_so(words):
    mine = make(words)
    assert not read(words, ControlLayout(3), 1).left
    mine.leave_loop()
    assert read(words, ControlLayout(3), 1).left


def test_a_new_life_of_a_rank_begins_with_everything_at_zero(words):
    layout = ControlLayout(3)
    before = bytes(words)
    first = make(words)
    first.step = 7
    first.pulse(Pulse(7, 1, 2))
    first.take(6)
    first.leave_loop()
    for _ in range(600):
        first.enter("backward", 2)
    words[layout.seals(1)] = 99
    assert in_use(words, layout, 1)
    make(words)
    moment = read(words, layout, 1)
    assert (moment.phase, moment.step, moment.taken, moment.left) == ("joining", -1, -1, False)
    assert pulses(words, layout, 1) == []
    entries = words[layout.recorder(1) : layout.recorder(1) + RECORDER_ENTRIES * RECORDER_ENTRY_WORDS].tolist()
    assert sum(word != 0 for word in entries[RECORDER_ENTRY_WORDS:]) == 0
    assert words[layout.seals(1)] == 99, "what its predecessor had sealed stands"
    words[layout.seals(1)] = 0
    for rank in (0, 2):
        assert not in_use(words, layout, rank)
        start = layout.progress(rank) * 8
        end = layout.progress(rank + 1) * 8
        assert bytes(words)[start:end] == before[start:end]
