"""The verifier where workers come back: what a joiner replayed, when it was let in, and who counted which shard.

Worker 1 of three died in step 7 of 20. Its next life loaded a mirror of step 8, replayed until step 11, and is a member
from step 12 on; worker 3 was a spare that replayed to the end. Each test changes one thing.
"""

import json
import subprocess
import sys

import pytest

from tests.unit.tools.records import DEATH, STEPS, TOOL, Folder, line, state, tool

MIRROR, BACK = 8, 12
OLD, WITHOUT, AGAIN = [1, 1], [1, 2], [1, 3]


def replayed(rank, step, members, view, life):
    return line(rank, step, members, view) | {"life": life, "replay": True, "shards": []}


def members_of(step, *, in_old):
    if step >= BACK:
        return [0, 1, 2], AGAIN
    return ([0, 1, 2], OLD) if in_old else ([0, 2], WITHOUT)


def at(fleet, name, step):
    """The line of a step, to be changed."""
    return next(item for item in fleet.lines[name] if item["step"] == step)


@pytest.fixture
def fleet(tmp_path):
    folder = Folder(tmp_path / "fleet")
    for rank in (0, 2):
        folder.lines[rank] = [
            line(rank, step, *members_of(step, in_old=step < DEATH), sharers=[0, 1, 2] if step == DEATH else None)
            for step in range(STEPS)
        ]
        folder.finals[rank] = {"step": STEPS - 1, "state": state()}
    folder.lines[1] = [line(1, step, *members_of(step, in_old=True)) for step in range(DEATH)]
    back = [replayed(1, step, *members_of(step, in_old=False), 1) for step in range(MIRROR, BACK)]
    folder.lines["1.1"] = back + [line(1, step, [0, 1, 2], AGAIN) | {"life": 1} for step in range(BACK, STEPS)]
    folder.finals["1.1"] = {"step": STEPS - 1, "state": state()}
    folder.lines[3] = [replayed(3, step, *members_of(step, in_old=step < DEATH), 0) for step in range(STEPS)]
    return folder


@pytest.fixture
def events(tmp_path):
    return [
        {"kind": "worker_started", "rank": 1, "life": 0},
        {"kind": "view_installed", "view": OLD, "members": [0, 1, 2], "step": 0},
        {"kind": "incident", "rank": 1, "life": 0, "view": WITHOUT, "step": DEATH},
        {"kind": "view_installed", "view": WITHOUT, "members": [0, 2], "step": DEATH},
        {"kind": "worker_level", "rank": 1, "life": 1, "step": BACK - 2},
        {"kind": "view_installed", "view": AGAIN, "members": [0, 1, 2], "step": BACK},
    ]


@pytest.fixture
def judge(reference, fleet, events, tmp_path):
    def write_and_verify(survivors=((0, 0), (1, 1), (2, 0)), *, told=True):
        reference.write()
        fleet.write()
        path = tmp_path / "events.jsonl"
        path.write_text("".join(json.dumps({"v": 1, "event": event}) + "\n" for event in events))
        return tool.verify(reference.path, fleet.path, survivors, events=path if told else None)

    return write_and_verify


def only(verdict, *expected):
    assert not verdict["ok"]
    assert verdict["differences"] == list(expected)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("survivors", [((0, 0), (1, 1), (2, 0)), (0, 1, 2), None])
def test_a_fleet_to_which_a_worker_came_back_is_the_same(judge, survivors, told):
    verdict = judge(survivors, told=told)
    assert verdict["differences"] == []
    assert (verdict["lost_steps"], verdict["differing_bits"], verdict["final_states"]) == (0, 0, 3)
    lives = [(w["rank"], w["life"], w["lines"], w["replayed"], w["finished"]) for w in verdict["workers"]]
    assert lives == [
        (0, 0, 20, 0, True),
        (1, 0, 7, 0, False),
        (1, 1, 12, 4, True),
        (2, 0, 20, 0, True),
        (3, 0, 20, 20, False),
    ]


def test_what_a_joiner_replayed_has_the_references_bits_too(judge, fleet):
    at(fleet, "1.1", 9)["digest"] = "f" * 16
    said = judge()["differences"]
    assert "step 9, worker 1 (life 1): its digest is not the reference's" in said


def test_a_joiners_final_state_is_compared(judge, fleet):
    fleet.finals["1.1"]["state"]["scheduler"]["last_epoch"] = 19
    only(judge(), "worker 1 (life 1), final state['scheduler']['last_epoch']: 1 bits: 19, in the reference 20")


def test_a_joiner_that_finished_left_a_final_state(judge, fleet):
    del fleet.finals["1.1"]
    only(judge(), "worker 1 (life 1): finished, but left no final state")


def test_who_replays_may_jump_to_a_newer_mirror_but_not_once_it_is_in(judge, fleet):
    fleet.lines["1.1"].remove(at(fleet, "1.1", 10))
    assert judge()["differences"] == []
    fleet.lines["1.1"].remove(at(fleet, "1.1", 15))
    only(judge(), "worker 1 (life 1): no record of: steps 15")


def test_nobody_replays_after_it_was_let_in(judge, fleet):
    at(fleet, "1.1", 15).update({"replay": True, "shards": []})
    only(judge(), "worker 1 (life 1): replayed after it had been let in: steps 15")


