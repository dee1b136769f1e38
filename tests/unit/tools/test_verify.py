"""The verifier finds each kind of difference, planted one at a time in records in which nothing differs.

Everybody believes `tools/verify.py`, so here it is not believed: every test takes a fleet's records in which worker 1
died in step 7 of 20, changes one thing, and asks that just this is found.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from tests.unit.tools.records import DEATH, STEPS, TOOL, Folder, line, state, tool


@pytest.fixture
def fleet(tmp_path):
    """Three workers; worker 1 died in step 7, which worker 0 had taken in the old view."""
    folder = Folder(tmp_path / "fleet")

    def named(rank, step, first_without):
        members, view = ([0, 1, 2], [1, 0]) if step < first_without else ([0, 2], [1, 1])
        sharers = [0, 1, 2] if step <= DEATH else None  # what worker 1 had sealed in that step stands
        return line(rank, step, members, view, sharers=sharers)

    folder.lines[0] = [named(0, step, DEATH + 1) for step in range(STEPS)]
    folder.lines[1] = [named(1, step, DEATH) for step in range(DEATH)]
    folder.lines[2] = [named(2, step, DEATH) for step in range(STEPS)]
    for rank in (0, 2):
        folder.finals[rank] = {"step": STEPS - 1, "state": state()}
    return folder


@pytest.fixture
def judge(reference, fleet):
    def write_and_verify(survivors=(0, 2), **options):
        reference.write()
        fleet.write()
        return tool.verify(reference.path, fleet.path, survivors, **options)

    return write_and_verify


def test_a_fleet_that_lost_a_worker_and_nothing_else_is_the_same(judge):
    verdict = judge()
    assert verdict["differences"] == []
    assert verdict["ok"]
    assert (verdict["steps"], verdict["lost_steps"], verdict["differing_bits"], verdict["final_states"]) == (
        20,
        0,
        0,
        2,
    )
    assert verdict["loss_first"] == pytest.approx(3.95)
    assert verdict["loss_last"] == pytest.approx(2.15)
    assert verdict["survivors"] == [0, 2]


def test_who_survived_is_found_without_being_told(judge):
    verdict = judge(survivors=None)
    assert (verdict["ok"], verdict["survivors"]) == (True, [0, 2])


def test_a_worker_may_die_before_it_records_anything(judge, fleet):
    for rank in (0, 2):
        for step in range(DEATH + 1):
            fleet.lines[rank][step] = line(rank, step, [0, 2], [1, 1])
        fleet.lines[rank][0] = line(rank, 0, [0, 1, 2], [1, 0])
    del fleet.lines[1]
    assert judge()["differences"] == []


@pytest.mark.parametrize("tail", ['{"v": 1, "ra', "{", "\udcff".encode("utf-8", "surrogateescape").decode("latin1")])
def test_a_killed_worker_may_leave_a_torn_last_line(judge, fleet, tail):
    fleet.tails[1] = tail
    assert judge()["differences"] == []


def test_a_last_line_that_lacks_only_its_newline_counts(judge, fleet):
    fleet.tails[1] = json.dumps(line(1, DEATH, [0, 1, 2], [1, 0]))
    verdict = judge()
    assert (verdict["ok"], verdict["workers"][1]["last"]) == (True, DEATH)


@pytest.mark.parametrize(
    ("place", "change", "bits"),
    [
        ("weight", lambda x: x.view(torch.int32)[2, 1].bitwise_xor_(torch.tensor(1)), 1),
        ("weight", lambda x: x.view(torch.int32)[0, 0].bitwise_xor_(torch.tensor(0b1011)), 3),
        ("half", lambda x: x.view(torch.int16)[4, 2].bitwise_xor_(torch.tensor(2, dtype=torch.int16)), 1),
        ("counted", lambda x: x.fill_(2), 1),
        ("on", lambda x: x.fill_(False), 1),
    ],
)
def test_one_flipped_bit_of_one_survivor_is_found(judge, fleet, place, change, bits):
    change(fleet.finals[2]["state"]["model"][place])
    verdict = judge()
    assert (verdict["ok"], verdict["differing_bits"]) == (False, bits)
    assert len(verdict["differences"]) == 1
    assert verdict["differences"][0].startswith(f"worker 2, final state['model'][{place!r}]: {bits} bits")


def set_group(name, value):
    return lambda final: final["optimizer"]["param_groups"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "bits", "where"),
    [
        (lambda final: final["model"].pop("half"), 1, "state['model']['half']"),
        (lambda final: final["model"].update(more=torch.zeros(2)), 1, "state['model']['more']"),
        (lambda final: final["model"].update(weight=torch.zeros(15)), 15 * 32, "state['model']['weight']"),
        (lambda final: final["model"].update(counted=torch.tensor(3.0)), 64, "state['model']['counted']"),
        (set_group("lr", math.nextafter(0.1, 1)), 1, "state['optimizer']['param_groups'][0]['lr']"),
        (set_group("betas", [0.9, 0.99]), 1, "state['optimizer']['param_groups'][0]['betas']"),
        (set_group("betas", (0.9,)), 1, "state['optimizer']['param_groups'][0]['betas'][1]"),
        (set_group("lr", torch.tensor(0.1)), 1, "state['optimizer']['param_groups'][0]['lr']"),
        (lambda final: final["scheduler"].update(last_epoch=20.0), 1, "state['scheduler']['last_epoch']"),
        (lambda final: final["scheduler"].update(note="x"), 1, "state['scheduler']['note']"),
        (lambda final: final["vars"].update(best=-math.nan), 1, "state['vars']['best']"),
        (lambda final: final.pop("scheduler"), 1, "state['scheduler']"),
    ],
)
def test_anything_else_in_the_state_that_differs_is_found(judge, fleet, change, bits, where):
    change(fleet.finals[0]["state"])
    verdict = judge()
    assert (verdict["ok"], verdict["differing_bits"], len(verdict["differences"])) == (False, bits, 1)
    assert verdict["differences"][0].startswith(f"worker 0, final {where}: ")


def test_zero_and_minus_zero_differ(judge, reference, fleet):
    reference.finals[0]["state"]["vars"] = {"a": 0.0, "b": torch.tensor(0.0)}
    fleet.finals[0]["state"]["vars"] = {"a": -0.0, "b": torch.tensor(-0.0)}
    fleet.finals[2]["state"]["vars"] = {"a": 0.0, "b": torch.tensor(0.0)}
    assert judge()["differing_bits"] == 2


def test_the_order_of_keys_and_the_strides_of_tensors_are_no_difference(judge, fleet):
    model = fleet.finals[0]["state"]["model"]
    model["weight"] = model["weight"].t().contiguous().t()
    fleet.finals[0]["state"]["model"] = dict(reversed(model.items()))
    assert judge()["differences"] == []


def only(verdict, *expected):
    """The verdict names exactly these differences."""
    assert not verdict["ok"]
    assert verdict["differences"] == list(expected)


def test_a_survivors_missing_line_is_found(judge, fleet):
    del fleet.lines[2][11]
    only(judge(), "worker 2: no record of: steps 11")


def test_a_survivors_missing_last_line_is_found(judge, fleet):
    del fleet.lines[2][-2:]
    only(judge(), "worker 2: no record of: steps 18-19")


def test_a_gap_before_a_dead_workers_last_line_is_found(judge, fleet):
    del fleet.lines[1][2:4]
    only(judge(), "worker 1: no record of: steps 2-3")


def test_a_dead_worker_that_was_named_a_member_long_after_is_found(judge, fleet):
    del fleet.lines[1][5:]
    assert judge()["ok"]  # last record 4, named until 7: it may have died after it took 5, before it wrote the line
    del fleet.lines[1][4:]
    only(judge(), "worker 1: last record 3, named a member until step 7")


def test_a_member_that_left_nothing_at_all_is_found(judge, fleet):
    del fleet.lines[1]
    only(judge(), "worker 1: last record -1, named a member until step 7")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_doubled_line_is_found_even_when_it_says_the_same(judge, fleet, rank):
    fleet.lines[rank].insert(3, fleet.lines[rank][3])
    only(judge(), f"worker {rank}: recorded twice: steps 3")


def test_lines_out_of_order_are_found(judge, fleet):
    fleet.lines[0][3:5] = reversed(fleet.lines[0][3:5])
    only(judge(), "worker 0: its records are not in the order of the steps")


def test_a_step_that_nobody_recorded_is_lost(judge, fleet):
    for lines in fleet.lines.values():
        del lines[5]
    verdict = judge()
    assert verdict["lost_steps"] == 1
    only(verdict, *(f"worker {rank}: no record of: steps 5" for rank in (0, 1, 2)), "nobody recorded steps 5")


def test_a_run_that_ended_early_is_found(judge, fleet):
    for rank in (0, 2):
        del fleet.lines[rank][-3:]
        fleet.finals[rank]["step"] = STEPS - 4
    verdict = judge()
    assert verdict["lost_steps"] == 3
    only(verdict, "nobody recorded steps 17-19")


def test_a_run_that_went_on_too_long_is_found(judge, fleet):
    for rank in (0, 2):
        fleet.lines[rank].append(line(rank, STEPS, [0, 2], [1, 1]))
        fleet.finals[rank]["step"] = STEPS
    only(judge(), "step 20: not in the reference")


def test_a_digest_that_differs_between_workers_is_found_and_the_step_lost(judge, fleet):
    fleet.lines[2][9]["digest"] = "f" * 16
    verdict = judge()
    assert verdict["lost_steps"] == 1
    only(
        verdict,
        f"step 9: the workers have different digests: {9:016x}, {'f' * 16}",
        "step 9, worker 2: its digest is not the reference's",
    )


def test_a_digest_that_differs_from_the_references_on_all_workers_is_found(judge, fleet):
    for rank in (0, 2):
        fleet.lines[rank][9]["digest"] = "f" * 16
    only(judge(), *(f"step 9, worker {rank}: its digest is not the reference's" for rank in (0, 2)))


def test_a_dead_workers_wrong_digest_is_found(judge, fleet):
    fleet.lines[1][6]["digest"] = "f" * 16
    assert "step 6, worker 1: its digest is not the reference's" in judge()["differences"]


def test_a_mean_that_differs_in_its_last_bit_is_found(judge, fleet):
    right = fleet.lines[2][9]["means"]["loss"]
    wrong = math.nextafter(float.fromhex(right), 9).hex()
    fleet.lines[2][9]["means"]["loss"] = wrong
    only(judge(), f"step 9, worker 2: mean of 'loss' is {wrong}, reference {right}")


def test_a_mean_that_is_missing_is_found(judge, fleet):
    del fleet.lines[2][9]["means"]["tokens"]
    only(judge(), f"step 9, worker 2: mean of 'tokens' is None, reference {(64.0).hex()}")


def test_a_survivor_without_a_final_state_is_found(judge, fleet):
    del fleet.finals[2]
    only(judge(), "worker 2: finished, but left no final state")
    only(judge(survivors=None), "worker 2: finished, but left no final state")


def test_a_survivor_that_left_nothing_is_found(judge):
    verdict = judge(survivors=(0, 2, 3))
    only(verdict, "worker 3: no record of: steps 0-19", "worker 3: finished, but left no final state")


def test_a_worker_killed_after_its_last_step_is_no_survivor(judge, fleet):
    del fleet.finals[2]
    assert judge(survivors=(0,))["differences"] == []


def test_the_final_state_of_one_killed_in_the_tail_is_compared_too(judge, fleet):
    fleet.finals[2]["state"]["vars"]["best"] = 0.0
    assert not judge(survivors=(0,))["ok"]


def test_a_final_state_of_another_step_is_found(judge, fleet):
    fleet.finals[2]["step"] = STEPS - 2
    only(judge(), "worker 2: its final state is of step 18, the last is 19")


def test_a_damaged_final_state_is_found(judge, fleet):
    judge()
    path = fleet.path / "final-2.pt"
    path.write_bytes(path.read_bytes()[:-100])
    del fleet.finals[2]
    (difference,) = judge()["differences"]
    assert difference.startswith("worker 2: finished, but its final state cannot be read (")


def test_a_survivors_torn_line_is_found(judge, fleet):
    fleet.tails[2] = '{"v": 1, "ra'
    only(judge(), "worker 2: finished, but its last line is torn")


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"rank": 0},
        {"step": True},
        {"step": "9"},
        {"step": -1},
        {"step": 10**15},
        {"members": [0, 1]},
        {"members": [0, 2, 2]},
        {"members": None},
        {"epoch_view": [1]},
        {"digest": ""},
        {"means": {"loss": 3.0}},
        {"means": {"loss": "x"}},
        {"means": [1]},
        {"run": None},
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_found(judge, fleet, change):
    fleet.lines[2][9] |= change
    found = judge()["differences"]
    assert len(found) == 2
    assert found[0].startswith("worker 2, line 10: cannot be read (")
    assert found[1] == "worker 2: no record of: steps 9"


def test_members_that_differ_within_a_view_are_found(judge, fleet):
    fleet.lines[2][9]["members"] = [0, 1, 2]
    (difference,) = judge()["differences"]
    assert difference == "worker 2, step 9: view (1, 1) has members (0, 1, 2), elsewhere (0, 2)"


def test_a_worker_that_goes_back_to_an_older_view_is_found(judge, fleet):
    fleet.lines[2][9] |= {"members": [0, 1, 2], "epoch_view": [1, 0]}
    only(judge(), "worker 2, step 9: went back from view (1, 1) to (1, 0)")


def test_records_of_two_runs_in_one_folder_are_found(judge, fleet):
    fleet.lines[2] = [item | {"run": "older"} for item in fleet.lines[2]]
    (difference,) = judge()["differences"]
    assert difference.startswith("records of several runs lie in ")


@pytest.mark.parametrize("losses", [[1.0] * STEPS, [1.0] * 10 + [1.5] * 10, [1.0] * 19 + [math.nan]])
def test_a_loss_that_does_not_fall_is_found(judge, reference, fleet, losses):
    for lines in (*fleet.lines.values(), *reference.lines.values()):
        for item in lines:
            item["means"]["loss"] = losses[item["step"]].hex()
    (difference,) = judge()["differences"]
    assert difference.startswith("the loss did not fall")


def test_a_run_without_the_loss_is_found(judge):
    only(judge(loss="error"), "no 'error' was logged")


def test_a_run_that_nobody_finished_is_found(judge, fleet):
    fleet.finals.clear()
    assert judge(survivors=())["differences"] == ["no worker finished"]


def test_a_reference_that_is_not_whole_is_no_reference(judge, reference):
    del reference.lines[0][4]
    assert "reference: its steps are not 0, 1, 2, ... each once" in judge()["differences"]


def test_a_reference_without_a_final_state_is_no_reference(judge, reference):
    del reference.finals[0]
    verdict = judge()
    only(verdict, "reference: left no final state")
    assert verdict["differing_bits"] is None


def test_the_record_of_a_fleet_is_no_reference(judge, reference):
    reference.lines[1] = [line(1, step, [0, 1], [1, 0], "plain") for step in range(STEPS)]
    only(judge(), "reference: a plain run is rank 0 alone, found [0, 1]")


def test_a_folder_is_not_compared_with_itself(judge, reference):
    judge()
    verdict = tool.verify(reference.path, reference.path)
    only(verdict, "the reference and the run are the same folder")


def test_empty_folders_are_not_the_same(tmp_path):
    verdict = tool.verify(tmp_path / "a", tmp_path / "b")
    assert not verdict["ok"]
    assert verdict["differences"][0] == f"reference: no records in {tmp_path / 'a'}"


def command(reference, fleet, *options):
    arguments = [sys.executable, str(TOOL), "--reference", str(reference.path), "--run", str(fleet.path), *options]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_the_command_line_says_it_for_programs(judge, reference, fleet):
    verdict = judge()
    done = command(reference, fleet, "--json", "--survivors", "0,2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == verdict


def test_the_command_line_says_it_for_people(judge, reference, fleet):
    fleet.finals[2]["state"]["vars"]["best"] = 0.0
    judge()
    done = command(reference, fleet)
    assert done.returncode == 1
    assert "DIFFERENT: 1 differences" in done.stdout
    assert "worker 2, final state['vars']['best']" in done.stdout


def test_it_imports_nothing_of_relume():
    code = f"import runpy, sys; runpy.run_path({str(TOOL)!r}); sys.exit('relume' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "import relume" not in TOOL.read_text()
