"""Equal samples have equal fingerprints in any process, and different ones differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relume.train.fingerprint import fingerprint


class Opaque:
    def __init__(self, value):
        self.value = value


class Image:
    """What PIL's images look like to NumPy."""

    def __init__(self, value):
        self._array = np.full((2, 2), value, dtype=np.uint8)
        self.__array_interface__ = self._array.__array_interface__


SAMPLES = [
    lambda: torch.tensor([0.0]),
    lambda: torch.tensor([-0.0]),
    lambda: torch.tensor([0]),
    lambda: torch.tensor([[0.0]]),
    lambda: torch.tensor([0.0], dtype=torch.bfloat16),
    lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    lambda: torch.tensor(1.0 + 2.0j).conj(),
    lambda: torch.eye(2).to_sparse(),
    lambda: np.array([0.0]),
    lambda: np.float32(0.0),
    lambda: 0,
    lambda: 0.0,
    lambda: False,
    lambda: "0",
    lambda: b"0",
    lambda: None,
    lambda: {"x": 1, "y": 2},
    lambda: {"x": 1, "z": 2},
    lambda: [1, 2],
    lambda: ["12"],
    lambda: {"apple", "pear"},
    lambda: Image(1),
    lambda: Image(2),
    lambda: Opaque(1),
]


def test_equal_samples_have_equal_fingerprints_and_others_do_not():
    prints = [fingerprint(make()) for make in SAMPLES]
    assert prints == [fingerprint(make()) for make in SAMPLES]
    assert len(set(prints)) == len(prints)


def test_the_layout_of_a_tensor_is_not_its_content():
    tensor = torch.arange(6.0).view(2, 3)
    assert fingerprint(tensor) == fingerprint(tensor.t().contiguous().t())


@pytest.mark.parametrize("sample", [Opaque(2), {"x": {Opaque(1)}}, np.array([Opaque(1)])])
def test_what_cannot_be_compared_counts_by_its_type(sample):
    twin = {Opaque: Opaque(3), dict: {"x": {Opaque(3)}}, np.ndarray: np.array([Opaque(3)])}[type(sample)]
    assert fingerprint(sample) == fingerprint(twin)
