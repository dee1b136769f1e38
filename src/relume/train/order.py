"""Which samples a shard of a step holds: index arithmetic, and nothing else.

An epoch is one permutation of the samples (or their plain order), cut into global batches; a global batch is cut into S
contiguous shards whose sizes differ by one at most. All of it is a function of (seed, step, shard) (Invariant 2), so a
shard can be handed to another worker, or asked for again, without anybody remembering anything.

This module does not know what a sample is, nor who loads it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from relume.train.rng import derive

EPOCHS_KEPT = 2
"""Permutations held in memory: the current epoch's, and the next one's when prefetching has reached it."""


def shard_bounds(samples: int, shards: int, shard: int) -> tuple[int, int]:
    """Return where `shard` begins and ends in a global batch of `samples`: the first ones get the remainder."""
    each, more = divmod(samples, shards)
    begin = shard * each + min(shard, more)
    return begin, begin + each + (shard < more)


def permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of `epoch`: int64, shape (samples,)."""
    generator = torch.Generator("cpu").manual_seed(derive(seed, epoch, "order"))
    return torch.randperm(samples, generator=generator, device="cpu")  # whatever the default device is


@dataclass(frozen=True)
class Order:
    """The order of a map-style dataset: from (step, shard) to indices.

    `samples` are cut into global batches of `batch`, and those into `shards`. `seed` is the order's own.
    """

    samples: int
    batch: int
    shards: int
    seed: int
    shuffle: bool
    drop_last: bool
    _orders: OrderedDict[int, torch.Tensor] = field(default_factory=OrderedDict, init=False, repr=False, compare=False)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """How many global batches an epoch has."""
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """Return the epoch that `step` belongs to; both count from 0."""
        return step // self.steps_per_epoch

    def size(self, step: int, shard: int) -> int:
        """Return how many samples the shard holds: 0 where S is larger than the global batch."""
        begin, end = self._span(step, shard)
        return end - begin

    def indices(self, step: int, shard: int) -> Sequence[int]:
        """Return the samples of the shard, in order."""
        begin, end = self._span(step, shard)
        if not self.shuffle:
            return range(begin, end)
        indices: list[int] = self._order(step // self.steps_per_epoch)[begin:end].tolist()
        return indices

    def _span(self, step: int, shard: int) -> tuple[int, int]:
        """Return the positions in the epoch's order that the shard takes."""
        if step < 0 or not 0 <= shard < self.shards:
            raise IndexError(f"there is no shard {shard} of step {step}: shards are 0 to {self.shards - 1}")
        first = step % self.steps_per_epoch * self.batch
        begin, end = shard_bounds(min(self.batch, self.samples - first), self.shards, shard)
        return first + begin, first + end

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            self._orders[epoch] = permutation(self.samples, self.seed, epoch)
            while len(self._orders) > EPOCHS_KEPT:
                self._orders.popitem(last=False)
        self._orders.move_to_end(epoch)
        return self._orders[epoch]
