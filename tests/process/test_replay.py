"""A worker that comes back repeats the script's own loop over what is kept, to the very same bits, whenever it comes.

The agent here is made by hand (`tests.hand`), so that a test decides in which moment somebody dies, comes, and is let
in. The workers are real processes, and the bits are those of a run that nothing happened to.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import relume
from relume.wire.messages import (
    Accepted,
    Finished,
    Install,
    Leaving,
    Level,
    Propose,
    Raised,
    Refused,
    Remark,
    Replay,
    Stop,
    View,
    Withdraw,
)
from tests import agents, exact
from tests.exact import verify
from tests.hand import Hand, Sitting
from tests.returning import TOTAL, everything, kill, trace_of, undisturbed
from tests.scenarios_exact import ALL
from tests.training import Hook, at


def finish(hand: Hand, *ranks: int) -> None:
    """Let these workers come to the end of their loops and scripts."""
    for rank in ranks:
        hand.hear(hand.seats[rank], Finished)
    hand.close(hand.view(ranks, 0))
    for rank in ranks:
        assert hand.end(hand.seats[rank]) == 0, hand.seats[rank].output.decode()


def let_in(hand: Hand, one: Sitting) -> Level:
    """Wait until a worker is level, while nobody else is in the run, and go on with it from there."""
    level = hand.hear(one, Level)
    assert level.step == hand.complete + 1
    hand.install(hand.view([one.rank], hand.complete + 1))
    return level


def check(folder: Path, expected: dict[str, Any], *, life: int, loaded: int, replayed: int) -> None:
    """A life that began from the mirror of `loaded` has replayed so many steps, and has the very bits at every one."""
    trace = trace_of(folder, 0, life)
    steps = {number: values for number, values in expected["steps"].items() if int(number) >= loaded}
    assert trace["steps"] == steps
    assert trace["state"] == expected["state"]
    assert trace["replayed"] == list(range(loaded, loaded + replayed))
    assert trace["main"]


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("killed", range(TOTAL))
def test_a_joiner_comes_level_from_any_offset_to_the_mirror(killed, every, tmp_path):
    with Hand(everything(tmp_path), every=every, traps=[kill(killed, "update")]) as hand:
        hand.begin(0)
        assert hand.end(hand.seats[0]) == -signal.SIGKILL
        assert hand.complete == killed
        level = let_in(hand, hand.come_back())
        newest = killed - killed % every
        assert (level.step, level.loaded) == (killed + 1, newest)
        finish(hand, 0)
    check(tmp_path, undisturbed(), life=1, loaded=newest, replayed=killed + 1 - newest)


@pytest.mark.parametrize("phase", ["load", "forward", "backward", "publish", "sum", "take", "between"])
def test_what_the_dead_one_had_sealed_stands_for_the_one_who_comes_to_its_seat(phase, tmp_path):
    """Alone in the run, it goes on where the step was left: with leaves in its slots, summed blocks, or a result."""
    with Hand(everything(tmp_path), every=3, traps=[kill(7, phase, nth=3 if phase == "load" else 0)]) as hand:
        hand.begin(0)
        assert hand.end(hand.seats[0]) == -signal.SIGKILL
        let_in(hand, hand.come_back())
        finish(hand, 0)
        complete = 7 if phase == "take" else 6
    check(tmp_path, undisturbed(), life=1, loaded=6, replayed=complete - 5)


def train(scenario: Any, folder: Path) -> Callable[[int], None]:
    """One of the scenarios of exactness, with a trace by the number of the step."""

    def body(rank: int) -> None:
        run = relume.init(seed=scenario.seed)
        objects = scenario.build()
        run.protect(**objects)
        size = {} if scenario.stream else {"global_batch_size": scenario.batch}
        data = relume.Shards(scenario.source, shards=scenario.shards, **size, **scenario.options)
        trace: dict[str, Any] = {"first": None, "grads": [], "means": []}
        for step in run.steps(data, total=scenario.steps):
            trace["first"] = step.number if trace["first"] is None else trace["first"]
            tape = exact.RelumeTape(step)
            for batch in step:
                scenario.shard(objects, batch, tape)
            parameters = exact.oracle.parameters_of(objects)
            grads = {name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()}
            trace["grads"].append(grads)
            trace["means"].append(exact.means(step))
            scenario.update(objects, step.number)
            if scenario.until(trace["means"][-1]):
                break
        torch.save({**trace, "state": exact.oracle.snapshot(objects)}, folder / f"trace-{rank}.pt")

    return body


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_every_kind_of_training_comes_back_to_the_oracles_bits(scenario, tmp_path):
    """The worker is killed in step 3, comes back from the mirror of 2, and the next one at the very end, from that."""
    traps = [kill(3, "update", life=0), kill(4, "sum", life=1)]
    with Hand(train(scenario, tmp_path), every=2, traps=traps) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        let_in(hand, hand.come_back())
        hand.until(lambda: hand.seats[0].status is not None or hand.seats[0].of(Finished))
        if hand.seats[0].status is not None:  # one scenario ends before its second death
            let_in(hand, hand.come_back())
        finish(hand, 0)
    trace, there = exact.load(tmp_path / "trace-0.pt"), exact.expected(scenario.name, scenario.shards)
    first = trace.pop("first")
    assert first == (2 if scenario.name == "early-end" else 4)
    there = {**there, "grads": there["grads"][first:], "means": there["means"][first:]}
    assert list(verify.compare(trace, there, scenario.name)) == []


def test_a_replay_ends_where_the_run_ended_early(tmp_path):
    """The break is repeated like everything else, and the worker waits where the others are."""
    expected = undisturbed(patience=0)
    last = max(map(int, expected["steps"]))
    assert last < TOTAL - 1, "the script did not end early, so this would test nothing"
    with Hand(everything(tmp_path, patience=0), every=50, traps=[kill(last, "update", nth=3)]) as hand:
        hand.begin(0)
        assert hand.end(hand.seats[0]) == -signal.SIGKILL
        assert let_in(hand, hand.come_back()).step == last + 1
        finish(hand, 0)
    check(tmp_path, expected, life=1, loaded=0, replayed=last + 1)


def test_who_stops_in_a_replay_where_the_others_did_not_says_so(tmp_path):
    """Something that nobody protects decides when to stop, and it is another one in the second life."""

    def body(rank: int) -> None:
        run = relume.init(seed=7)
        model = torch.nn.Linear(4, 2)
        run.protect(model=model)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=4), total=8):
            for batch in step:
                model(batch).square().mean().backward()
            if run.seat.life and step.number == 2:
                break

    with Hand(body, every=10, traps=[kill(5, "load")]) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        raised = hand.hear(hand.come_back(), Raised)
        assert "left its loop before step 3 in a replay, and the others went on" in raised.error


def test_the_tail_is_repeated_by_one_who_comes_after_the_end(tmp_path):
    with Hand(everything(tmp_path), every=50, traps=[kill(TOTAL - 1, "tail")]) as hand:
        hand.begin(0)
        first = hand.hear(hand.seats[0], Finished)
        hand.close(hand.view([0], 0))
        assert hand.end(hand.seats[0]) == -signal.SIGKILL
        one = hand.come_back(end=TOTAL)
        assert hand.hear(one, Finished) == first, "the very state, though no mirror was due before the end"
        assert one.of(Level) == []
        hand.close(hand.view([0], 0))
        assert hand.end(one) == 0
    trace = trace_of(tmp_path, 0, 1)
    assert (trace["steps"], trace["state"], trace["main"]) == ({}, undisturbed()["state"], True)


def test_the_end_may_become_known_while_somebody_replays(tmp_path):
    with Hand(everything(tmp_path), every=5, traps=[kill(TOTAL - 1, "update", nth=3)]) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        one = hand.come_back()
        hand.hear(one, Level)
        one.say(Replay(TOTAL))
        hand.hear(one, Finished)
        hand.close(hand.view([0], 0))
        assert hand.end(one) == 0
    check(tmp_path, undisturbed(), life=1, loaded=10, replayed=2)


def test_a_joiner_that_is_overtaken_jumps_to_a_newer_mirror(tmp_path):
    """It is stopped in the middle of its replay, for longer than results are kept."""
    traps = [{**kill(1, "replay", rank=1), "action": "stop"}, {**kill(1, "between"), "action": "stop"}]
    traps += [{**kill(10, "between"), "action": "stop"}]
    with Hand(everything(tmp_path), seats=2, every=2, traps=traps) as hand:
        hand.begin(0)
        main, joiner = hand.seats[0], hand.come_back(1)
        hand.until(lambda: hand.moment(0).killed_ns)
        level = hand.hear(joiner, Level)
        assert (level.step, level.loaded) == (1, 0)
        go_on(main)
        hand.until(lambda: hand.moment(1).killed_ns)
        hand.until(lambda: hand.moment(0).step == 10)
        time.sleep(0.05)
        go_on(joiner)
        again = hand.hear(joiner, Level, 2)
        assert (again.step, again.loaded) == (10, 8)
        view = hand.view([0, 1], 11)
        main.say(Propose(view))
        go_on(main)
        assert hand.hear(main, Accepted) == Accepted(view.number)
        hand.install(view)
        finish(hand, 0, 1)
    expected = undisturbed()
    one, other = trace_of(tmp_path, 0, 0), trace_of(tmp_path, 1, 0)
    assert one["steps"] == expected["steps"]
    assert list(other["steps"]) == ["0", "1", "8", "9", "10", "11"]
    assert other["replayed"] == [0, 1, 8, 9, 10]
    assert all(other["steps"][number] == expected["steps"][number] for number in other["steps"])
    assert (one["state"], other["state"]) == (expected["state"], expected["state"])
    assert (one["main"], other["main"]) == (True, False)


def go_on(one: Sitting) -> None:
    """Wake a worker that a trap has stopped."""
    os.kill(one.pid, signal.SIGCONT)


@pytest.mark.parametrize(("step", "nth"), [(6, 0), (6, 1), (7, 0), (8, 0)])
def test_one_who_is_killed_while_it_replays_is_followed_by_another(step, nth, tmp_path):
    """Right after loading, and in each of the steps that it replays."""
    traps = [kill(8, "update"), kill(step, "replay", life=1, nth=nth)]
    with Hand(everything(tmp_path), every=3, traps=traps) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        assert hand.end(hand.come_back()) == -signal.SIGKILL
        let_in(hand, hand.come_back())
        finish(hand, 0)
    check(tmp_path, undisturbed(), life=2, loaded=6, replayed=3)


@pytest.mark.parametrize("nth", range(6))
def test_a_death_while_a_mirror_is_written_leaves_the_older_one(nth, tmp_path):
    """In every piece of it; the state goes on from the mirror before, and this one is written two steps later."""
    with Hand(everything(tmp_path), every=4, traps=[kill(8, "mirror", nth=nth)]) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        level = let_in(hand, hand.come_back())
        assert (level.step, level.loaded) == (8, 4)
        finish(hand, 0)
    check(tmp_path, undisturbed(), life=1, loaded=4, replayed=4)


def test_a_run_goes_on_from_a_mirror_alone(tmp_path):
    """As when it resumes from the disk: there is a state of step 6, and no result of any."""
    with (
        Hand(everything(tmp_path), every=6, traps=[kill(6, "load")]) as dead,
        Hand(everything(tmp_path), seats=2) as hand,
    ):
        dead.begin(0)
        dead.end(dead.seats[0])
        hand.inherit(dead)
        for rank in (0, 1):
            one = hand.start(rank)
            one.say(Replay())
            level = hand.hear(one, Level)
            assert (level.step, level.loaded) == (6, 6)
        hand.install(hand.view([0, 1], 6))
        finish(hand, 0, 1)
    for rank in (0, 1):
        trace, expected = trace_of(tmp_path, rank, 0), undisturbed()
        assert trace["steps"] == {number: values for number, values in expected["steps"].items() if int(number) >= 6}
        assert (trace["state"], trace["replayed"]) == (expected["state"], [])


# Beside one who trains -----------------------------------------------------------------------------------------------


def agree(hand: Hand, members: list[int]) -> View:
    """Propose a view, a few steps ahead of those who train, until all of them have accepted it (rule 10)."""
    voters = [one for one in hand.all if one.status is None and not one.of(Level)]
    count = [len(one.of(Accepted)) + len(one.of(Refused)) for one in voters]
    while True:
        view = hand.view(members, hand.moment(0).step + 2)
        for index, one in enumerate(voters):
            one.say(Propose(view))
            count[index] += 1
        hand.until(lambda: [len(one.of(Accepted)) + len(one.of(Refused)) for one in voters] == count)
        if all(Accepted(view.number) in one.heard for one in voters):
            return view
        for one in voters:
            one.say(Withdraw(view.number))


def held_at(step: int, gate: Path) -> Hook:
    """Hold the first worker at the end of a step until the test opens the gate."""
    return at(0, step, lambda: agents.until(gate.exists))


@pytest.mark.parametrize("begun", [0, 3, 7])
def test_one_comes_in_beside_another_who_does_not_stop(begun, tmp_path):
    gate = tmp_path / "gate"
    with Hand(everything(tmp_path, every_step=held_at(8, gate)), seats=2, every=3) as hand:
        hand.begin(0)
        hand.until(lambda: hand.moment(0).step >= begun)
        one = hand.come_back(1)
        hand.hear(one, Level)
        view = hand.install(agree(hand, [0, 1]))
        gate.touch()
        finish(hand, 0, 1)
    expected = undisturbed()
    for rank in (0, 1):
        trace = trace_of(tmp_path, rank, 0)
        assert trace["state"] == expected["state"]
        assert all(expected["steps"][number] == values for number, values in trace["steps"].items())
        assert "11" in trace["steps"]
        assert trace["main"] == (rank == 0)
    assert trace["replayed"][-1] == view.step - 1, "it is live from the view's first step on"


def test_one_who_is_left_out_of_a_view_goes_at_its_first_step(tmp_path):
    """Its `finally` blocks and exit handlers run; what follows the loop does not, and it says nothing more."""
    marks, gate = tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()

    def body(rank: int) -> None:
        try:
            everything(tmp_path, every_step=held_at(6, gate))(rank)
        finally:
            (marks / f"finally-{rank}").touch()

    with Hand(body, seats=2, every=3) as hand:
        hand.begin(0, 1)
        hand.until(lambda: hand.complete >= 3)
        leaver = hand.seats[1]
        os.kill(leaver.pid, signal.SIGTERM)
        assert hand.hear(leaver, Leaving) == Leaving("SIGTERM")
        view = agree(hand, [0])
        for one in hand.all:
            one.say(Install(view))
        gate.touch()
        assert hand.end(leaver) == 0
        finish(hand, 0)
        assert leaver.of(Finished) == []
        assert hand.moment(1).taken == view.step - 1, "its last step is whole"
    assert (marks / "finally-1").exists()
    assert not (tmp_path / "trace-1.0.json").exists()
    assert trace_of(tmp_path, 0, 0)["state"] == undisturbed()["state"]


# What the script and the agent say ------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_stop_is_what_the_script_says_sigterm_is(own, tmp_path):
    def body(rank: int) -> None:
        def handler(number, frame):
            (tmp_path / "own").touch()
            raise SystemExit(9)

        if own:
            signal.signal(signal.SIGTERM, handler)
        everything(tmp_path, total=10_000)(rank)

    with Hand(body, every=3) as hand:
        hand.begin(0)
        one = hand.seats[0]
        hand.until(lambda: hand.complete >= 2)
        one.say(Stop("the test is over"))
        assert hand.end(one) == (9 if own else -signal.SIGKILL)
        assert b"the test is over" in one.output
        assert one.of(Leaving) == []
    assert (tmp_path / "own").exists() == own


def test_an_error_of_the_script_in_a_replay_is_its_own_death(tmp_path):
    """A name that only the inner loop sets: the others have it, one who replays has not, and is told why."""

    def body(rank: int) -> None:
        run = relume.init(seed=7)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.protect(model=model, optimizer=optimizer)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=4), total=20):
            for batch in step:
                loss = model(batch).square().mean()
                loss.backward()
            optimizer.step()
            time.sleep(0.01)
            assert loss.item() >= 0

    with Hand(body, seats=2, every=4) as hand:
        hand.begin(0)
        hand.until(lambda: hand.complete >= 2)
        one = hand.come_back(1)
        raised = hand.hear(one, Raised)
        assert "cannot access local variable 'loss'" in raised.error
        assert "comes back and replays it" in raised.traceback
        assert hand.end(one) == 1
        finish(hand, 0)


def test_a_host_without_room_for_the_mirror_trains_on_and_says_so_once(tmp_path):
    def body(rank: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        room_again = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # noqa: E731
        everything(tmp_path, every_step=at(0, TOTAL - 1, room_again))(rank)

    with Hand(body, every=3) as hand:
        hand.begin(0)
        finish(hand, 0)
        (remark,) = hand.seats[0].of(Remark)
    assert (remark.topic, remark.step) == ("mirror", 3)
    assert "a lost worker could not come back" in remark.text
    assert trace_of(tmp_path, 0, 0)["state"] == undisturbed()["state"]


def test_a_state_that_comes_back_otherwise_than_it_was_is_refused(tmp_path):
    """An object whose `load_state_dict` forgets something: found by the digest of what is there after loading."""

    class Forgetful:
        def __init__(self):
            self.seen = 0

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            pass

    def body(rank: int) -> None:
        run = relume.init(seed=7)
        model, memory = torch.nn.Linear(4, 2), Forgetful()
        run.protect(model=model, memory=memory)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=4), total=20):
            for batch in step:
                model(batch).square().mean().backward()
            memory.seen += 1

    with Hand(body, every=2, traps=[kill(3, "load")]) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        one = hand.come_back()
        assert hand.hear(one, Raised).error.startswith("relume.errors.StateError: the state that worker 0 holds after")
        assert hand.end(one) == 1


def test_each_life_has_records_of_its_own(tmp_path):
    records = tmp_path / "records"
    with Hand(everything(tmp_path), every=3, traps=[kill(7, "update")], RELUME_RECORD=str(records)) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        let_in(hand, hand.come_back())
        finish(hand, 0)
    first, second = (
        [json.loads(line) for line in (records / name).read_text().splitlines()]
        for name in ("record-0.jsonl", "record-0.1.jsonl")
    )
    assert [(line["step"], line["life"], line["replay"]) for line in first] == [(step, 0, False) for step in range(7)]
    assert [(line["step"], line["life"], line["replay"]) for line in second] == [
        (step, 1, step < 8) for step in range(6, TOTAL)
    ]
    assert [line["digest"] for line in second[:1]] == [line["digest"] for line in first[6:]]
    assert second[0]["members"] == []
    assert second[-1]["members"] == [0]


def test_nobody_is_main_before_it_is_known(tmp_path):
    """A worker that comes later does not download the dataset again, not even in the place of the first."""

    def body(rank: int) -> None:
        run = relume.init(seed=7)
        (tmp_path / f"main-{rank}.{run.seat.life}").write_text(str(run.is_main))
        model = torch.nn.Linear(4, 2)
        run.protect(model=model)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=4), total=4):
            for batch in step:
                model(batch).square().mean().backward()

    with Hand(body, every=2, traps=[kill(3, "load")]) as hand:
        hand.begin(0)
        hand.end(hand.seats[0])
        let_in(hand, hand.come_back())
        finish(hand, 0)
    assert (tmp_path / "main-0.0").read_text() == "True"
    assert (tmp_path / "main-0.1").read_text() == "False"
