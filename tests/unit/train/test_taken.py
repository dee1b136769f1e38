"""What becomes `.grad` is this worker's own, in every way that a script may use it, whether it is mapped or copied."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from relume.arena import memory
from relume.arena.layout import RESULTS, ControlLayout, DataLayout
from relume.reduce.layout import GradientLayout
from relume.train.store import Store
from relume.train.taken import Taken
from relume.wire.messages import Shape

SIZE = 3000


class Worker:
    """Two parameters whose gradients are taken from results that everybody sees."""

    def __init__(self, *, shared):
        self.parameters = [nn.Parameter(torch.ones(SIZE)), nn.Parameter(torch.ones(2, 2))]
        gradient = GradientLayout([(str(i), p) for i, p in enumerate(self.parameters)])
        shape = Shape(gradient.size, 0, 2, 2)
        control = ControlLayout(1)
        words = memoryview(bytearray(control.size)).cast("Q")
        self.descriptor = None
        if shared:
            self.descriptor = memory.create("test-data")
            memory.reserve(self.descriptor, DataLayout(shape, 1, RESULTS))
        self.store = Store(words, control, shape, gradient, self.descriptor)
        self.taken = Taken(self.store)

    def take(self, step, value):
        """The result of `step` is `value` all over; it becomes `.grad`."""
        self.store.result(step).view(torch.float32).fill_(value)
        views = self.taken.take(step)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.grad = view
        return views[0].data_ptr()

    def give_back(self):
        for parameter in self.parameters:
            parameter.grad = None
        self.taken.give_back()

    @property
    def grads(self):
        return [parameter.grad.unique().tolist() for parameter in self.parameters]

    def result(self, step):
        return self.store.result(step).view(torch.float32).unique().tolist()


@pytest.fixture(params=[True, False], ids=["shared", "alone"])
def worker(request):
    made = Worker(shared=request.param)
    yield made
    if made.descriptor is not None:
        os.close(made.descriptor)


@pytest.fixture
def mapped():
    made = Worker(shared=True)
    yield made
    os.close(made.descriptor)


def test_every_step_brings_its_own(worker):
    for step in range(8):
        worker.take(step, step + 0.5)
        assert worker.grads == [[step + 0.5]] * 2
        worker.give_back()


@pytest.mark.parametrize("change", ["torch", "numpy", "optimizer"])
def test_what_the_script_writes_nobody_else_sees_and_it_is_gone_with_the_step(worker, change):
    for step in range(6):
        worker.take(step, 1.0 + step)
        gradient = worker.parameters[0].grad
        if change == "torch":
            gradient.mul_(3.0)
        elif change == "numpy":
            gradient.numpy()[:] = 3.0 * (1.0 + step)  # leaves no trace in torch
        else:
            torch.nn.utils.clip_grad_value_(worker.parameters, 0.25)
        assert worker.result(step) == [1.0 + step]
        assert worker.grads[0] == [0.25 if change == "optimizer" else 3.0 * (1.0 + step)]
        del gradient
        worker.give_back()


@pytest.mark.parametrize("held", ["gradient", "view", "slice", "array", "list"])
def test_a_gradient_that_is_kept_stays_as_it_was(worker, held):
    kept = []
    for step in range(3 * RESULTS):
        worker.take(step, float(step))
        gradient = worker.parameters[0].grad
        made = {
            "gradient": gradient,
            "view": gradient.view(2, -1),
            "slice": gradient[5:7],
            "array": gradient.numpy(),
            "list": worker.parameters[1].grad,
        }
        kept.append(made[held])
        del gradient, made
        worker.give_back()
    assert [{float(x) for x in each.reshape(-1)} for each in kept] == [{float(step)} for step in range(3 * RESULTS)]


def test_a_gradient_in_a_graph_stays_as_it_was(worker):
    outer = torch.ones(SIZE, requires_grad=True)
    worker.take(0, 3.0)
    product = (outer * worker.parameters[0].grad).sum()
    worker.give_back()
    for step in range(1, 2 * RESULTS + 1):
        worker.take(step, 7.0)
        worker.give_back()
    product.backward()
    assert outer.grad.unique().tolist() == [3.0]


def test_who_only_reads_copies_nothing(mapped):
    places = set()
    for step in range(4 * RESULTS):
        places.add(mapped.take(step, float(step)))
        assert mapped.grads[0] == [float(step)]
        mapped.give_back()
    assert len(places) == RESULTS
    start = mapped.store.layout.result(0)
    assert not mapped.store.private.is_copied(start, mapped.store.layout.result(RESULTS))


def test_who_writes_once_gets_copies_from_then_on(mapped):
    mapped.take(0, 1.0)
    mapped.parameters[1].grad.zero_()
    assert mapped.store.private.is_copied(0, mapped.store.layout.result(RESULTS))
    mapped.give_back()
    assert not mapped.store.private.is_copied(0, mapped.store.layout.result(RESULTS)), "no page of it is left"
    place = mapped.take(1, 2.0)
    assert mapped.grads == [[2.0], [2.0]]
    mapped.give_back()
    assert mapped.take(2, 3.0) == place, "one memory for all steps"


def test_memory_is_used_again(worker):
    worker.take(0, 0.0)
    worker.parameters[0].grad.add_(1.0)  # copied from here on
    worker.give_back()
    places = set()
    for step in range(1, 6):
        places.add(worker.take(step, float(step)))
        worker.give_back()
    assert len(places) == 1


def test_without_word_of_copied_pages_nothing_is_mapped(monkeypatch):
    """As where /proc is hidden."""
    monkeypatch.setattr("relume.arena.private.PrivateMap.is_copied", lambda self, start, size: 1 / 0)
    monkeypatch.setattr("relume.arena.private.PrivateMap.make", classmethod(lambda cls, descriptor, size: None))
    worker = Worker(shared=True)
    worker.take(0, 4.0)
    assert worker.grads == [[4.0], [4.0]]
    os.close(worker.descriptor)


def change_data(worker, gradient):
    gradient.data = gradient.data.clamp(-0.1, 0.1)


def change_storage(worker, gradient):
    gradient.share_memory_()


def change_places(worker, gradient):
    one, other = worker.parameters[0].grad, worker.parameters[1].grad
    one.data, other.data = other.data.clone().resize_(SIZE), one.data[:4].view(2, 2)


def change_kind(worker, gradient):
    gradient.requires_grad_(True)


def mark(worker, gradient):
    gradient.seen = True


@pytest.mark.parametrize("change", [change_data, change_storage, change_places, change_kind, mark])
def test_a_gradient_that_was_made_another_tensor_is_not_handed_out_again(worker, change):
    for step in range(3 * RESULTS):
        worker.take(step, 1.0 + step)
        gradient = worker.parameters[0].grad
        assert worker.grads == [[1.0 + step]] * 2
        assert not hasattr(gradient, "seen")
        assert not gradient.requires_grad
        change(worker, gradient)
        del gradient
        worker.give_back()


def test_a_gradient_whose_memory_was_exchanged_and_kept_stays_as_it_was(worker):
    """One holder more and one less."""
    worker.take(0, 3.0)
    gradient = worker.parameters[0].grad
    kept = gradient.data
    gradient.data = torch.zeros(SIZE)
    del gradient
    worker.give_back()
    for step in range(1, 3 * RESULTS):
        worker.take(step, 9.0)
        assert worker.grads == [[9.0]] * 2
        worker.give_back()
    assert kept.unique().tolist() == [3.0]


def test_a_forked_child_may_read_gradients_for_as_long_as_it_likes(worker):
    worker.take(0, 3.0)
    go, wait = os.pipe()[::-1]
    pid = os.fork()
    if pid == 0:
        os.read(wait, 1)
        os._exit(0 if worker.grads == [[3.0]] * 2 else 1)
    for step in range(1, 2 * RESULTS + 1):
        worker.give_back()
        worker.take(step, 9.0)
    os.write(go, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(go)
    os.close(wait)
