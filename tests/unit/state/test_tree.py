"""Whatever a state dict may hold comes back as it was: types, bits, order; and equal values have equal skeletons."""

from __future__ import annotations

import datetime as dt
import enum
import fractions
import functools
import math
import operator
import random
import re
import struct
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.errors import StateError
from relume.state.facts import stored
from relume.state.tree import facts, flatten, unflatten

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 3


class Bits(enum.Flag):
    A = 1
    B = 2


Point = namedtuple("Point", "x y")  # noqa: PYI024  (the older kind, which has no annotations)


@dataclass
class Record:
    name: str
    weights: torch.Tensor
    inner: list = field(default_factory=list)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Text(str):
    """A subclass of a type that msgpack has."""

    __slots__ = ()


def copied(tensors):
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if t.numel() == 0 else _copy(t) for t in tensors]


def _copy(tensor):
    about = facts(flatten(tensor)[1])[0]
    return about.make(stored(tensor).clone())


def round_trip(value):
    tensors, skeleton = flatten(value)
    return unflatten(skeleton, copied(tensors))


def assert_same(one, other):  # noqa: C901, PLR0912  (one flat case per kind of value)
    assert type(one) is type(other), (one, other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert stored(one).numpy().tobytes() == stored(other).numpy().tobytes()
    elif isinstance(one, float):
        assert struct.pack("d", one) == struct.pack("d", other)
    elif isinstance(one, complex):
        assert struct.pack("dd", one.real, one.imag) == struct.pack("dd", other.real, other.imag)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.hasobject:
            assert_same(one.tolist(), other.tolist())
        else:
            assert one.tobytes() == other.tobytes()
    elif isinstance(one, np.generic):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    elif isinstance(one, dict):
        assert len(one) == len(other)
        for (key, item), (other_key, other_item) in zip(one.items(), other.items(), strict=True):
            assert_same(key, other_key)
            assert_same(item, other_item)
        if isinstance(one, defaultdict):
            assert one.default_factory is other.default_factory
        else:
            assert_same(getattr(one, "__dict__", None), getattr(other, "__dict__", None))
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for item, other_item in zip(one, other, strict=True):
            assert_same(item, other_item)
    elif hasattr(one, "__slots__") and isinstance(one, Slotted):
        assert_same([one.a, one.b], [other.a, other.b])
    elif isinstance(one, Record | types.SimpleNamespace):
        assert_same(vars(one), vars(other))
    elif isinstance(one, set | frozenset):
        assert sorted(map(repr, one)) == sorted(map(repr, other))
    else:
        assert one == other


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = (
        torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()).view(dtype)
        if data
        else torch.empty(0, dtype=dtype)
    )
    tensor = flat.view(shape)
    order = draw(st.permutations(range(len(shape))))
    tensor = tensor.permute(*order) if shape else tensor
    kind = draw(st.sampled_from(["plain", "every other", "expanded", "parameter"]))
    if kind == "every other" and tensor.dim():
        return tensor[..., ::2]
    if kind == "expanded" and dtype is not torch.float8_e4m3fn:
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if kind == "parameter" and dtype.is_floating_point:
        return torch.nn.Parameter(tensor, requires_grad=draw(st.booleans()))
    return tensor


keys = st.one_of(
    st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.text(st.characters(codec=None, categories=("Cs", "Ll")), max_size=3),
    st.binary(max_size=20),
    st.binary(max_size=8).map(bytearray),
    st.sampled_from(
        [Colour.RED, Colour.GREEN, Level.LOW, Bits.A | Bits.B, torch.float16, torch.channels_last, torch.strided]
    ),
    st.sampled_from(
        [torch.device("cpu"), torch.device("cuda:1"), torch.Size([2, 3]), torch.Size([]), Text("t"), Ellipsis]
    ),
    st.sampled_from([Decimal("1.10"), fractions.Fraction(1, 3), dt.timedelta(days=2), range(3), slice(1, None)]),
    st.sampled_from([math.sin, operator.add, dict, Record, torch.nn.Linear, functools.partial(operator.add, 2).func]),
    st.frozensets(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=5),
    st.sets(st.one_of(st.integers(), st.floats(allow_nan=False)), max_size=5),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, max_side=3), unique=False),
    hnp.from_dtype(np.dtype("f4")),
    hnp.from_dtype(np.dtype(">i2")),
    tensors(),
)


def nests(inner):
    mappings = st.dictionaries(keys, inner, max_size=4)
    lists = st.lists(inner, max_size=4)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(deque),
        mappings,
        mappings.map(OrderedDict),
        mappings.map(lambda entries: defaultdict(list, entries)),
        st.dictionaries(st.integers(), st.integers(), max_size=4).map(Counter),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        st.tuples(st.text(max_size=3), tensors(), lists).map(lambda parts: Record(*parts)),
        st.tuples(inner, inner).map(lambda pair: Slotted(*pair)),
        inner.map(lambda value: types.SimpleNamespace(value=value)),
    )


trees = st.recursive(plain, nests, max_leaves=12)


@given(trees)
def test_whatever_is_protected_comes_back_with_every_bit(value):
    again = round_trip(value)
    assert_same(value, again)
    assert flatten(again)[1] == flatten(value)[1], "equal values have equal skeletons"


