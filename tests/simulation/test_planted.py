"""The checkers can be believed: each finds the bugs that were planted for it, soon, and says a seed that shows it."""

from __future__ import annotations

import pytest

from relume.simulate import checkers
from relume.simulate.campaign import live
from relume.simulate.settings import draw
from tests.simulation.planted import BUGS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_a_planted_bug_is_found_within_two_hundred_seeds(bug):
    for seed in dict.fromkeys((bug.hint, *range(200))):
        _, finding = live(draw(seed), bug.parts)
        if finding is not None and finding.checker == bug.checker.name:
            assert finding.seed == seed
            assert finding.trace
            assert live(draw(seed), bug.parts)[1] == finding, "the seed lives it again"
            assert live(draw(seed))[1] is None, "and without the bug there is nothing to find"
            return
    pytest.fail(f"no history shows that {bug.plant.__name__} is wrong")


def test_every_checker_has_a_bug_to_find():
    assert {bug.checker for bug in BUGS} == set(checkers.ALL)
