"""The numbers, on runs made by hand whose answers are known. All times here are in milliseconds.

Undisturbed, a step takes 100 ms: each worker computes its shard from 10 to 80, waits until 94 and has taken the result
at 95. What a kill does to that stands in each test.
"""

from dataclasses import replace

import pytest

from relume.chaos.evidence import Evidence, Record
from relume.chaos.measure import control_excess, measure
from relume.core.view import first, shards_of
from relume.wire.events import WorkerLost
from relume.wire.messages import View

MS = 1_000_000
WORKERS, STEPS = 4, 30


def record(rank, step, *, at, members=range(WORKERS), shards=None, waits=((80, 94),), taken=95):
    """Return a record whose times are relative to `at`."""
    shards = [(rank, 10, 80)] if shards is None else shards
    return Record(
        rank=rank,
        step=step,
        epoch_view=(1, 1),
        members=tuple(members),
        digest="d",
        begin_ns=int(at * MS),
        shards=tuple((shard, int((at + start) * MS), int((at + sealed) * MS)) for shard, start, sealed in shards),
        waits=tuple((int((at + since) * MS), int((at + to) * MS)) for since, to in waits),
        taken_ns=int((at + taken) * MS),
        end_ns=int((at + taken + 1) * MS),
    )


class Told:
    """A run as it is told: undisturbed until something else is said. Step t begins at 100 t, plus `late`."""

    def __init__(self, steps=STEPS):
        self.records = {(rank, step): record(rank, step, at=100 * step) for step in range(steps) for rank in range(4)}
        self.views = [first(1, range(WORKERS), WORKERS)]
        self.incidents = []
        self.steps = steps

    def kill(self, rank, *, step, phase="backward", shard=-1, killed, lost=None, installed, moved=None, view_step=None):
        """Note a loss and the view that followed; drop the victim's records from `step` on."""
        old = self.views[-1]
        members = tuple(member for member in old.members if member != rank)
        view_step = step if view_step is None else view_step
        moved = moved or {}
        shares = {member: list(shards_of(old, member, view_step)) for member in members}
        for lost_shard, heir in moved.items():
            shares[heir].append(lost_shard)
        view = View((1, old.number[1] + 1), members, view_step, old.shards, tuple(map(tuple, shares.values())))
        self.views.append(view)
        times = dict.fromkeys(("lost_ns", "fenced_ns", "promised_ns"), int((lost or installed) * MS))
        self.incidents.append(
            WorkerLost(
                rank=rank,
                pid=1000 + rank,
                cause="signal",
                text="it was killed",
                evidence={},
                wait_status=9,
                phase=phase,
                step=step,
                shard=shard,
                view=view.number,
                moved=moved,
                rung=2,
                killed_ns=int(killed * MS),
                installed_ns=int(installed * MS),
                **times,
            )
        )
        for key in [key for key in self.records if key[0] == rank and key[1] >= step]:
            del self.records[key]

    def say(self, *records):
        for each in records:
            self.records[each.rank, each.step] = each

    def shift(self, step, late, members):
        """From `step` on everything is `late` ms later, and the members are fewer."""
        for (rank, at), each in list(self.records.items()):
            if at >= step:
                moved = record(rank, at, at=100 * at + late, members=members)
                self.records[rank, at] = moved if each.shards else each

    def evidence(self):
        return Evidence(
            records=self.records,
            incidents=tuple(self.incidents),
            views=tuple(self.views),
            pids={(rank, 0): 1000 + rank for rank in range(WORKERS)},
            ended=None,
            clock_s=0.0,
        )

    def measure(self):
        return measure(self.evidence(), {(loss.rank, loss.life): loss.killed_ns for loss in self.incidents})


def in_ms(cost):
    raw = None if cost.raw_excess_ns is None else cost.raw_excess_ns / MS
    return cost.exposed_wait_ns / MS, cost.redo_ns / MS, raw