@given(trees)
def test_what_was_not_to_be_understood_can_be_flattened_again_as_it_was(value):
    found, skeleton = flatten(value)
    opaque = unflatten(skeleton, found, trusting=False)
    again, same = flatten(opaque)
    assert same == skeleton
    assert [id(tensor.untyped_storage()) for tensor in again] or not found
    assert len(again) == len(found)
    assert all(stored(a).numpy().tobytes() == stored(b).numpy().tobytes() for a, b in zip(again, found, strict=True))


@given(st.lists(tensors(), max_size=6))
def test_tensors_stand_side_by_side_at_multiples_of_128(found):
    end = 0
    for about, tensor in zip(facts(flatten(found)[1]), found, strict=True):
        assert about.offset % 128 == 0
        assert end <= about.offset < end + 128
        assert about.size == len(stored(tensor))
        end = about.offset + about.size


@given(st.binary(max_size=60))
def test_bytes_that_are_no_skeleton_are_refused_and_nothing_else_happens(data):
    with pytest.raises(StateError):
        unflatten(data, [])


@given(trees, st.data())
def test_a_damaged_skeleton_is_refused_or_gives_some_value_but_no_other_error(value, data):
    found, skeleton = flatten(value)
    at = data.draw(st.integers(0, len(skeleton) - 1))
    damaged = bytearray(skeleton)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        unflatten(bytes(damaged), found, trusting=False)
        facts(bytes(damaged))
    except StateError:
        pass


def test_a_set_has_one_skeleton_however_it_was_filled():
    one, other = set(), set()
    numbers = [3, "b", 1 << 70, None, 17, "a", -1]
    for number in numbers:
        one.add(number)
    for number in reversed(numbers):
        other.add(number)
    assert flatten(one)[1] == flatten(other)[1]


def test_the_order_of_a_dict_is_part_of_it():
    assert flatten({"a": 1, "b": 2})[1] != flatten({"b": 2, "a": 1})[1]


def test_memory_formats_are_kept_and_part_of_the_skeleton():
    plain = torch.arange(120.0).view(2, 3, 4, 5)
    last = plain.to(memory_format=torch.channels_last)
    assert round_trip(last).is_contiguous(memory_format=torch.channels_last)
    assert flatten(plain)[1] != flatten(last)[1]


def test_an_expanded_tensor_is_stored_once():
    tensor = torch.ones(1, 5).expand(1_000_000, 5)
    assert facts(flatten(tensor)[1])[0].size == 20
    assert round_trip(tensor).stride() == (0, 1)


def test_metadata_of_a_state_dict_survives():
    state = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).state_dict()
    again = round_trip(state)
    assert again._metadata == state._metadata
    assert again._metadata["0"] == {"version": 2}


def test_a_negative_or_conjugated_view_is_stored_as_what_it_means():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert round_trip(tensor.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert round_trip(tensor.conj().imag).tolist() == [-2.0, 4.0]


def test_a_result_with_a_history_comes_back_without_it():
    weight = torch.ones(3, requires_grad=True)
    again = round_trip({"leaf": weight, "loss": (weight * 2).sum()})
    assert again["leaf"].requires_grad
    assert not again["loss"].requires_grad


def test_a_generator_of_random_numbers_goes_on_as_before():
    rng = random.Random(3)
    rng.gauss(0, 1)
    numbers = np.random.default_rng(4)
    numbers.random(3)
    again, numbers_again = round_trip([rng, numbers])
    assert [again.gauss(0, 1) for _ in range(3)] == [rng.gauss(0, 1) for _ in range(3)]
    assert numbers_again.random(3).tobytes() == numbers.random(3).tobytes()


def test_compiled_patterns_partials_and_structured_arrays_are_taken_apart_as_pickle_would():
    table = np.array([(1, 2.5), (3, -0.0)], dtype=[("a", "i4"), ("b", "f8")])
    again = round_trip([re.compile("a+", re.IGNORECASE), functools.partial(operator.add, 2), table])
    assert again[0].fullmatch("AAA")
    assert again[1](3) == 5
    assert again[2].dtype == table.dtype
    assert again[2].tobytes() == table.tobytes()


class Holder:
    def __init__(self):
        self.hooks = {"on end": [lambda: None]}


def cycle():
    loop = []
    loop.append({"again": loop})
    return loop


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Holder(), "Holder.*|hooks.*on end"),
        ([cycle()], "it holds itself"),
        ({"mask": torch.eye(3).to_sparse()}, "model.mask.*sparse"),
        ({"m": torch.empty(3, device="meta")}, "model.m.*meta"),
        ([0, types.SimpleNamespace(f=lambda: 1)], r"model\[1\].*f.*lambda"),
        ({"file": (x for x in range(3))}, "model.file.*generator"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(value, words):
    with pytest.raises(StateError, match=words) as caught:
        flatten({"model": value})
    assert "model" in str(caught.value)


def test_nesting_too_deep_is_said_to_be():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StateError, match="deep"):
        flatten(deep)


def test_a_skeleton_of_a_later_format_is_refused():
    later = msgspec.msgpack.encode([99, [], None])
    with pytest.raises(StateError, match="format 99"):
        unflatten(later, [])


def test_a_skeleton_and_tensors_of_another_state_do_not_mix():
    _, skeleton = flatten([torch.ones(2), 3])
    with pytest.raises(StateError, match="0 tensors for a state that has 1"):
        unflatten(skeleton, [])
