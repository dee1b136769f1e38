"""A process of a side without relume: plain DDP over Gloo, or the same work with no exchange at all.

    python -m relume.bench.peers ADDRESS SIDE [MAPPING BELLS]

It carries out one order after the other and ends with its controller. The loops in here are what somebody writes who
has no relume; whatever is not theirs (which samples, making models anew) is done before the clock starts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relume.bench.models import Task, build
from relume.bench.orders import ALONE, DDP, GLOO, MEMORY, RAW, Begin, Done, Line, Ready, Save, Steps
from relume.bench.raw import Barrier, Kernel
from relume.bench.variants import VARIANTS
from relume.train.rng import derive


class Peer:
    """What all sides without relume have in common: a task, and its steps."""

    def __init__(self, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self._task: Task | None = None
        self.steps = 0

    @property
    def task(self) -> Task:
        """What `begin` made."""
        assert self._task is not None
        return self._task

    def begin(self, order: Begin) -> None:
        """Make everything anew."""
        self._task = None  # or two models are in memory at once
        self._task = build(order.terms)
        self.steps = 0

    def save(self, order: Save) -> None:
        """Write the parameters."""
        if self.rank == 0:
            self.task.weights().tofile(order.path)

    def train(self, model: nn.Module, order: Steps, wait: Callable[[], None] = lambda: None) -> Done:
        """Make the steps that are ordered, with the samples that a worker of this rank has under relume.

        `wait` is called before the counted ones begin, where nothing else keeps the processes together.
        """
        task, first, count = self.task, self.steps, order.warm + order.steps
        bound = task.bound
        indices = [list(bound.indices(step, self.rank)) for step in range(first, first + count)]
        seed, begin_ns = task.terms.seed, time.monotonic_ns()
        for number, samples in enumerate(indices):
            if number == order.warm:
                begin_ns = time.monotonic_ns()
                wait()
            task.optimizer.zero_grad()
            batch = task.load(samples)
            if task.drawing:  # as under relume, so that both drop the same
                torch.default_generator.manual_seed(derive(seed, first + number, self.rank))
            task.loss(model, batch).backward()
            task.update()
        self.steps += count
        return Done(begin_ns, time.monotonic_ns(), steps=self.steps)


class DdpPeer(Peer):
    """A rank of DistributedDataParallel, in whatever variant is asked for."""

    def __init__(self, rank: int, workers: int) -> None:
        super().__init__(rank, workers)
        dist.init_process_group("gloo")
        self._wrapped: tuple[str, nn.Module] | None = None
        self._flat = torch.empty(0)

    def begin(self, order: Begin) -> None:
        """See `Peer.begin`."""
        self._wrapped = None
        super().begin(order)

    def run(self, order: Steps) -> Done:
        """Do `order`."""
        return self._all_reduce(order) if order.work == GLOO else self.train(self._variant(order.variant), order)

    def _variant(self, name: str) -> nn.Module:
        """Return the model as DDP of this variant, wrapped anew if it was another one before."""
        if self._wrapped is None or self._wrapped[0] != name:
            self._wrapped = None  # only one at a time may hang on the parameters
            for parameter in self.task.model.parameters():
                parameter.grad = None  # it may be a view of the old one's buckets
            self._wrapped = name, DistributedDataParallel(self.task.model, **VARIANTS[name])
        return self._wrapped[1]

    def _all_reduce(self, order: Steps) -> Done:
        numbers = sum(parameter.numel() for parameter in self.task.model.parameters())
        if len(self._flat) != numbers:
            self._flat = torch.zeros(numbers)
        begin_ns = 0
        for number in range(order.warm + order.steps):
            if number == order.warm:
                begin_ns = time.monotonic_ns()
            dist.all_reduce(self._flat)
        return Done(begin_ns, time.monotonic_ns())


class BarePeer(Peer):
    """A process that exchanges nothing, or does so by the bare kernel."""

    def __init__(self, rank: int, workers: int, mapping: int, bells: list[int]) -> None:
        super().__init__(rank, workers)
        self._mapping = mapping
        self._barrier = Barrier(bells, rank)
        self._kernel: tuple[int, Kernel] | None = None

    def run(self, order: Steps) -> Done:
        """Do `order`."""
        if order.work == ALONE:
            return self.train(self.task.model, order, self._barrier.wait)
        kernel = self._sized()
        work = {RAW: kernel.rounds, MEMORY: kernel.passes}[order.work]
        work(order.warm)
        begin_ns = time.monotonic_ns()
        kernel.wait()
        parts = work(order.steps)
        done = Done(begin_ns, time.monotonic_ns(), tuple(parts))
        if order.work == RAW:
            kernel.check()
        return done

    def _sized(self) -> Kernel:
        size = 4 * sum(parameter.numel() for parameter in self.task.model.parameters())
        if self._kernel is None or self._kernel[0] != size:
            self._kernel = size, Kernel(self._mapping, size, self.workers, self.rank, self._barrier)
        return self._kernel[1]


def main(address: str, side: str, mapping: str = "-1", bells: str = "") -> None:
    """Serve a controller until it hangs up."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    line = Line.to_controller(address)
    peer = DdpPeer(rank, workers) if side == DDP else BarePeer(rank, workers, int(mapping), _numbers(bells))
    line.send(Ready(side, rank, os.getpid(), str(torch.__version__)))
    while (order := line.receive()) is not None:
        done = Done()
        if isinstance(order, Begin):
            peer.begin(order)
            sizes = [parameter.numel() for parameter in peer.task.model.parameters()]
            done = Done(tensors=len(sizes), numbers=sum(sizes))
        elif isinstance(order, Save):
            peer.save(order)
        else:
            assert isinstance(order, Steps)
            done = peer.run(order)
        line.send(done)
    os._exit(0)  # groups and maps need no farewell, and a peer that is gone already may not answer one


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    main(*sys.argv[1:])
