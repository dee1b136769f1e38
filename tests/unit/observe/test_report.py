"""What `relume status` prints: lines for people, one object for programs."""

import json

import pytest

from relume.observe.facts import as_json
from relume.observe.report import as_text
from relume.observe.standing import Standing
from relume.observe.story import Admitted
from relume.observe.tale import told
from relume.observe.wording import cause_short, clock, duration, incident_line, listed, since_kill_s, size
from relume.wire.events import (
    CheckpointFailed,
    CheckpointWritten,
    Mirrored,
    Remarked,
    RunEnded,
    Scaled,
    ScriptRaised,
    WorkerLeft,
    WorkerLevel,
    WorkerStarted,
)
from tests.unit.observe.paper import (
    RUN,
    events_of_a_comeback,
    events_of_a_run,
    loss_of,
    reply_with,
    snapshot_of,
    story_of,
    worker,
)


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
        ["0", "0", "100", "in,", "main", "backward", "24", "1", "3.2", "s"],
        ["1", "0", "101", "lost", "backward", "24", "1", "-"],
        ["2", "0", "102", "in", "wait", "24", "-", "-"],
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


def test_a_live_run_tells_who_is_on_the_way_and_from_what(tmp_path):
    workers = [worker(0, "leaving"), worker(1), worker(2, "replaying", life=1, step=21), worker(3, "spare")]
    reply = reply_with(*workers, worker(4, "starting"), target=5, spares=1, restarts=1, mirror_step=24)
    text = lines(snapshot_of(tmp_path, story_of(events_of_a_comeback(ended=False)[:-2]), reply))
    rows = [line.split()[:4] for line in text.splitlines() if line.startswith("  ") and line[2].isdecimal()]
    assert rows[:5] == [
        ["0", "0", "100", "leaving,"],
        ["1", "0", "101", "in"],
        ["2", "1", "202", "replaying"],
        ["3", "0", "103", "spare"],
        ["4", "0", "104", "starting"],
    ]
    assert "fleet    2 of 5 workers, 1 of 1 spare, 1 restart" in text
    assert "mirror   of step 24; mirrored every 8 steps: two states of 1.2 MB, 12 results of 4.8 MB together" in text
    assert "disk     checkpoint of step 30: /scratch/run/step-30 (1.2 MB, 210 ms)" in text


def test_a_seat_says_nothing_of_who_had_it_before(tmp_path):
    """The progress block is the predecessor's until the next one has begun."""
    reply = reply_with(worker(1), worker(2, "starting", life=1, phase="wait", step=12), target=4)
    events = events_of_a_comeback(ended=False)[:11]
    text = lines(snapshot_of(tmp_path, story_of(events), reply))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  2 ")]
    assert row == ["2", "1", "202", "starting", "-", "-", "-"]


def test_what_happened_after_a_loss_is_told_in_its_order_with_the_time(tmp_path):
    """The loss came at monotonic second 1.06, the view in which four were in again at second 11."""
    events = events_of_a_comeback()
    text = lines(snapshot_of(tmp_path, story_of(events, at_s=-1.0, every_s=1.0), steps=60))
    assert "72 ms after the kill; as many workers as before after 9.9 s" in text
    history = text[text.index("what else happened") :].splitlines()[1:11]
    assert [line.strip() for line in history] == [
        "0:09  mirrored every 8 steps: two states of 1.2 MB, 12 results of 4.8 MB together; 3.1 ms to write one",
        "0:10  worker 2 (life 1) forked from the warm template (pid 202)",
        "0:11  " + told(WorkerLevel(2, 202, 1, 26, 24, "00ff")),
        "0:12  worker 2 is in from step 28 (view 1.3)",
        "0:13  asked for 5 workers instead of 4",
        "0:14  worker 4 started (pid 104)",
        "0:16  checkpoint of step 40 failed: the disk is full; training goes on",
        "0:17  worker 4 is level before step 41: from the script's own start, 41 steps replayed, digest verified",
        "0:18  worker 4 is in from step 43 (view 1.4)",
        "0:20  worker 0 left by plan: SIGTERM",
    ]


def test_a_loss_that_left_too_few_has_no_figure_for_what_never_came(tmp_path):
    story = story_of(events_of_a_run(incidents=[loss_of(2, installed_ns=0, moved={})]))
    text = lines(snapshot_of(tmp_path, story))
    assert "nothing to redo; too few were left to go on" in text
    (incident,) = as_json(snapshot_of(tmp_path, story))["incidents"]
    assert (incident["handled_ms"], incident["since_kill_ms"]) == (None, None)


def test_what_the_coordinator_decided_is_part_of_the_history_and_no_note(tmp_path):
    events = [*events_of_a_run(ended=False), Remarked(-1, "paused", "the run waits", -1), Scaled(4, 3)]
    events += [Remarked(0, "nonfinite", f"loss {number}", number) for number in range(5)]
    text = lines(snapshot_of(tmp_path, story_of(events)))
    assert text.index("what else happened") < text.index("the run waits") < text.index("asked for 3")
    assert text.count("note by") == 3
    assert "loss 4 (nonfinite)" in text


