"""What `relume status` prints: lines for people, one object for programs."""

import json

import pytest

from relume.observe.report import as_json, as_text
from relume.observe.standing import Standing
from relume.observe.wording import cause_short, clock, duration, incident_line, listed, since_kill_s
from relume.wire.events import Remarked, RunEnded, ScriptRaised
from tests.unit.observe.paper import RUN, events_of_a_run, loss_of, reply_with, snapshot_of, story_of, worker


def lines(snapshot):
    return "\n".join(line.plain for line in as_text(snapshot))


def test_a_finished_run_is_told_with_its_incidents(tmp_path):
    text = lines(snapshot_of(tmp_path, story_of(events_of_a_run()), steps=60))
    assert f"run {RUN}: completed, exit code 0: every step is done" in text
    assert "60 of 60 done" in text
    assert "train.py --steps 60" in text
    assert "1 incident" in text
    assert "worker 2 (pid 102) in backward of step 12, shard 4: it was killed by signal 9 (SIGKILL)" in text
    assert "2 shards to 0 and 1; view 1.2 12 ms after it was noticed, 72 ms after the kill" in text


def test_a_live_run_is_told_worker_by_worker(tmp_path):
    workers = [worker(0, idle_s=3.2), worker(1, "lost"), worker(2, phase="wait", shard=-1)]
    story = story_of(events_of_a_run(ended=False, incidents=[]))
    text = lines(snapshot_of(tmp_path, story, reply_with(*workers, incidents=1)))
    assert "live, training" in text
    assert "24 of 60 done" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  ") and line[2].isdecimal()][:3]
    assert rows == [
        ["0", "100", "in,", "main", "backward", "24", "1", "3.2", "s"],
        ["1", "101", "lost", "backward", "24", "1", "-"],
        ["2", "102", "in", "wait", "24", "-", "-"],
    ]
    assert "1 more: being dealt with" in text


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (Standing.DEAD, "dead: its agent (pid 17) is not there any more and wrote no end"),
        (Standing.SILENT, "does not answer: its agent (pid 17) is there, but"),
    ],
)
def test_a_run_without_an_end_and_without_an_answer_is_said_to_be_so(tmp_path, standing, words):
    story = story_of(events_of_a_run(ended=False, agent_pid=17))
    text = lines(snapshot_of(tmp_path, story, standing=standing, problems=("a line is gone",)))
    assert words in text
    assert "at least 24 of 60 done" in text
    assert "note: a line is gone" in text


def test_scripts_that_raised_and_remarks_are_told(tmp_path):
    ends = RunEnded("script_failed", "every worker's script raised ValueError", 1)
    raised = ScriptRaised(1, "ValueError: no", "train.py:3", "Traceback ...")
    story = story_of([*events_of_a_run(ended=False), Remarked(0, "nonfinite", "loss = nan", 7), raised, ends])
    text = lines(snapshot_of(tmp_path, story))
    assert "script failed, exit code 1: every worker's script raised ValueError" in text
    assert "worker 1's script raised ValueError: no at train.py:3" in text
    assert "note by worker 0, step 7: loss = nan (nonfinite)" in text


def test_programs_get_one_object_that_survives_json(tmp_path):
    reply = reply_with(worker(0), worker(1, "lost"))
    looks = [
        snapshot_of(tmp_path, story_of(events_of_a_run(ended=False)), reply),
        snapshot_of(tmp_path, story_of(events_of_a_run()), steps=60),
    ]
    live, ended = json.loads(json.dumps([as_json(look) for look in looks]))
    assert live.keys() == ended.keys()
    assert (live["standing"], live["state"], live["agent_pid"]) == ("live", "steady", 2**22 + 1)
    assert (live["step"], live["total"], live["shards"]) == (24, 60, 8)
    assert live["view"] == {"number": [1, 2], "members": [0]}
    assert [w["state"] for w in live["workers"]] == ["in", "lost"]
    assert (ended["outcome"], ended["exit_code"], ended["state"]) == ("completed", 0, None)
    assert [w["state"] for w in ended["workers"]] == ["ended", "ended", "lost", "ended"]
    (incident,) = ended["incidents"]
    assert (incident["rank"], incident["cause"], incident["handled_ms"]) == (2, "signal", 12.0)
    assert incident["since_kill_ms"] == 72.0


def test_a_folder_whose_events_say_nothing_is_still_told(tmp_path):
    snapshot = snapshot_of(tmp_path, story_of([]), steps=0, total=0, problems=("1 line cannot be read",))
    assert as_json(snapshot)["command"] == []
    assert "no incidents" in lines(snapshot)


def test_an_incident_is_one_sentence():
    assert incident_line(loss_of(2)) == (
        "worker 2 killed (SIGKILL) in backward of step 12, shard 4; 2 shards to 0 and 1; handled in 12 ms"
    )
    outside = loss_of(3, phase="joining", step=-1, shard=-1, moved={}, killed_ns=0)
    assert since_kill_s(outside) is None  # nobody noted when it was killed
    assert incident_line(outside).startswith("worker 3 killed (SIGKILL) before its first step; nothing to redo")


@pytest.mark.parametrize(
    ("cause", "wait_status", "words"),
    [
        ("signal", 11, "killed (SIGSEGV)"),
        ("signal", 63, "killed (signal 63)"),
        ("exit_code", 3 << 8, "exit code 3"),
        ("out_of_memory", 9, "killed for memory"),
        ("hung", None, "hung"),
        ("something new", None, "something new"),
    ],
)
def test_causes_in_few_words(cause, wait_status, words):
    assert cause_short(loss_of(0, cause=cause, wait_status=wait_status)) == words


def test_figures_for_people():
    spans = {0.0034: "3.4 ms", 0.31: "310 ms", 2.13: "2.1 s", 34.0: "34 s", 187.0: "3:07", 3723.0: "1:02:03"}
    assert {seconds: duration(seconds) for seconds in spans} == spans
    assert clock(9.9) == "0:09"
    assert [listed([0]), listed([0, 2]), listed([0, 2, 3])] == ["0", "0 and 2", "0, 2 and 3"]