def killed_in_backward():
    """Worker 2 dies 40 ms into step 10. Worker 0 starts its shard at 85 and seals it at 155; the others wait."""
    told = Told()
    told.kill(2, step=10, shard=2, killed=1040, lost=1050, installed=1060, moved={2: 0})
    told.shift(11, late=75, members=(0, 1, 3))
    told.say(
        record(0, 10, at=1000, members=(0, 1, 3), shards=[(0, 10, 80), (2, 85, 155)], waits=[(155, 169)], taken=170),
        record(1, 10, at=1000, members=(0, 1, 3), shards=[(1, 10, 80)], waits=[(80, 169)], taken=170),
        record(3, 10, at=1000, members=(0, 1, 3), shards=[(3, 10, 70)], waits=[(70, 169)], taken=170),
    )
    return told


def test_a_run_without_kills_costs_nothing_and_has_a_baseline():
    measured = Told().measure()
    assert measured.costs == ()
    assert measured.baseline_ns == 100 * MS
    assert measured.undisturbed == tuple(range(2, STEPS))  # the first two warm things up


def test_a_kill_in_a_shard_costs_the_wait_until_its_heir_starts_it():
    (cost,) = killed_in_backward().measure().costs
    # Worker 3 waited longest: from 70, when it was done, to 85, when the lost shard was started.
    assert in_ms(cost) == (15, 70, 75)
    assert cost.steps == (10,)
    assert dict(cost.moved) == {2: 0}
    assert (cost.detected_ns, cost.installed_ns) == (10 * MS, 20 * MS)


def test_waits_before_the_kill_do_not_count():
    told = killed_in_backward()
    late = replace(told.evidence(), incidents=(told.incidents[0],))
    measured = measure(late, {(2, 0): 1078 * MS})  # the same run, had the kill been later: 78 to 85 is left
    assert measured.costs[0].exposed_wait_ns == 7 * MS


def test_undisturbed_steps_leave_out_the_kill_and_its_neighbours():
    measured = killed_in_backward().measure()
    assert set(measured.undisturbed) == set(range(2, STEPS)) - {9, 10, 11}


def test_a_kill_while_summing_costs_what_the_end_of_the_step_was_late():
    """All leaves are sealed at 80; worker 1 dies at 85, and others sum its blocks: taken at 120 instead of 95."""
    told = Told()
    told.kill(1, step=10, phase="sum", killed=1085, installed=1105)
    told.shift(11, late=25, members=(0, 2, 3))
    told.say(
        *(record(rank, 10, at=1000, members=(0, 2, 3), waits=[(80, 119)], taken=120) for rank in (0, 2, 3)),
    )
    (cost,) = told.measure().costs
    assert in_ms(cost) == (25, 0, 25)


def test_the_late_end_counts_only_as_far_as_it_came_after_the_kill():
    """The step was late anyway: the leaves are sealed at 80, worker 1 dies at 110, taken at 120."""
    told = Told()
    told.kill(1, step=10, phase="sum", killed=1110, installed=1118)
    told.shift(11, late=25, members=(0, 2, 3))
    told.say(
        *(record(rank, 10, at=1000, members=(0, 2, 3), waits=[(80, 119)], taken=120) for rank in (0, 2, 3)),
    )
    assert told.measure().costs[0].exposed_wait_ns == 10 * MS


def test_a_kill_after_everybody_took_the_step_falls_into_the_next():
    """Worker 3 dies in its update, 97 ms into step 10: its shard of step 11 is lost before it began."""
    told = Told()
    told.kill(3, step=10, phase="update", killed=1097, installed=1110, moved={3: 1}, view_step=11)
    told.say(record(3, 10, at=1000))  # it took the step, and had written its line
    told.shift(12, late=60, members=(0, 1, 2))
    told.say(
        record(0, 11, at=1100, members=(0, 1, 2), waits=[(80, 154)], taken=155),
        record(1, 11, at=1100, members=(0, 1, 2), shards=[(1, 10, 80), (3, 80, 140)], waits=[(140, 154)], taken=155),
        record(2, 11, at=1100, members=(0, 1, 2), waits=[(80, 154)], taken=155),
    )
    (cost,) = told.measure().costs
    assert cost.steps == (11,)
    assert in_ms(cost) == (0, 60, 60)


