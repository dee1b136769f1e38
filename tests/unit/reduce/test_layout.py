"""Where gradients stand: the parameter's strides, aligned, one dtype after the other, nothing over anything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.layout import ALIGNMENT
from relume.reduce.layout import GradientLayout, dense_strides

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


def channels_last():
    return torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last)


ODD = {
    "contiguous": lambda: torch.randn(3, 5),
    "transposed": lambda: torch.randn(3, 5).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "channels last": channels_last,
    "channels last with one channel": lambda: torch.randn(4, 1, 5, 2).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "every second column": lambda: torch.randn(3, 8)[:, ::2],
    "scalar": lambda: torch.randn(()),
    "one element": lambda: torch.randn(1, 1, 1),
    "no element": lambda: torch.randn(0, 4),
    "no element, transposed": lambda: torch.randn(4, 0, 3).transpose(0, 2),
    "a view into something larger": lambda: torch.randn(100)[7:31].view(4, 6),
    "overlapping": lambda: torch.randn(10).as_strided((4, 4), (1, 1)),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_strides_are_those_that_autograd_gives_the_gradient(make):
    def steps(tensor, strides):
        return [stride for stride, size in zip(strides, tensor.shape, strict=True) if size > 1]

    parameter = make().detach().requires_grad_()
    (parameter * 2).sum().backward()
    assert steps(parameter, dense_strides(parameter)) == steps(parameter, parameter.grad.stride())


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_a_gradient_that_was_copied_in_reads_the_same(make):
    value = make()
    layout = GradientLayout([("before", torch.randn(3)), ("it", value), ("after", torch.randn(3))])
    memory = torch.zeros(layout.size, dtype=torch.uint8)
    views = layout.views(memory)
    for view in views:
        view.fill_(7.0)
    views[1].copy_(value)
    assert views[1].shape == value.shape
    assert torch.equal(views[1], value)
    assert all(bool((view == 7.0).all()) for view in (views[0], views[2])), "its neighbours are untouched"


@st.composite
def parameters(draw):
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    found = []
    for index in range(draw(st.integers(0, 9))):
        value = torch.zeros(draw(shapes), dtype=draw(st.sampled_from(DTYPES)))
        if value.dim() > 1 and draw(st.booleans()):
            value = value.transpose(0, -1)
        found.append((f"p{index}", value))
    return found


@given(parameters())
def test_every_view_has_its_own_aligned_place_and_one_dtype_stands_together(named):
    layout = GradientLayout(named)
    memory = torch.zeros(layout.size, dtype=torch.uint8)
    base = memory.data_ptr()
    assert sorted(layout.order) == list(range(len(named)))
    assert layout.size % ALIGNMENT == 0
    owner: list[str | None] = [None] * layout.size
    views = layout.views(memory)
    for entry, view, index in zip(layout.entries, views, layout.order, strict=True):
        name, parameter = named[index]
        assert (entry.name, entry.dtype, view.dtype, view.shape) == (
            name,
            parameter.dtype,
            parameter.dtype,
            parameter.shape,
        )
        assert view.stride() == dense_strides(parameter)
        if not view.numel():
            continue
        assert entry.offset % ALIGNMENT == 0
        assert view.data_ptr() - base == entry.offset
        for byte in range(entry.offset, entry.end):
            assert owner[byte] is None, f"{name} stands over {owner[byte]}"
            owner[byte] = name
    assert len({run.dtype for run in layout.runs}) == len(layout.runs), "one stretch per dtype"
    for run in layout.runs:
        inside = [entry for entry in layout.entries if entry.dtype == run.dtype]
        assert all(run.start <= entry.offset <= entry.end <= run.end for entry in inside)
    assert [run.start for run in layout.runs] == [0, *(run.end for run in layout.runs)][: len(layout.runs)]


@given(parameters())
def test_two_workers_lay_out_alike(named):
    one, other = GradientLayout(named), GradientLayout([(name, value.clone()) for name, value in named])
    assert [(e.name, e.offset, e.size) for e in one.entries] == [(e.name, e.offset, e.size) for e in other.entries]


def test_order_is_kept_within_a_dtype():
    names = "abcdef"
    dtypes = [torch.float32, torch.float64, torch.float32, torch.float16, torch.float64, torch.float32]
    named = [(n, torch.zeros(2, dtype=d)) for n, d in zip(names, dtypes, strict=True)]
    assert [entry.name for entry in GradientLayout(named).entries] == list("acfbed")


def test_no_parameter_at_all_is_a_gradient_of_no_bytes():
    layout = GradientLayout([])
    assert (layout.size, layout.runs, layout.views(torch.zeros(0, dtype=torch.uint8))) == (0, [], [])


def test_memory_may_be_a_slice_of_something_larger():
    layout = GradientLayout([("a", torch.zeros(3, dtype=torch.float64)), ("b", torch.zeros(2, 2).t())])
    arena = torch.zeros(3 * 4096, dtype=torch.uint8)
    views = layout.views(arena[4096 : 4096 + layout.size])
    for view in views:
        view.fill_(1.0)
    assert not arena[:4096].any()
    assert not arena[4096 + layout.size :].any()