def test_a_long_history_is_told_from_its_end(tmp_path):
    events = [*events_of_a_run(ended=False), *(Scaled(4, workers) for workers in range(1, 31))]
    text = lines(snapshot_of(tmp_path, story_of(events)))
    assert "18 more before these: see events.jsonl" in text
    assert "asked for 18 workers" not in text
    assert text.index("asked for 19 workers") < text.index("asked for 30 workers")


def test_programs_are_told_of_a_comeback_too_while_it_lives_and_when_it_is_over(tmp_path):
    story = story_of(events_of_a_comeback(ended=False), at_s=-1.0, every_s=1.0)
    reply = reply_with(worker(1), worker(2, life=1), target=4, spares=1, restarts=2, mirror_step=40)
    looks = [
        snapshot_of(tmp_path, story, reply),
        snapshot_of(tmp_path, story_of(events_of_a_comeback(), at_s=-1.0, every_s=1.0)),
    ]
    live, ended = json.loads(json.dumps([as_json(look) for look in looks]))
    assert live.keys() == ended.keys()
    assert (live["target"], live["spares"], live["restarts"]) == (4, 1, 2)
    assert (ended["target"], ended["spares"], ended["restarts"]) == (None, None, 1)
    assert (live["mirror"]["step"], ended["mirror"]["step"]) == (40, None)
    for told_of in (live, ended):
        assert (told_of["mirror"]["every"], told_of["mirror"]["state_bytes"]) == (8, 1_200_000)
        assert told_of["checkpoint"]["step"] == 30
        assert [failure["reason"] for failure in told_of["checkpoint_failures"]] == ["the disk is full"]
        assert [(level["rank"], level["life"], level["loaded"]) for level in told_of["levels"]] == [
            (2, 1, 24),
            (4, 0, 0),
        ]
        assert [leaver["rank"] for leaver in told_of["left"]] == [0]
        assert told_of["scaled"] == [{"kind": "scaled", "before": 4, "workers": 5}]
        assert told_of["incidents"][0]["whole_ms"] == pytest.approx(9940.0)
    assert [(w["rank"], w["life"], w["state"]) for w in ended["workers"]] == [
        (0, 0, "left"),
        (1, 0, "ended"),
        (2, 1, "ended"),
        (3, 0, "ended"),
        (4, 0, "ended"),
    ]


def test_a_run_in_which_nobody_comes_back_has_nothing_of_it_in_its_object(tmp_path):
    (told_of,) = [as_json(snapshot_of(tmp_path, story_of(events_of_a_run())))]
    assert (told_of["mirror"], told_of["checkpoint"], told_of["restarts"]) == (None, None, 0)
    assert (told_of["levels"], told_of["left"], told_of["scaled"]) == ([], [], [])
    assert told_of["incidents"][0]["whole_ms"] is None


EVENTS_IN_WORDS = [
    (WorkerStarted(2, 17, 3), "worker 2 (life 3) started (pid 17)"),
    (
        WorkerLevel(1, 17, 1, 9, 8, ""),
        "worker 1 (life 1) is level before step 9: from the mirror of step 8, 1 step replayed",
    ),
    (
        WorkerLevel(1, 17, 1, 8, 8, "d"),
        "worker 1 (life 1) is level before step 8: from the mirror of step 8, 0 steps replayed, digest verified",
    ),
    (Admitted((1, 3), 9, (0, 2)), "workers 0 and 2 are in from step 9 (view 1.3)"),
    (
        loss_of(2, life=1),
        "worker 2 (life 1) killed (SIGKILL) in backward of step 12, shard 4; 2 shards to 0 and 1; handled in 12 ms",
    ),
    (WorkerLeft(1, 17, 2, "scaled to 2"), "worker 1 (life 2) left by plan: scaled to 2"),
    (Scaled(2, 1), "asked for 1 worker instead of 2"),
    (
        Mirrored(4, 1, 999, 5, 10_000, 0.5),
        "mirrored every 1 step: two states of 999 bytes, 5 results of 10 kB together; 500 ms to write one",
    ),
    (CheckpointWritten(9, "/c/9", 3_400_000_000, 12.0), "checkpoint of step 9: /c/9 (3.4 GB, 12 s)"),
    (CheckpointFailed(9, "/c/9", "no room"), "checkpoint of step 9 failed: no room; training goes on"),
    (Remarked(0, "nonfinite", "loss = nan", -1), "note by worker 0: loss = nan (nonfinite)"),
    (Remarked(-1, "paused", "nobody is left: it waits", -1), "nobody is left: it waits"),
    (
        loss_of(2, moved={}, installed_ns=0),
        "worker 2 killed (SIGKILL) in backward of step 12, shard 4; nothing to redo; too few are left to go on",
    ),
]


@pytest.mark.parametrize(("event", "words"), EVENTS_IN_WORDS)
def test_each_event_is_one_line(event, words):
    assert told(event) == words


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
    amounts = {1: "1 byte", 999: "999 bytes", 1000: "1.0 kB", 999_499: "999 kB", 999_500: "1.0 MB", 34 << 20: "36 MB"}
    assert {count: size(count) for count in amounts} == amounts
    assert size(5 * 10**15) == "5000 TB"
    assert clock(9.9) == "0:09"
    assert [listed([0]), listed([0, 2]), listed([0, 2, 3])] == ["0", "0 and 2", "0, 2 and 3"]
