"""The run's folder: what is in it, and a disk that does not take it."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from relume.agent.rundir import RunDir, new_run_id
from relume.errors import ConfigError
from relume.wire.events import Line, Remarked, RunStarted


@pytest.fixture
def told():
    return []


@pytest.fixture
def folder(tmp_path, told):
    made = RunDir(tmp_path / "runs" / "one", told.append)
    yield made
    made.close()


class FullDisk:
    """A file on a disk that takes a few bytes more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        taken = data[: self.room]
        self.room -= len(taken)
        if not taken:
            raise OSError(28, "No space left on device")
        return self.file.write(taken)

    def fileno(self):
        return self.file.fileno()

    def close(self):
        self.file.close()


def test_run_ids_are_times_and_differ():
    ids = {new_run_id() for _ in range(20)}
    assert len(ids) > 15
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", each) for each in ids)


def test_events_are_lines_of_json(folder):
    events = [RunStarted("one", 1, 2, ("python", "x.py")), Remarked(0, "nonfinite", "loss = nan", 3)]
    for event in events:
        folder.event(event)
    lines = (folder.path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Line).event for line in lines] == events


def test_output_is_kept_per_worker(folder):
    folder.output(0, b"a\n")
    folder.output(1, b"b\n")
    folder.output(0, b"c\n")
    assert (folder.path / "worker-0.log").read_text() == "a\nc\n"
    assert (folder.path / "worker-1.log").read_text() == "b\n"


def test_the_record_is_whole_or_not_there(folder):
    folder.record({"shards": 4})
    folder.record({"shards": 4, "threads": 1})
    assert json.loads((folder.path / "run.json").read_text()) == {"shards": 4, "threads": 1}
    assert [path.name for path in folder.path.glob("run.*")] == ["run.json"]


def test_latest_is_the_newest_run_that_began(tmp_path, folder, told):
    folder.link_latest()
    two = RunDir(tmp_path / "runs" / "two", told.append)
    assert (tmp_path / "runs" / "latest").readlink().name == "one"
    two.link_latest()
    two.close()
    assert (tmp_path / "runs" / "latest").readlink().name == "two"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["latest", "one", "two"]


def test_something_else_named_latest_is_left_alone(tmp_path, told):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    one = RunDir(tmp_path / "one", told.append)
    one.link_latest()
    one.close()
    assert (tmp_path / "latest" / "mine").exists()


def test_a_folder_of_another_run_is_refused(folder, told):
    with pytest.raises(ConfigError, match="holds another run: choose another --run-dir"):
        RunDir(folder.path, told.append)


def test_a_folder_that_is_no_folder_is_refused(tmp_path, told):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"cannot be made \(.*\): choose another --run-dir"):
            RunDir(path, told.append)


def test_a_disk_that_fills_up_is_told_once_and_leaves_no_half_lines(folder, told):
    event = Remarked(0, "topic", "x" * 100, 1)
    folder.event(event)
    folder._events = FullDisk(folder._events, 100)
    for _ in range(3):
        folder.event(event)
    folder._logs[0] = FullDisk(folder._events.file, 0)
    folder.output(0, b"lost\n")
    folder._events.room = 10_000
    folder.event(event)
    lines = (folder.path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Line).event for line in lines] == [event] * 2
    trouble = "refuses writes (No space left on device); training goes on without them"
    assert told == [f"the run folder {folder.path} {trouble}"]
