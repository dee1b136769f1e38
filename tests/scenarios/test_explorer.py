"""Random losses at random instants: whatever happens, nothing is summed wrongly, and the run comes to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from relume.core.verdict import Outcome
from tests.scenarios.explorer import World
from tests.scenarios.laws import Broken

WORLDS = 500


def world(seed, **settings):
    """A small fleet of a random shape: also more workers than shards, and more blocks than workers."""
    draw = random.Random(seed)
    workers = draw.randint(1, 5)
    return World(
        seed,
        workers=workers,
        shards=draw.choice([1, 2, 3, 4, 6, 7, 8, 13]),
        blocks=draw.randint(1, 4),
        steps=draw.randint(1, 4),
        faults=draw.randint(0, workers + 1),
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
    assert set(outcomes) <= {Outcome.COMPLETED, Outcome.ALL_LOST, Outcome.TAIL_LOST}
    assert outcomes[Outcome.COMPLETED] > WORLDS / 3, f"most worlds should see an end: {outcomes}"


@pytest.mark.parametrize(("rule", "first"), [("careless", 1160), ("hasty", 26)])
def test_the_explorer_finds_it_if_a_rule_is_broken(rule, first):
    def harmed(seed):
        try:
            world(seed, **{rule: True}).run()
        except Broken:
            return True
        return False

    # The first one shows it today; a change of the world's chances may move that, and then it takes a few seconds.
    assert any(harmed(seed) for seed in range(first, first + 1500)), f"no world shows any harm in being {rule}"
