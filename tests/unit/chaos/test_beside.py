"""Whether members feel a joiner: runs told by hand, in which steps beside one take longer."""

from dataclasses import replace

import msgspec
import pytest

from relume.chaos.beside import compare, joining, periods
from relume.chaos.measure import measure
from tests.unit.chaos.paper import MS, Told


def judged(told):
    evidence = told.evidence()
    return evidence, measure(evidence, told.killed_ns)


def trial(late=0):
    """Worker 2 dies in step 10; its next life is on its way from step 11 on; steps 12 to 19 take `late` more."""
    told = Told()
    told.late = dict.fromkeys(range(12, 20), late)
    told.lose(2, 0, 1040)
    told.view(1050, (0, 1, 3), step=10)
    told.start(2, 1, 1110)
    told.level(2, 1, told.begin(20) + 5)
    told.view(told.begin(21), (0, 1, 2, 3), step=22)
    return judged(told)


def control(late=0):
    """Worker 3 dies in step 10, for good; a stranger is there in steps 12 to 19."""
    told = Told()
    told.late = dict.fromkeys(range(12, 20), late)
    told.lose(3, 0, 1040)
    told.view(1050, (0, 1, 2), step=10)
    return *judged(told), [(told.begin(12) * MS, told.begin(20) * MS)]


def test_somebody_is_on_its_way_from_its_start_until_it_is_level_or_lost():
    told = Told()
    told.cycle(2, 0, 1040)
    told.lose(2, 1, 3000)
    told.start(2, 2, 3100)
    told.lose(2, 2, 3400, phase="joining", ends_view=False)
    told.start(2, 3, 3500)  # it never is level: until the run's end
    end = 100 * (told.steps - 1) + 95
    assert joining(told.evidence()) == [(1140 * MS, 2040 * MS), (3100 * MS, 3402 * MS), (3500 * MS, end * MS)]


@pytest.mark.parametrize(("late", "stranger", "ratio"), [(0, 0, 1.0), (50, 0, 1.5), (50, 50, 1.0), (32, 20, 1.1)])
def test_steps_beside_a_joiner_are_compared_with_steps_beside_a_stranger(late, stranger, ratio):
    beside = compare(trial(late), control(stranger))
    assert beside.ratio == pytest.approx(ratio)
    assert (beside.members, beside.joining_ns, beside.control_ns) == (3, (100 + late) * MS, (100 + stranger) * MS)
    assert beside.joining_steps >= 7
    assert beside.control_steps == 8


def test_a_machine_that_was_not_equally_busy_in_both_runs_is_remarked():
    assert compare(trial(), control()).remarks == []
    evidence, measured, spans = control()
    slower = {
        key: msgspec.structs.replace(record, taken_ns=2 * record.taken_ns) for key, record in evidence.records.items()
    }
    evidence = replace(evidence, records=slower)
    (remark,) = compare(trial(), (evidence, measured, [(2 * since, 2 * to) for since, to in spans])).remarks
    assert "undisturbed steps took 100 ms and 200 ms" in remark


def test_the_steps_of_the_kill_and_of_the_admission_do_not_count():
    told = Told()
    told.late = {10: 400, 22: 300}
    told.lose(2, 0, 1040)
    told.view(1050, (0, 1, 3), step=10)
    told.start(2, 1, 1060)
    told.level(2, 1, told.begin(23))
    told.view(told.begin(21), (0, 1, 2, 3), step=22)
    evidence, measured = judged(told)
    found = periods(evidence, measured, joining(evidence))
    assert set(found) == {3}
    assert set(found[3]) == {100 * MS}


def test_with_two_at_once_a_step_does_not_count():
    evidence, measured = trial()
    spans = [(1100 * MS, 2000 * MS), (1500 * MS, 2000 * MS)]
    assert len(periods(evidence, measured, spans)[3]) == 4  # from step 11 on, until the second one comes


def test_who_is_level_within_a_step_is_beside_that_step_all_the_same():
    evidence, measured = trial()
    found = periods(evidence, measured, [(1230 * MS, 1260 * MS)])
    assert found == {3: [100 * MS]}


def test_with_nothing_to_compare_there_is_no_ratio():
    evidence, measured, _ = control()
    beside = compare(trial(), (evidence, measured, []))
    assert (beside.ratio, beside.joining_ns, beside.control_ns) == (None, None, None)
    lonely = replace(trial()[0], records={})
    assert compare((lonely, measure(lonely, {})), control()).ratio is None
