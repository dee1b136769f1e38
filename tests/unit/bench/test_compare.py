"""Weights that differ by rounding are close; those of other work are not."""

import numpy as np
import pytest

from relume.bench.compare import compare


@pytest.fixture
def write(tmp_path):
    def write(name, values):
        path = tmp_path / name
        np.asarray(values, dtype=np.float32).tofile(path)
        return path

    return write


def test_rounding_is_close(write):
    dice = np.random.default_rng(0)
    first = dice.standard_normal(1000).astype(np.float32)
    end = first + 0.01 * dice.standard_normal(1000).astype(np.float32)
    found = compare(write("first", first), write("ours", end * (1 + 1e-6)), write("theirs", end), 1e-3)
    assert found.ok
    assert 0 < found.largest < 1e-5


def test_one_step_more_of_twenty_is_not(write):
    first, way = np.zeros(100), np.linspace(1, 2, 100)
    found = compare(write("first", first), write("ours", 21 * way), write("theirs", 20 * way), 1e-3)
    assert not found.ok
    assert found.of_way == pytest.approx(0.05, rel=1e-3)


def test_a_side_that_never_moved_is_not(write):
    first, end = np.ones(10), np.full(10, 1.001)
    assert not compare(write("first", first), write("ours", first), write("theirs", end), 0.1).ok
    assert not compare(write("first", first), write("ours", first), write("theirs", first), 0.1).ok


def test_numbers_that_are_none_and_other_models_are_not(write):
    first, end = np.ones(10), np.full(10, 2.0)
    broken = np.where(np.arange(10) == 3, np.nan, end)
    assert not compare(write("first", first), write("ours", broken), write("theirs", end), 0.1).ok
    assert not compare(write("first", first), write("ours", end[:9]), write("theirs", end), 0.1).ok
