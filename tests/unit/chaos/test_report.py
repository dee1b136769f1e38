"""What is printed about a run whose workers came back, for programs and for people."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from relume.chaos.agenda import Errand, Respawn
from relume.chaos.beside import Beside
from relume.chaos.comeback import Comeback, Scaling, recoveries
from relume.chaos.driver import Fleet, Job
from relume.chaos.measure import measure
from relume.chaos.report import as_json
from relume.chaos.returning import _options, _starts
from relume.chaos.schedule import Exact, KillAll, Pick, Rescale, Schedule
from relume.chaos.table import as_text
from relume.chaos.trial import Result
from tests.unit.chaos.paper import MS, Told


@pytest.fixture
def told():
    """Worker 2 is killed in step 10 and comes back; later its next life is."""
    told = Told()
    told.cycle(2, 0, 1040)
    told.cycle(2, 1, 3040, level=1500, admitted=1600)
    return told


@pytest.fixture
def result(told):
    evidence = told.evidence()
    fleet = Fleet(0, 30.0, evidence, dict(told.killed_ns))
    backs = recoveries(evidence, told.killed_ns, 4)
    exact = (Exact(2, "backward", 10, 0, 3, "backward", later=True),)
    return Result(
        job=Job(Path("charlm.py"), (), 4, 60),
        seed=1,
        shards=8,
        schedule=Schedule(exact, (Pick(30.5, 1, "dice", frozenset()), KillAll(50.0), Rescale(55.0, 3))),
        fleet=fleet,
        measured=measure(evidence, told.killed_ns),
        verdict={"ok": True, "steps": 60, "lost_steps": 0, "differing_bits": 0, "differences": []},
        control=None,
        errors=(),
        comeback=Comeback(
            recoveries=backs,
            all_killed=(backs[:1],),
            scalings=(Scaling(3, 250 * MS), Scaling(9, None)),
            beside=Beside(3, 105.0 * MS, 100.0 * MS, 90.0 * MS, 12, 9),
        ),
    )


def test_programs_are_told_what_the_issue_asks_for(result):
    said = json.loads(json.dumps(as_json(result)))
    assert (said["ok"], said["kills"], said["recovered"]) == (True, 2, 2)
    assert (said["lost_steps"], said["differing_bits"]) == (0, 0)
    assert said["kill_to_full_strength_ms"]["values"] == [2295 - 1040, 4795 - 3040]
    assert said["kill_to_full_strength_ms"]["median"] == (1255 + 1755) / 2
    assert said["survivors_step_ratio"] == 1.05
    assert said["survivors_step_ms"] == {
        "joining": 105.0,
        "control": 100.0,
        "undisturbed": 90.0,
        "control_undisturbed": None,
    }
    assert said["survivors_steps"] == {"joining": 12, "control": 9}
    assert said["kill_all"] == [{"killed": 1, "recovered": 1, "full_strength_ms": 1255.0}]
    assert said["scale"] == [{"workers": 3, "reached_ms": 250.0}, {"workers": 9, "reached_ms": None}]
    assert said["schedule"]["outside"] == [
        {"count": 1, "at_step": 30.5},
        {"all": True, "at_step": 50.0},
        {"workers": 3, "at_step": 55.0},
    ]


def test_each_kill_is_told_with_what_came_after(result):
    first, second = as_json(result)["per_kill"]
    assert [(kill["rank"], kill["life"], kill["how"]) for kill in (first, second)] == [
        (2, 0, "exact"),
        (2, 1, "outside"),
    ]
    assert (first["heir"], first["member"], first["recovered"], first["missing"]) == ([2, 1], True, True, "")
    names = ("respawned_ms", "level_ms", "admitted_ms", "worked_ms", "full_strength_ms")
    assert [first[name] for name in names] == [100, 1000, 1100, 1255, 1255]


def test_people_are_told_it_in_a_table(result):
    rows = [" ".join(line.split()) for line in as_text(result).splitlines()]
    assert "kills 2 of 2, seed 1" in rows
    assert "recovered 2 of 2" in rows
    assert "to full strength median 1505.0 ms, worst 1755.0 ms" in rows
    assert "all killed 1 of 1 came back, 1255.0 ms to full strength" in rows
    assert "survivors' step 105.0 ms beside a joiner, 100.0 beside a stranger: 1.05 times as long" in rows
    assert "scaled to 3 after 250.0 ms" in rows
    assert "scaled to 9 never" in rows
    (line,) = (row for row in rows if row.startswith("2.1 "))
    assert line.startswith("2.1 backward 30 - outside")
    assert line.endswith("yes 1755.0")


def test_a_kill_that_nobody_came_back_from_is_told(result, told):
    del told.level_at[2, 2]
    backs = recoveries(told.evidence(), told.killed_ns, 4)
    failed = replace(result, comeback=replace(result.comeback, recoveries=backs, beside=None), errors=("sad",))
    said = as_json(failed)
    assert (said["ok"], said["recovered"], said["survivors_step_ratio"]) == (False, 1, None)
    assert said["per_kill"][1]["missing"] == "worker 2 (life 2), in its place, never came level"
    text = as_text(failed)
    assert "recovered          1 of 2" in text
    assert "sad" in text
    assert "  NO" in text


def test_without_respawn_nothing_is_said_about_it(result):
    said = as_json(replace(result, comeback=None))
    assert "recovered" not in said
    assert "member" not in said["per_kill"][0]
    assert "recovered" not in as_text(replace(result, comeback=None))


def test_the_fleet_may_respawn_as_often_as_is_asked_and_the_control_never():
    errand = Errand(4, 300, 8, 8, respawn=Respawn(spares=1, mirror_every=4, kill_all=2, scale=(2, 5, 3)))
    options = _options(errand, restarts=True)
    assert options[:6] == ["--max-restarts", str(8 + 2 * 6 + 20), "--spares", "1", "--mirror-every", "4"]
    assert options[6:] == ["--max-workers", "12"]
    assert _options(Errand(4, 300, 8, 8), restarts=False) == ["--max-restarts", "0", "--spares", "0"]


def test_strangers_start_where_joiners_did(result):
    assert _starts(result.fleet) == pytest.approx([11.1, 31.1])  # at 1140 and 3140: so many steps were done
