"""Traps spring at exactly the moment they were set for, and one with an `entry` is never missed."""

import json
import multiprocessing
import os
import signal

import pytest

from relume.arena.layout import ControlLayout
from relume.arena.progress import Progress, parse_traps, read

LAYOUT = ControlLayout(1)


class Sprung(Exception):
    """Stands for the death of the process."""


@pytest.fixture
def tell(monkeypatch):
    """Return a function that tells a worker's life to traps and says in which phase, step and shard it ended."""

    def kill(pid, number):
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Sprung

    def tell(trap, life):
        words = memoryview(bytearray(LAYOUT.size)).cast("Q")
        monkeypatch.setattr(os, "kill", kill)
        try:
            life(Progress(words, LAYOUT, 0, parse_traps(json.dumps([{"rank": 0, **trap}]), 0)))
        except Sprung:
            moment = read(words, LAYOUT, 0)
            assert moment.killed_ns > 0
            return moment.phase, moment.step, moment.shard, words[LAYOUT.progress(0)]
        finally:
            monkeypatch.undo()
        return None

    return tell


def life(progress):
    """Two steps of two shards each, with three gradients per backward and an optimizer that hooks in twice."""
    progress.spring("joining")
    for step in range(2):
        progress.step = step
        progress.enter("between")
        for shard in (4, 5):
            progress.enter("load", shard)
            progress.enter("forward", shard)
            progress.enter("backward", shard)
            for _ in range(2):
                progress.advance()
                progress.spring("backward")
            progress.enter("publish", shard)
            progress.spring("publish")
        progress.enter("wait")
        progress.enter("take")
        progress.enter("update")
        progress.spring("update")
        progress.spring("update")
    progress.enter("tail")


def test_without_an_entry_moments_count_over_the_whole_step(tell):
    assert tell({"phase": "backward", "step": 1, "nth": 0}, life)[:3] == ("backward", 1, 4)
    assert tell({"phase": "backward", "step": 1, "nth": 2}, life)[:3] == ("backward", 1, 4)
    assert tell({"phase": "backward", "step": 1, "nth": 3}, life)[:3] == ("backward", 1, 5)
    assert tell({"phase": "backward", "step": 1, "nth": 6}, life) is None


def test_with_an_entry_they_count_within_that_shard(tell):
    first = tell({"phase": "backward", "step": 1, "entry": 1, "nth": 0}, life)
    third = tell({"phase": "backward", "step": 1, "entry": 1, "nth": 2}, life)
    assert first[:3] == third[:3] == ("backward", 1, 5)
    assert third[3] == first[3] + 2  # the counter: two gradients further on
    assert tell({"phase": "backward", "step": 1, "entry": 2, "nth": 0}, life) is None


def test_a_moment_that_does_not_come_is_the_phases_end(tell):
    assert tell({"phase": "backward", "step": 0, "entry": 0, "nth": 99}, life)[:3] == ("backward", 0, 4)
    assert tell({"phase": "publish", "step": 1, "entry": 1, "nth": 99}, life)[:3] == ("publish", 1, 5)


def test_the_end_of_an_update_is_where_the_next_step_begins_or_the_loop_ends(tell):
    assert tell({"phase": "update", "step": 0, "entry": 0, "nth": 99}, life)[:2] == ("update", 0)
    assert tell({"phase": "update", "step": 1, "entry": 0, "nth": 99}, life)[:2] == ("update", 1)


def test_before_the_first_step_is_step_minus_one(tell):
    assert tell({"phase": "joining", "step": -1, "entry": 0, "nth": 0}, life)[:2] == ("joining", -1)
    assert tell({"phase": "joining", "step": -1, "entry": 0, "nth": 1}, life)[:2] == ("joining", -1)
    assert tell({"phase": "joining", "step": -1, "entry": 0, "nth": 9}, life)[:2] == ("joining", -1)


def test_a_step_that_is_not_named_is_any_and_the_step_of_a_view_is_the_earliest(tell):
    def views(progress):
        progress.spring("view")  # the first view, before any step
        for step in range(5):
            progress.step = step
            progress.enter("forward", 0)
            if step >= 3:
                progress.spring("view")

    assert tell({"phase": "view", "step": None}, views)[:2] == ("view", -1)
    assert tell({"phase": "view", "step": 0}, views)[:2] == ("view", 3)
    assert tell({"phase": "view", "step": 0, "nth": 1}, views)[:2] == ("view", 4)
    assert tell({"phase": "view", "step": 4}, views)[:2] == ("view", 4)
    assert tell({"phase": "view", "step": 0, "nth": 2}, views) is None


def test_with_later_the_step_is_the_earliest_and_the_entry_is_one_of_that_step(tell):
    """A joiner is admitted in a step that nobody knows beforehand."""

    def admitted_in_step_4(progress):
        for step in range(4, 7):
            progress.step = step
            for shard in (4, 5):
                progress.enter("forward", shard)
                progress.enter("backward", shard)
                progress.spring("backward")
            progress.enter("wait")

    trap = {"phase": "backward", "step": 2, "entry": 1, "later": True}
    assert tell(trap, admitted_in_step_4)[:3] == ("backward", 4, 5)
    assert tell(trap | {"step": 5}, admitted_in_step_4)[:3] == ("backward", 5, 5)
    assert tell(trap | {"nth": 99}, admitted_in_step_4)[:3] == (
        "backward",
        4,
        5,
    )  # at the phase's end, not a step later
    assert tell(trap | {"step": 7}, admitted_in_step_4) is None
    assert tell(trap | {"later": False}, admitted_in_step_4) is None


def test_an_admission_is_met_from_its_step_on(tell):
    def admissions(progress):
        for step in range(3):
            progress.step = step
            progress.enter("forward", 0)
            progress.spring("admission")

    assert tell({"phase": "admission", "step": 1, "nth": 1}, admissions)[:2] == ("admission", 2)


def test_what_a_trap_noted_in_the_life_before_is_forgotten():
    words = memoryview(bytearray(LAYOUT.size)).cast("Q")
    with pytest.raises(RuntimeError):
        Progress(words, LAYOUT, 0, parse_traps('[{"rank": 0, "phase": "joining", "action": "raise"}]', 0))
    assert read(words, LAYOUT, 0).killed_ns > 0
    Progress(words, LAYOUT, 0, [])
    assert read(words, LAYOUT, 0).killed_ns == 0


def test_traps_are_for_one_life_of_a_rank_or_for_all():
    traps = [{"phase": "load"}, {"phase": "sum", "life": 0}, {"phase": "take", "life": 2}]
    text = json.dumps([{"rank": 1, **trap} for trap in traps])
    assert [[trap.phase for trap in parse_traps(text, 1, life)] for life in range(3)] == [
        ["load", "sum"],
        ["load"],
        ["load", "take"],
    ]


def test_traps_are_for_one_rank():
    assert parse_traps('[{"rank": 1, "phase": "load"}]', 0) == []


def test_the_real_signal_ends_the_process():
    process = multiprocessing.get_context("fork").Process(target=_die)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


def _die():
    words = memoryview(bytearray(LAYOUT.size)).cast("Q")
    Progress(words, LAYOUT, 0, parse_traps('[{"rank": 0, "phase": "joining", "step": -1, "entry": 0, "nth": 0}]', 0))
