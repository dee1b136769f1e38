"""Seeded histories of the real core under faults: no law is broken, whatever goes wrong, and when."""

from __future__ import annotations

import pytest

from relume.core.coordinator import Coordinator
from relume.core.verdict import Outcome
from relume.simulate.campaign import campaign, live
from relume.simulate.faults import HARMLESS, Fault, Plan
from relume.simulate.settings import Settings, draw
from relume.simulate.world import Parts, World

HISTORIES = 100


def told(summary):
    """What a person needs to live it again."""
    return "\n\n".join(
        f"relume simulate --trace {finding.seed}\n{finding.text}\n" + "\n".join(finding.trace)
        for finding in summary.findings[:2]
    )


def test_no_law_is_broken_in_histories_that_were_never_lived_before(seed):
    summary = campaign(range(seed, seed + HISTORIES))
    assert not summary.findings, told(summary)
    outcomes = summary.coverage.outcomes
    assert outcomes[Outcome.COMPLETED] > HISTORIES / 3, outcomes


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_thousand_histories_meet_every_row_and_every_pair_of_fault_and_phase(seed):
    summary = campaign(range(seed, seed + 2000))
    assert not summary.findings, told(summary)
    assert not summary.coverage.missing_rows()
    assert summary.coverage.shares()["pairs"] > 0.97, summary.coverage.missing_pairs()


def test_a_history_follows_from_its_seed():
    def lived(seed):
        world, finding = live(draw(seed), trace=10**6)
        return world.outcome, finding, world.trace.lines()

    for seed in (3, 14, 159):
        assert lived(seed) == lived(seed)
    assert lived(3) != lived(4)


def settings(**changed):
    usual = {"seed": 1, "workers": 4, "shards": 8, "blocks": 2, "pieces": 1, "steps": 3, "paces": (1.0,) * 9}
    return Settings(**{**usual, **changed})


def test_a_fleet_that_nothing_happens_to_completes_and_calls_no_ballot():
    world = World(settings())
    assert world.run() == Outcome.COMPLETED
    assert world.core.ballot == (1, 1)
    assert world.arena.taken == [2, 2, 2, 2]


def test_a_spare_follows_and_takes_the_place_of_one_that_dies_and_another_comes_for_it():
    plan = Plan(Fault.KILL, "backward", None, 3, 0, 0.0)
    world = World(settings(workers=2, spares=1, max_restarts=5, every=2, chunks=3, steps=40, heavy=5.0, faults=(plan,)))
    assert world.run() == Outcome.COMPLETED
    assert world.core.restarts == 1
    assert len(world.core.view.members) == 2
    assert sorted(world.arena.taken) == [39, 39, 39]


def test_all_that_are_lost_at_once_come_back_and_lose_no_step():
    plan = Plan(Fault.ALL, "sum", None, 7, 0, 0.0)
    world = World(settings(max_restarts=9, every=3, chunks=3, steps=12, faults=(plan,)))
    assert world.run() == Outcome.COMPLETED
    assert world.core.restarts == 4
    assert min(worker.joiner.loaded for worker in world.newest) == 6


def test_a_worker_that_is_told_to_go_finishes_its_leaf_and_nobody_is_asked_to_promise():
    plan = Plan(Fault.NOTICE, "backward", None, 2, 0, 0.0)
    world = World(settings(steps=20, faults=(plan,)))
    assert world.run() == Outcome.COMPLETED
    assert len(world.core.view.members) == 3
    assert not world.faults.harmed
    assert all(worker.standing.promise_made in {(0, 0), (1 << 62, 0)} for worker in world.everyone)


@pytest.mark.parametrize("many", [1, 3, 8])
def test_a_recovery_takes_as_many_rounds_for_eight_as_for_one(many):
    """Ballots that are overtaken by news are not waited for: the counted rounds are those that were."""
    rounds = []

    class Counting(Coordinator):
        def _counted(self, event, now):
            raise AssertionError("the table calls the class's own method")

        def handle(self, event, now):
            answer = super().handle(event, now)
            rounds.extend(each for each in answer if type(each).__name__ == "Count")
            return answer

    plan = Plan(Fault.MASSACRE if many > 1 else Fault.KILL, "backward", None, 1, 0, 0.0, many)
    world = World(settings(workers=9, faults=(plan,)), Parts(coordinator=Counting))
    assert world.run() == Outcome.COMPLETED
    assert len(world.faults.harmed) == many
    assert len(rounds) == 1


def test_whatever_one_worker_does_alone_the_others_complete(seed):
    several = {Fault.RAISE_ALL, Fault.MASSACRE, Fault.SILENCE, Fault.ALL, Fault.MISFIT}
    ends = {Fault.STUCK: {Outcome.COMPLETED, Outcome.UNFENCED}, Fault.DRIFT: {Outcome.DIVERGED}}
    for number, fault in enumerate(sorted(set(Fault) - several)):
        phase = {Fault.KILL: "merge", Fault.LEAVE: "wait", Fault.LOOP: "backward"}.get(fault, "update")
        world = World(
            settings(seed=seed + number, workers=3, shards=13, faults=(Plan(fault, phase, None, 0, 0, 2.5, 3),))
        )
        assert world.run() in ends.get(fault, {Outcome.COMPLETED}), f"{fault}, seed {seed + number}"
        assert list(world.faults.harmed.values()) == ([] if fault in HARMLESS else [fault])
