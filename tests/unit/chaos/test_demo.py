"""The demo's moments, and what it says in the end."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from relume.chaos.comeback import Comeback, Recovery
from relume.chaos.demo import random_moments
from relume.chaos.driver import Fleet, Job
from relume.chaos.evidence import Evidence
from relume.chaos.measure import Cost, Measured
from relume.chaos.telling import closing_sentence, tell
from relume.chaos.trial import Result
from relume.errors import ConfigError
from relume.wire.events import RunEnded
from tests.unit.observe.paper import loss_of

JOB = Job(Path("charlm.py"), (), workers=4, steps=120)


def cost_of(rank, *, wait_ms, moved):
    return Cost(
        who=(rank, 0),
        member=True,
        killed_ns=0,
        detected_ns=1_000_000,
        fenced_ns=2_000_000,
        installed_ns=3_000_000,
        steps=(12,),
        moved=moved,
        exposed_wait_ns=int(wait_ms * 1e6),
        redo_ns=59_000_000 if moved else 0,
        span_ns=300_000_000,
        raw_excess_ns=0.0,
    )


@pytest.fixture
def result():
    losses = (loss_of(2), loss_of(0, phase="sum", step=40, shard=-1))
    ended = RunEnded("completed", "every step is done", 0)
    evidence = Evidence(records={}, incidents=losses, views=(), pids={}, ended=ended, clock_s=0.0)
    costs = (cost_of(2, wait_ms=4.6, moved={4: 0, 5: 1}), cost_of(0, wait_ms=31, moved={}))
    said = {"ok": True, "steps": 120, "lost_steps": 0, "differing_bits": 0, "differences": []}
    return Result(
        job=JOB,
        seed=1,
        shards=8,
        schedule=random_moments(JOB, 2, 1),
        fleet=Fleet(0, 30.0, evidence),
        measured=Measured(310e6, (), costs),
        verdict=said,
        control=None,
        errors=(),
    )


def told(result, tmp_path):
    state = tmp_path / "final-0.pt"
    state.write_bytes(bytes(4_400_000))
    file = io.StringIO()
    tell(result, state, Console(file=file, width=80))
    return file.getvalue()


def test_moments_are_random_apart_and_in_the_middle_of_the_run(seed):
    for number in range(seed, seed + 200):
        schedule = random_moments(JOB, 3, number)
        moments = [kill.at_step for kill in schedule.outside]
        assert len(set(schedule.victims)) == 3
        assert moments == sorted(moments)
        assert 24 <= moments[0] < 48 <= moments[1] < 72 <= moments[2] < 96
        assert schedule == random_moments(JOB, 3, number)
        assert schedule.exact == ()
    assert len({random_moments(JOB, 3, number).victims for number in range(200)}) == 4


@pytest.mark.parametrize("kills", [-1, 0, 4, 7])
def test_a_demo_in_which_nobody_dies_or_nobody_lives_is_refused(kills):
    with pytest.raises(ConfigError, match=f"--kills {kills}"):
        random_moments(JOB, kills, 0)


def test_the_verdict_tells_each_kill_and_what_it_all_means(result, tmp_path):
    text = told(result, tmp_path)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "worker 2 backward, shard 4 12 4.6 ms 59 ms 0 and 1 -" in rows
    assert "worker 0 sum 40 31 ms nothing - -" in rows
    assert "steps lost 0 of 120" in rows
    assert "exposed wait median 18 ms, worst 31 ms (an undisturbed step takes 310 ms)" in rows
    assert "differing bits 0 in 4.4 MB of weights and optimizer state" in rows
    assert closing_sentence(result) == (
        "2 of 4 workers were killed without warning. The others went on, each time after a wait of 31 ms at most; "
        "no step was lost, and the trained model is, bit for bit, the one that nobody disturbed."
    )


def recovery(rank, *, back):
    times = dict.fromkeys(("respawned_ns", "level_ns", "admitted_ns", "worked_ns", "full_strength_ns"))
    times |= {"worked_ns": 3_200_000_000} if back else {}
    return Recovery((rank, 0), 0, member=True, heir=(rank, 1), missing="" if back else "it never came level", **times)


@pytest.mark.parametrize(
    ("back", "said"),
    [
        ((True, True), "; all of them came back; no step"),
        ((True, False), "; 1 of them came back and took part again; "),
    ],
)
def test_who_came_back_is_told(result, tmp_path, back, said):
    backs = tuple(recovery(rank, back=there) for rank, there in zip((2, 0), back, strict=True))
    returned = replace(result, comeback=Comeback(backs))
    assert said in closing_sentence(returned)
    rows = [" ".join(line.split()) for line in told(returned, tmp_path).splitlines()]
    assert "worker 2 backward, shard 4 12 4.6 ms 59 ms 0 and 1 3.2 s" in rows
    assert f"worker 0 sum 40 31 ms nothing - {'3.2 s' if back[1] else '-'}" in rows


def test_a_bad_verdict_is_not_told_as_a_good_one(result, tmp_path):
    differs = {**result.verdict, "ok": False, "differing_bits": 3, "differences": ["worker 1: 3 bits"]}
    text = told(replace(result, verdict=differs), tmp_path)
    assert "wrong: worker 1: 3 bits" in text
    assert "3 in 4.4 MB" in text
    assert "FAILED: something differs" in text
    assert "bit for bit" not in text


def test_a_kill_that_was_never_carried_out_fails_the_demo(result, tmp_path):
    missed = replace(result, errors=("worker 3 was gone before it could be killed",), measured=Measured(None, (), ()))
    text = told(missed, tmp_path)
    assert "wrong: worker 3 was gone" in text
    assert "FAILED: nothing differs, but not all went as it should" in text


def test_without_a_final_state_the_bits_are_unknown(result, tmp_path):
    nothing = {**result.verdict, "ok": False, "differing_bits": None, "differences": ["no worker finished"]}
    assert "differing bits  unknown" in told(replace(result, verdict=nothing), tmp_path)
