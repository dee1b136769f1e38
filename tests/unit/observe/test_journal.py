"""A run's events are read while they are written, and no line is trusted."""

import pytest

from relume.observe.journal import Journal
from relume.wire.events import SCHEMA, RunEnded, WorkerStarted
from tests.unit.observe.paper import text_of

STARTED = WorkerStarted(0, 17)
ENDED = RunEnded("completed", "every step is done", 0)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "events.jsonl"


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path)


def events(journal):
    return [line.event for line in journal.read()]


def test_each_event_is_told_once_as_it_comes(file, journal):
    assert events(journal) == []  # the file is not there yet
    file.write_bytes(text_of(STARTED))
    assert events(journal) == [STARTED]
    assert events(journal) == []
    with file.open("ab") as more:
        more.write(text_of(ENDED))
    assert events(journal) == [ENDED]
    assert journal.problems(ended=True) == []


def test_a_line_counts_once_it_is_whole(file, journal):
    text = text_of(ENDED)
    file.write_bytes(text_of(STARTED) + text[:30])
    assert events(journal) == [STARTED]
    assert journal.torn
    assert journal.problems(ended=False) == []  # somebody is writing it
    with file.open("ab") as more:
        more.write(text[30:])
    assert events(journal) == [ENDED]
    assert not journal.torn


def test_a_last_line_that_nobody_will_finish_is_told(file, journal):
    file.write_bytes(text_of(STARTED) + text_of(ENDED)[:30])
    assert events(journal) == [STARTED]
    assert journal.problems(ended=True) == ["the last line of events.jsonl was never finished and is skipped"]


@pytest.mark.parametrize(
    "damage",
    [
        b"no json at all",
        b"",
        b"[]",
        b"{}",
        b'{"v": "one"}',
        b'{"v": 1, "time": 1.0, "mono_ns": 1}',
        b'{"v": 1, "time": 1.0, "mono_ns": 1, "event": {"kind": "of another world"}}',
        b'{"v": 1, "time": 1.0, "mono_ns": 1, "event": {"kind": "worker_started", "rank": "zero", "pid": 1}}',
        b"\xff\xfe\x00",
        text_of(ENDED)[:-1].replace(b"every step", b"\xff"),
    ],
)
def test_a_damaged_line_is_skipped_and_told(file, journal, damage):
    file.write_bytes(text_of(STARTED) + damage + b"\n" + text_of(ENDED))
    assert events(journal) == [STARTED, ENDED]
    assert journal.problems(ended=True) == ["1 line of events.jsonl cannot be read and was skipped"]


def test_lines_of_a_newer_schema_are_skipped_and_told(file, journal):
    newer = b'{"v": %d, "everything": "else"}\n' % (SCHEMA + 1)
    file.write_bytes(text_of(STARTED) + 2 * newer)
    assert events(journal) == [STARTED]
    (problem,) = journal.problems(ended=True)
    assert "2 lines of events.jsonl were written by a newer relume" in problem


def test_a_field_that_was_added_within_the_schema_does_no_harm(file, journal):
    file.write_bytes(text_of(STARTED).replace(b'"rank":0', b'"rank":0,"colour":"green"'))
    assert events(journal) == [STARTED]
