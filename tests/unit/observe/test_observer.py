"""From files and an answer to one look: what is known of a live run, an ended one, and one whose agent was killed."""

import json
import math
import os
import time

import pytest

from relume.observe.observer import Observer
from relume.observe.pace import Pace
from relume.observe.standing import Standing, is_process
from tests.unit.observe.paper import DEAD_PID, events_of_a_run, reply_with, text_of, worker, write_run


def look(folder, reply=None, records=None):
    return Observer(folder, records, asking=lambda run, timeout_s: reply).look()


def test_an_ended_run_is_told_from_its_events_and_nobody_is_asked(tmp_path):
    observer = Observer(write_run(tmp_path, events_of_a_run()), asking=lambda *_: pytest.fail("it has ended"))
    snapshot = observer.look()
    assert snapshot.standing is Standing.ENDED
    assert (snapshot.steps, snapshot.total) == (60, 60)
    assert [incident.rank for incident in snapshot.story.incidents] == [2]
    assert snapshot.main == 0


def test_a_live_run_is_told_by_its_agent(tmp_path):
    folder = write_run(tmp_path, events_of_a_run(ended=False, agent_pid=os.getpid()))
    (folder / "worker-1.log").write_bytes(b"step 0\nstep 20  loss 2.4\n\nhalf a li")
    snapshot = look(folder, reply_with(worker(0, "lost", step=12), worker(1, step=24), worker(3, step=23)))
    assert snapshot.standing is Standing.LIVE
    assert (snapshot.steps, snapshot.total, snapshot.main) == (24, 60, 1)
    assert snapshot.says == "step 20  loss 2.4"


def test_a_run_whose_loop_is_over_has_done_all_its_steps(tmp_path):
    folder = write_run(tmp_path, events_of_a_run(ended=False))
    assert look(folder, reply_with(worker(0, phase="tail", step=59), state="closed")).steps == 60
    one_who_repeats_the_tail = worker(0, "replaying", phase="tail", step=60, life=1)
    assert look(folder, reply_with(one_who_repeats_the_tail, state="closed")).steps == 60


def test_an_agent_that_died_without_a_word_is_told_from_one_that_does_not_answer(tmp_path):
    dead = write_run(tmp_path / "dead", events_of_a_run(ended=False, agent_pid=DEAD_PID))
    silent = write_run(tmp_path / "silent", events_of_a_run(ended=False, agent_pid=os.getpid()))
    assert look(dead).standing is Standing.DEAD
    assert look(dead).steps == 12  # the newest step that the events name
    assert look(silent).standing is Standing.SILENT


def test_a_pid_that_another_process_has_now_is_not_the_agent():
    assert is_process(os.getpid(), time.time())
    assert not is_process(os.getpid(), time.time() - 1e6)
    assert not is_process(DEAD_PID, time.time())


def test_a_run_that_ends_between_two_questions_has_ended(tmp_path):
    folder = write_run(tmp_path, events_of_a_run(ended=False))

    def ask_too_late(run, timeout_s):
        with (folder / "events.jsonl").open("ab") as events:
            events.write(text_of(events_of_a_run()[-1]))

    observer = Observer(folder, asking=ask_too_late)
    assert observer.look().standing is Standing.ENDED


@pytest.mark.parametrize("facts", ["", "{", "[]", '{"steps": null}', '{"steps": "many"}', '{"run": "x"}'])
def test_a_damaged_run_json_only_leaves_the_total_unknown(tmp_path, facts):
    folder = write_run(tmp_path, events_of_a_run())
    (folder / "run.json").write_text(facts)
    assert (look(folder).steps, look(folder).total) == (12, 0)


def test_loss_and_steps_come_from_records_where_there_are_some(tmp_path):
    folder = write_run(tmp_path, events_of_a_run(ended=False))
    records = tmp_path / "records"
    records.mkdir()
    lines = [{"step": step, "means": {"loss": (4.0 - step).hex()}} for step in range(3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (records / "record-0.jsonl").write_text(text)
    (records / "record-1.jsonl").write_text("no json\n" + text[:-20])
    snapshot = look(folder, reply_with(worker(0, step=2)), records)
    assert (snapshot.steps, snapshot.loss) == (3, 2.0)
    assert math.isnan(look(folder, reply_with(worker(0, step=2)), tmp_path / "none").loss)


def test_the_pace_is_that_of_the_last_seconds():
    pace = Pace()
    assert pace.step_s is None
    for now in range(100):  # a step takes two seconds, and from the fiftieth second on half of one
        pace.look(float(now), now // 2 if now < 50 else 25 + 2 * (now - 50))
    assert pace.step_s == pytest.approx(0.5)
