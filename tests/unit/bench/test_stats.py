"""A median is told with how sure one can be of it."""

import pytest

from relume.bench.stats import bootstrap


def test_of_seven_the_interval_leaves_out_the_first_and_the_last():
    """A resample's median is the smallest of seven with probability 0.010, one of the two smallest with 0.092."""
    found = bootstrap([7.0, 1.0, 6.0, 2.0, 5.0, 3.0, 4.0], seed=0)
    assert (found.median, found.low, found.high) == (4.0, 2.0, 6.0)


def test_of_five_it_leaves_out_none():
    """Here the smallest comes out with probability 0.058, more than 2.5 %."""
    found = bootstrap([1.0, 2.0, 3.0, 4.0, 5.0], seed=3)
    assert (found.median, found.low, found.high) == (3.0, 1.0, 5.0)


def test_values_that_agree_leave_no_doubt():
    found = bootstrap([0.8] * 20, seed=0)
    assert (found.median, found.low, found.high) == (0.8, 0.8, 0.8)


def test_one_value_is_its_own_interval():
    found = bootstrap([1.5], seed=0)
    assert (found.median, found.low, found.high) == (1.5, 1.5, 1.5)


def test_the_seed_decides_all():
    values = [0.7 + 0.013 * (i * 7 % 20) for i in range(20)]
    assert bootstrap(values, seed=1, resamples=40) == bootstrap(values, seed=1, resamples=40)
    assert len({bootstrap(values, seed=seed, resamples=40) for seed in range(20)}) > 1


def test_one_wild_pair_of_twenty_does_not_move_it():
    calm = [0.80 + 0.001 * i for i in range(20)]
    wild = [*calm[:-1], 40.0]
    assert bootstrap(wild, seed=0).high < 0.82


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="nothing"):
        bootstrap([], seed=0)