def test_whoever_was_there_from_the_start_replays_nothing(judge, fleet):
    del fleet.lines[2][:3]
    for item in fleet.lines[2][:2]:
        item.update({"replay": True, "shards": []})
    assert "worker 2: no record of: steps 0-2" in judge()["differences"]


def test_a_shard_that_two_workers_counted_is_found(judge, fleet):
    at(fleet, 2, 15)["shards"].append([1, 0, 1])
    only(judge(), "step 15: shard 1 was counted by worker 1 (life 1) and by worker 2")


def test_a_shard_that_nobody_counted_is_found_unless_somebody_died_in_that_step(judge, fleet):
    assert judge()["ok"]  # shard 1 of step 7 was sealed by the one that died in it
    at(fleet, 2, 15)["shards"].clear()
    only(judge(), "step 15: nobody counted shards 2, though nobody died in it")


def test_a_shard_that_does_not_exist_is_found(judge, fleet):
    at(fleet, 2, 15)["shards"].append([4, 0, 1])
    only(judge(), "step 15: shard 4 was counted by worker 2")


def test_two_lives_of_a_rank_in_one_step_are_found(judge, fleet):
    fleet.lines[1] += [line(1, step, [0, 1, 2], AGAIN) | {"shards": []} for step in range(DEATH, BACK + 1)]
    assert "step 12: recorded by worker 1 in 2 of its lives" in judge()["differences"]


def test_a_dead_worker_that_wrote_in_a_later_view_is_found(judge, fleet):
    fleet.lines[1].append(line(1, DEATH, [0, 1, 2], AGAIN) | {"shards": []})
    said = judge()["differences"]
    assert "worker 1, step 7: wrote in view (1, 3) after it was lost" in said


def test_a_member_that_the_events_do_not_tell_to_have_died_has_every_line(judge, fleet, events):
    """With the events it is exact: one line is enough."""
    del fleet.lines[1][-1]
    at(fleet, 2, DEATH)["shards"].append([1, 0, 1])
    missed = "worker 1: last record 5, named a member until step 6"
    assert missed in judge()["differences"]  # it died in step 7, so it had written the line of 6
    events[2]["step"] = DEATH - 1
    assert judge()["differences"] == []  # it died in that view, maybe after it had taken the step
    events[2]["view"] = OLD
    assert missed in judge()["differences"]


def test_a_step_that_was_complete_before_a_view_began_asks_nothing_of_those_who_came_with_it(judge, fleet, events):
    """Worker 2 took step 11 late, under the view that begins with step 12, to which 1 came with a mirror of step 12."""
    at(fleet, 2, BACK - 1).update({"epoch_view": AGAIN, "members": [0, 1, 2]})
    del fleet.lines["1.1"][: BACK - MIRROR]
    assert judge()["differences"] == []
    events[-1]["step"] = BACK - 1
    assert judge()["differences"] == ["worker 1: last record 6, named a member until step 11"]


def test_a_member_may_replay_a_step_that_was_complete_when_it_came_by(judge, fleet, events):
    """A spare is let in with the step in which another dies, and there is nothing left to do in that."""
    events[-1]["step"] = BACK - 1
    for rank in (0, 2):
        at(fleet, rank, BACK - 1).update({"epoch_view": AGAIN, "members": [0, 1, 2]})
    assert judge()["differences"] == []


def test_one_that_stopped_and_nobody_told_why_is_found(judge, events):
    del events[2]
    said = judge()["differences"]
    assert "worker 1: stopped after step 6, and the events do not tell why" in said
    events.append({"kind": "worker_left", "rank": 1, "life": 0})
    assert judge()["ok"]


def test_a_view_that_the_agent_never_told_of_is_found(judge, events):
    events[-1]["members"] = [0, 1, 2, 3]
    said = judge()["differences"]
    assert len(said) == 3
    expected = "view (1, 3) with members (0, 1, 2); the events tell of (0, 1, 2, 3)"
    assert said[0] == f"worker 0, step 12: {expected}"


def test_without_events_a_joiner_that_died_at_once_may_be_named_for_a_while(judge, fleet):
    """It was let in, died in its first step, and left no line of it."""
    del fleet.lines["1.1"][4:]
    del fleet.finals["1.1"]
    for rank in (0, 2):
        for step in range(BACK + 1, STEPS):
            fleet.lines[rank][step] = line(rank, step, [0, 2], [1, 4])
    assert judge(((0, 0), (2, 0)), told=False)["ok"]


def test_events_that_cannot_be_read_are_told(judge, tmp_path):
    judge()
    verdict = tool.verify(tmp_path / "reference", tmp_path / "fleet", events=tmp_path / "nowhere")
    assert any(text.startswith("the events in ") for text in verdict["differences"])


def test_a_life_that_is_not_the_files_is_found(judge, fleet):
    at(fleet, "1.1", 15)["life"] = 0
    said = judge()["differences"]
    assert said[0].startswith("worker 1 (life 1), line 8: cannot be read (")


def test_the_command_line_takes_lives_and_events(judge, reference, fleet, tmp_path):
    verdict = judge()
    arguments = [sys.executable, str(TOOL), "--reference", str(reference.path), "--run", str(fleet.path)]
    arguments += ["--survivors", "0,1.1,2", "--events", str(tmp_path / "events.jsonl"), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, verdict)
    bad = subprocess.run([*arguments[:-4], "x.1"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