def test_a_kill_before_others_took_the_step_disturbs_two():
    """As above, but at 93: step 10 was complete, and not taken by all. Both steps are compared with two."""
    told = Told()
    told.kill(3, step=10, phase="update", killed=1093, installed=1110, moved={3: 1}, view_step=11)
    told.shift(12, late=60, members=(0, 1, 2))
    told.say(
        *(record(rank, 10, at=1000, waits=[(80, 104)], taken=105) for rank in (0, 1, 2)),  # held up by the ballot
        record(0, 11, at=1105, members=(0, 1, 2), waits=[(80, 149)], taken=150),
        record(1, 11, at=1105, members=(0, 1, 2), shards=[(1, 10, 80), (3, 85, 135)], waits=[(135, 149)], taken=150),
        record(2, 11, at=1105, members=(0, 1, 2), waits=[(80, 149)], taken=150),
    )
    (cost,) = told.measure().costs
    assert cost.steps == (10, 11)
    # Step 10 ended 10 ms late, and in step 11 two waited 5 ms for the start of shard 3.
    assert in_ms(cost) == (15, 50, (1105 - 995) + (1255 - 1105) - 200)


def test_fewer_workers_may_be_faster_and_the_raw_excess_says_so():
    told = Told()
    told.kill(2, step=10, shard=2, killed=1005, installed=1008, moved={2: 0})
    told.shift(11, late=-20, members=(0, 1, 3))
    told.say(
        record(0, 10, at=1000, members=(0, 1, 3), shards=[(0, 10, 30), (2, 30, 60)], waits=[(60, 74)], taken=75),
        record(1, 10, at=1000, members=(0, 1, 3), shards=[(1, 10, 60)], waits=[(60, 74)], taken=75),
        record(3, 10, at=1000, members=(0, 1, 3), shards=[(3, 10, 60)], waits=[(60, 74)], taken=75),
    )
    assert in_ms(told.measure().costs[0]) == (0, 30, -20)


def test_a_kill_is_compared_with_steps_of_as_many_members():
    """With three workers steps take 130 ms from step 11 on; a second kill there is no 30 ms worse for it."""
    told = killed_in_backward()
    begin = 1170
    for step in range(11, STEPS):
        members = (0, 1, 3) if step < 20 else (0, 1)
        for rank in members:
            told.say(record(rank, step, at=begin, members=members, shards=[(rank, 10, 110)], taken=130, waits=[]))
        begin += 130
    told.kill(3, step=20, shard=3, killed=1170 + 9 * 130 + 20, installed=1170 + 9 * 130 + 25, moved={3: 0})
    first_kill, second_kill = told.measure().costs
    assert first_kill.raw_excess_ns == 75 * MS
    assert second_kill.raw_excess_ns == 0


def test_kills_at_the_same_instant_are_each_counted_in_full():
    told = Told()
    told.kill(1, step=10, shard=1, killed=1040, installed=1060, moved={1: 0})
    told.kill(2, step=10, shard=2, killed=1040, installed=1060, moved={2: 3})
    one_view = told.views[-1].number
    told.incidents = [replace_struct(loss, view=one_view, moved={1: 0, 2: 3}) for loss in told.incidents]
    told.views.pop(1)
    told.shift(11, late=80, members=(0, 3))
    told.say(
        record(0, 10, at=1000, members=(0, 3), shards=[(0, 10, 80), (1, 90, 160)], waits=[(80, 90)], taken=175),
        record(3, 10, at=1000, members=(0, 3), shards=[(3, 10, 70), (2, 90, 150)], waits=[(70, 90)], taken=175),
    )
    costs = told.measure().costs
    assert [in_ms(cost) for cost in costs] == [(20, 70, 80), (20, 60, 80)]
    assert [dict(cost.moved) for cost in costs] == [{1: 0}, {2: 3}]


