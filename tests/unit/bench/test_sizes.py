"""The linear model has the size that was asked for; what is needed is more than what is had, or it is refused."""

import pytest

from relume.bench import check as checks
from relume.bench.check import check
from relume.bench.orders import Terms
from relume.bench.sizes import LAYERS_MIN, MIB, gradient_bytes, linear_shape, needed_bytes
from relume.errors import ConfigError, MemoryShortage


def terms(**changes):
    return Terms(**({"workers": 4, "model": "linear", "size_mb": 16.0, "seed": 0, "charlm": ""} | changes))


@pytest.mark.parametrize(("size_mb", "shape"), [(1, (128, 16)), (4, (256, 16)), (16, (512, 16)), (64, (1024, 16))])
def test_the_sizes_of_the_sweep_are_exact(size_mb, shape):
    assert linear_shape(size_mb) == shape
    assert gradient_bytes("linear", size_mb) == size_mb * MIB


@pytest.mark.parametrize("size_mb", [0.01, 0.3, 5, 7.7, 100, 1024])
def test_any_other_is_near(size_mb):
    width, layers = linear_shape(size_mb)
    assert layers >= min(LAYERS_MIN, 2)
    assert gradient_bytes("linear", size_mb) == pytest.approx(size_mb * MIB, rel=0.5 / layers + 1e-9)
    assert width & (width - 1) == 0


def test_more_workers_and_more_gradient_need_more():
    small, large, wide = (needed_bytes("linear", size, workers) for size, workers in [(16.0, 2), (64.0, 2), (16.0, 8)])
    assert all(small[side] < large[side] for side in small)
    assert all(small[side] < wide[side] for side in small)


@pytest.mark.parametrize(
    ("changes", "pairs", "batch", "said"),
    [
        ({"workers": 0}, 20, None, "--workers 0: between 1 and 64"),
        ({"workers": 65}, 20, None, "--workers 65: between 1 and 64"),
        ({"size_mb": 0.0}, 20, None, "--size-mb 0: a number of MiB"),
        ({"size_mb": float("nan")}, 20, None, "--size-mb nan: a number of MiB"),
        ({"seed": -1}, 20, None, "--seed -1: a whole number from 0"),
        ({}, 0, None, "--pairs 0: at least 1"),
        ({}, 20, 0, "--batch 0: at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes, pairs, batch, said):
    with pytest.raises(ConfigError, match=said):
        check(terms(**changes), pairs, batch)


def test_what_has_no_room_is_refused_with_what_it_needs(monkeypatch):
    monkeypatch.setattr(checks, "available_bytes", lambda: 3000 * MIB)
    check(terms(size_mb=1.0, workers=2), 20, None)
    with pytest.raises(MemoryShortage) as caught:
        check(terms(size_mb=1024.0), 20, None)
    text = str(caught.value)
    needed = sum(needed_bytes("linear", 1024.0, 4).values()) // MIB
    assert f"about {needed} MiB, and 3000 MiB are available" in text
    assert "relume " in text
    assert "smaller --size-mb" in text
