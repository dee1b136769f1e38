"""A batch that is not built like the first one is told by place and name; sizes do not matter."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch

from relume.train.structure import difference, structure_of

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - the untyped kind is what people have


def compare(first, other):
    return difference(structure_of(first), structure_of(other))


@pytest.mark.parametrize(
    ("first", "other"),
    [
        pytest.param(torch.zeros(4, 3), torch.zeros(2, 7), id="sizes"),
        pytest.param({"x": 1, "y": "a"}, {"y": "b", "x": 2}, id="order of keys"),
        pytest.param(["a", "b"], ["a"], id="names of fewer samples"),
        pytest.param(("a", "b"), (), id="no names at all"),
        pytest.param([], ["a"], id="names after none"),
        pytest.param([{"boxes": torch.zeros(3, 4)}] * 2, [{"boxes": torch.zeros(0, 4)}] * 5, id="detections per image"),
        pytest.param(np.array(["a"]), np.array(["longer"]), id="lengths of text"),
        pytest.param((torch.zeros(2), "a"), (torch.zeros(3), "b"), id="pairs"),
    ],
)
def test_what_may_vary(first, other):
    assert compare(first, other) is None


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ({"x": torch.zeros(1)}, {"x": torch.zeros(1).double()}, "batch['x'] is float64 tensor, and was float32 tensor"),
        ({"x": 1, "y": 2}, {"x": 1}, "batch has no ['y'], and had one"),
        ({"x": 1}, {"x": 1, "z": 2}, "batch has ['z'], and had none"),
        ((torch.zeros(1), 1), [torch.zeros(1), 1], "batch is list, and was tuple"),
        ((torch.zeros(1), 1), (torch.zeros(1),), "batch has no [1], and had one"),
        ({"x": [1, 2, 3]}, {"x": [1, 2.0]}, "batch['x'][1] is float, and was int"),
        (["a"], [1], "batch[0] is int, and was str"),
        (Pair(1, "a"), Pair(1, None), "batch.y is None, and was str"),
        (torch.zeros(2), np.zeros(2), "batch is float64 array, and was float32 tensor"),
        (torch.eye(2), torch.eye(2).to_sparse(), "batch is float32 sparse_coo tensor, and was float32 tensor"),
        (
            torch.zeros(2),
            torch.nn.Parameter(torch.zeros(2)),
            "batch is float32 tensor (Parameter), and was float32 tensor",
        ),
        (Pair(1, 2), (1, 2), "batch is tuple, and was Pair"),
    ],
)
def test_what_may_not_is_told_in_words(first, other, words):
    assert compare(first, other) == words