def test_where_the_heir_dies_too_the_next_heirs_start_counts():
    """Worker 2's shard goes to 1, which dies before it is done; 0 starts it at 120."""
    told = Told()
    told.kill(2, step=10, shard=2, killed=1040, installed=1045, moved={2: 1})
    told.kill(1, step=10, shard=2, killed=1090, installed=1095, moved={1: 3, 2: 0})
    told.shift(11, late=100, members=(0, 3))
    told.say(
        record(0, 10, at=1000, members=(0, 3), shards=[(0, 10, 80), (2, 120, 180)], waits=[(80, 120)], taken=195),
        record(3, 10, at=1000, members=(0, 3), shards=[(3, 10, 80), (1, 100, 180)], waits=[(80, 100)], taken=195),
    )
    earlier, later = told.measure().costs
    assert in_ms(earlier)[:2] == (40, 60)
    assert in_ms(later)[:2] == (30, 80 + 60)


def test_a_kill_before_the_first_step_waits_from_when_the_last_survivor_is_ready():
    told = Told()
    view = first(1, (0, 1, 3), WORKERS)
    told.kill(2, step=0, phase="joining", killed=-80, installed=-20)
    told.views = [view]
    told.incidents = [replace_struct(told.incidents[0], view=view.number)]
    for rank, ready in ((0, -500), (1, -70), (3, -300)):
        told.say(record(rank, 0, at=0, members=(0, 1, 3), waits=[(ready, -20), (80, 94)]))
    (cost,) = told.measure().costs
    assert in_ms(cost) == (50, 0, None)
    told.incidents = [replace_struct(told.incidents[0], killed_ns=-30 * MS)]
    assert told.measure().costs[0].exposed_wait_ns == 10 * MS


def test_before_the_first_step_the_wait_for_those_who_live_is_not_the_deads_fault():
    """Worker 2 dies at -80. Worker 3 is ready only at -30, is let in at -28, and dies at once: one more view."""
    told = Told()
    told.kill(2, step=0, phase="joining", killed=-80, installed=-28)
    told.views = [first(1, (0, 1, 3), WORKERS)]
    told.incidents = [replace_struct(told.incidents[0], view=told.views[0].number)]
    told.kill(3, step=0, phase="joining", killed=-30, installed=-20, moved={2: 0, 3: 1})
    for rank in (0, 1):
        shards = [(rank, 10, 40), (rank + 2, 40, 80)]
        told.say(record(rank, 0, at=0, members=(0, 1), shards=shards, waits=[(-500, -28), (-28, -20), (80, 94)]))
    before, after = told.measure().costs
    assert in_ms(before) == (2, 0, None)
    assert in_ms(after) == (10, 80, None)


def test_a_kill_after_the_last_step_disturbs_none():
    told = Told()
    last = STEPS - 1
    told.kill(2, step=last, phase="update", killed=100 * last + 96, installed=100 * last + 99, view_step=STEPS)
    told.say(record(2, last, at=100 * last))
    (cost,) = told.measure().costs
    assert cost.steps == ()
    assert in_ms(cost) == (0, 0, None)


def test_the_control_is_the_time_of_the_same_steps_when_it_was_planned():
    disturbed, control = killed_in_backward().measure(), killed_in_backward().measure()
    (cost,) = control.costs
    planned = replace(control, costs=(replace(cost, span_ns=cost.span_ns - 12 * MS),))
    assert control_excess(disturbed, planned) == {(2, 0): 12 * MS}


def test_the_control_compares_excess_where_the_steps_are_not_as_many():
    disturbed, control = killed_in_backward().measure(), killed_in_backward().measure()
    (cost,) = control.costs
    planned = replace(control, costs=(replace(cost, steps=(10, 11), raw_excess_ns=50.0 * MS),))
    assert control_excess(disturbed, planned) == {(2, 0): 25 * MS}


@pytest.mark.parametrize("nothing", [(), "unknown"])
def test_the_control_leaves_out_what_it_cannot_compare(nothing):
    disturbed, control = killed_in_backward().measure(), killed_in_backward().measure()
    (cost,) = control.costs
    costs = (replace(cost, span_ns=None),) if nothing == "unknown" else ()
    assert control_excess(disturbed, replace(control, costs=costs)) == {}


def replace_struct(struct, **changes):
    import msgspec

    return msgspec.structs.replace(struct, **changes)
