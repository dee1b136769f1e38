"""What loading one shard means, in whatever process it happens (Invariant 2).

The same function runs in the training process and in the loader processes, and it has to give the same bits in both. So
it fixes whatever those two could differ in: the state of every random generator, the number of threads, autocast and
gradient modes that the user has switched on around the loop, and the way in which torch's own collate function lays a
batch out.

This module does not know in which process it runs, nor in what order shards are asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import _utils as data_utils

from relume.train.fingerprint import fingerprint
from relume.train.rng import derive, seed_all


@dataclass(frozen=True, slots=True)
class Request:
    """One shard to load: its name, and what it holds (`indices` is None for a stream, which finds that out itself)."""

    step: int
    shard: int
    indices: Sequence[int] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Its name."""
        return self.step, self.shard


@dataclass(frozen=True, slots=True)
class Recipe:
    """How shards are made: sent to the loader processes once, when they start.

    `source` is a map-style dataset, or the function (step, shard) -> batch of a stream.
    """

    source: Any
    seed: int
    stream: bool
    collate: Callable[[list[Any]], Any]

    def load(self, request: Request) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        """Return the batch of a shard; None is a stream's way to say that the shard is empty."""
        with FixedConditions():
            seed_all(derive(self.seed, request.step, request.shard, "data"))
            if request.indices is None:
                return self.source(request.step, request.shard)
            samples = self._fetch(request.indices)
            if getattr(data_utils.worker, "_worker_info", None) is None:
                return self.collate(samples)
            with _no_loader_process():
                return self.collate(samples)

    def fingerprint(self) -> str:
        """Return the digest of sample 0, or an empty text for a stream, which has none."""
        if self.stream:
            return ""
        with FixedConditions():
            seed_all(derive(self.seed, "fingerprint", "data"))
            return fingerprint(self._fetch([0])[0])

    def _fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples, all at once if the dataset has torch's `__getitems__` for it."""
        indices = indices if type(indices) is list else list(indices)
        at_once = getattr(self.source, "__getitems__", None)
        if at_once:
            samples: list[Any] = at_once(indices)
            return samples
        return [self.source[index] for index in indices]


class FixedConditions:
    """Load at one thread, with no autocast and with ordinary gradient mode, whatever the loop around is in.

    As a rule all of that is so already, and looking is all that is done. What a dataset switches and forgets to switch
    back stays its own affair: it would not reach the loop from a loader process either.
    """

    __slots__ = ("_stack", "_threads")

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        self._stack: contextlib.ExitStack | None = None
        if self._threads != 1:
            torch.set_num_threads(1)
        casts = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
        if not casts and torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            return
        self._stack = contextlib.ExitStack()
        for device in casts:
            self._stack.enter_context(torch.autocast(device, enabled=False))
        self._stack.enter_context(torch.inference_mode(mode=False))
        self._stack.enter_context(torch.enable_grad())

    def __exit__(self, *_: object) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if self._stack is not None:
            self._stack.close()
        elif not torch.is_grad_enabled():
            torch.set_grad_enabled(True)


@contextlib.contextmanager
def _no_loader_process() -> Iterator[None]:
    """Hide from torch's collate function that this is a loader process.

    There it stacks into shared memory that it has allocated contiguous, and elsewhere it keeps the strides of the
    samples (channels last). A shard would have other strides, and so other bits, depending on who loaded it. The price
    is one more copy, made in the loader process.
    """
    worker = data_utils.worker
    info = getattr(worker, "_worker_info", None)
    if info is None:
        yield
        return
    worker._worker_info = None  # noqa: SLF001 - there is no other way to say it; a test holds that this one works
    try:
        yield
    finally:
        worker._worker_info = info  # noqa: SLF001
