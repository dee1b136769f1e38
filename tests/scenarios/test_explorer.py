"""Random losses, notices and sizes at random instants: nothing is summed wrongly, and the run comes to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from relume.core.verdict import Outcome
from tests.scenarios.explorer import World
from tests.scenarios.laws import Broken

WORLDS = 300


def world(seed, **settings):
    """A small fleet of a random shape: also more workers than shards, and more blocks than workers."""
    draw = random.Random(seed)
    workers = draw.randint(1, 5)
    comes_back = draw.random() < 0.7
    return World(
        seed,
        workers=workers,
        shards=draw.choice([1, 2, 3, 4, 6, 7, 8, 13]),
        blocks=draw.randint(1, 4),
        steps=draw.randint(1, 7),
        faults=draw.randint(0, workers + 1) * (1 + comes_back),
        spares=comes_back * draw.randint(0, 2),
        restarts=comes_back * draw.randint(0, 9),
        minimum=draw.randint(1, workers) if draw.random() < 0.3 else 1,
        **settings,
    )


def test_whoever_is_lost_whenever_the_sums_are_right_and_the_run_ends(seed):
    outcomes = Counter()
    for each in range(seed, seed + WORLDS):
        try:
            outcomes[world(each).run()] += 1
        except Exception as error:
            error.add_note(f"world {each}")
            raise
    assert set(outcomes) <= {Outcome.COMPLETED, Outcome.ALL_LOST, Outcome.TOO_FEW, Outcome.TAIL_LOST}
    assert outcomes[Outcome.COMPLETED] > WORLDS / 3, f"most worlds should see an end: {outcomes}"


@pytest.mark.parametrize(("rule", "first"), [("careless", 527), ("hasty", 262), ("blind", 844), ("hurried", 197)])
def test_the_explorer_finds_it_if_a_rule_is_broken(rule, first):
    def harmed(seed):
        try:
            world(seed, broken=rule).run()
        except Broken:
            return True
        return False

    # The first one shows it today; a change of the world's chances may move that, and then it takes a few seconds.
    assert any(harmed(seed) for seed in range(first, first + 1500)), f"no world shows any harm in being {rule}"
