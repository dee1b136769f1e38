"""Batches come in any nesting; what is inside is aligned, counted and left as it is."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch

from relume.train.batches import ALIGNMENT_BYTES, align, count_samples, leaves, signature, transform
from relume.train.structure import difference, structure_of

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - the untyped kind is what people have


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    x: object
    y: object = None


def crooked(shape=(4, 3), dtype=torch.float32):
    """Return a tensor that begins one element past 64 bytes."""
    tensor = torch.arange(torch.Size(shape).numel() + 1).to(dtype)[1:].view(shape)
    assert tensor.data_ptr() % ALIGNMENT_BYTES
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_a_view_into_a_larger_tensor_is_copied_onto_64_bytes(dtype):
    tensor = crooked(dtype=dtype)
    aligned = align(tensor)
    assert aligned.data_ptr() % ALIGNMENT_BYTES == 0
    assert torch.equal(aligned, tensor)
    assert aligned.stride() == tensor.stride()


def test_an_aligned_tensor_is_not_copied():
    batch = {"x": torch.zeros(5, 3), "y": [torch.zeros(5), "name"]}
    assert align(batch) is batch


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda tensor: tensor.permute(0, 2, 3, 1), id="permuted"),
        pytest.param(lambda tensor: tensor.to(memory_format=torch.channels_last), id="channels last"),
        pytest.param(lambda tensor: tensor.transpose(0, 3), id="transposed"),
    ],
)
def test_strides_without_gaps_stay_as_they_are(view):
    tensor = view(crooked((2, 3, 4, 5)))
    assert align(tensor).stride() == tensor.stride()
    assert torch.equal(align(tensor), tensor)


@pytest.mark.parametrize("begin", [0, 1])
def test_strides_with_gaps_are_the_same_after_wherever_the_tensor_lay(begin):
    """A copy has no gaps. Copying only what is crooked would let the address decide the strides."""
    base = torch.arange(200.0)[begin : begin + 120].view(10, 12)
    gaps, spread = align(base[:, :5]), align(base[:1].expand(4, 12))
    assert gaps.stride() == (5, 1)
    assert torch.equal(gaps, base[:, :5])
    assert spread.stride() == (12, 1)


def test_arrays_are_aligned_too_since_from_numpy_keeps_their_memory():
    room = np.zeros(4 * 12 + 4, dtype=np.uint8)
    array = room[4:].view(np.float32).reshape(3, 4).T
    array[...] = np.arange(12).reshape(4, 3)
    aligned = align({"x": array})["x"]
    assert torch.from_numpy(aligned).data_ptr() % ALIGNMENT_BYTES == 0
    assert aligned.strides == array.strides
    assert np.array_equal(aligned, array)


@pytest.mark.parametrize(
    "array", [np.array(["a", None], dtype=object), np.zeros((0, 3)), np.array(3.0), np.ones(3)[::-1]]
)
def test_arrays_of_every_kind_come_through(array):
    assert np.array_equal(align(array), array)


def test_what_has_no_address_comes_through():
    sparse = torch.eye(3).to_sparse()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    batch = {"sparse": sparse, "nested": nested, "text": "a", "none": None, "empty": torch.zeros(0, 3)}
    assert align(batch) is batch


def test_an_input_that_wants_a_gradient_is_a_leaf_after_alignment():
    aligned = align(crooked().detach().requires_grad_())
    assert aligned.requires_grad
    assert aligned.is_leaf


@pytest.mark.parametrize(
    ("batch", "get"),
    [
        pytest.param({"a": crooked()}, lambda batch: batch["a"], id="dict"),
        pytest.param(OrderedDict(a=crooked()), lambda batch: batch["a"], id="OrderedDict"),
        pytest.param(UserDict(a=crooked()), lambda batch: batch["a"], id="UserDict, as of tokenizers"),
        pytest.param([crooked()], lambda batch: batch[0], id="list"),
        pytest.param((1, crooked()), lambda batch: batch[1], id="tuple"),
        pytest.param(Pair(crooked(), 1), lambda batch: batch.x, id="namedtuple"),
        pytest.param(Sample(crooked()), lambda batch: batch.x, id="dataclass"),
        pytest.param(torch.max(crooked(), 0), lambda batch: batch.values, id="torch's return type"),
    ],
)
def test_every_container_keeps_its_type_and_the_original_its_content(batch, get):
    before = get(batch)
    aligned = align([batch])[0]
    assert type(aligned) is type(batch)
    assert get(aligned).data_ptr() % ALIGNMENT_BYTES == 0
    assert torch.equal(get(aligned), before)
    assert get(batch) is before


def test_a_read_only_mapping_is_refilled():
    aligned = transform(MappingProxyType({"a": 1}), lambda leaf: leaf + 1)
    assert dict(aligned) == {"a": 2}


def test_leaves_come_with_the_way_to_write_them():
    batch = {"x": [1, Pair(2, Sample(3))]}
    assert dict(leaves(batch)) == {
        "batch['x'][0]": 1,
        "batch['x'][1].x": 2,
        "batch['x'][1].y.x": 3,
        "batch['x'][1].y.y": None,
    }


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(7, 2), 7),
        ({"names": ["a", "b"], "scale": torch.tensor(1.0), "x": np.zeros((5, 2))}, 5),
        ((torch.zeros(0, 2), torch.zeros(3)), 0),
        (["a", "b"], None),
    ],
)
def test_the_first_tensor_tells_how_many_samples_there_are(batch, samples):
    assert count_samples(batch) == samples


BUILDS = [
    torch.zeros(3),
    torch.zeros(3).double(),
    torch.eye(2).to_sparse(),
    torch.nn.Parameter(torch.zeros(3)),
    np.zeros(3),
    1,
    True,
    1.0,
    "a",
    None,
    Pair(1, 2),
    Sample(torch.zeros(1)),
    UserDict(x=1),
    {},
    [],
    (),
    {"x": 1},
    {"x": 1.0},
    {"y": 1},
    {"x": 1, "y": 2},
    {1: 1},
    {True: 1},
    {"x": {"y": 1}},
    {"x": "y"},
    [1, 2],
    [1, 2.0],
    (1, 2),
    [[1], 2],
    [1, [2]],
    [torch.zeros(1), {"x": "a"}],
    [torch.zeros(1), {"x": np.zeros(1)}],
]


def test_what_has_one_signature_is_built_alike():
    for first in BUILDS:
        for other in BUILDS:
            if signature(first) is not None and signature(first) == signature(other):
                assert difference(structure_of(first), structure_of(other)) is None, (first, other)
    assert signature([torch.zeros(1), {"x": "a"}]) == signature([torch.ones(5), {"x": "b"}]) is not None
    assert signature([torch.zeros(1), Pair(1, 2)]) is None, "not clear: it is looked at closely"
    assert signature({1: 1}) is None
    assert signature({"x": 1, "y": 2.0}) != signature({"x": 2.0, "y": 1})
