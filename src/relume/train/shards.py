"""The user's data, cut into shards: settings, their checks, and what must be equal on all workers.

`Shards` is what a script writes, in the DataLoader's words where they mean the same. `bind` gives it what only the run
knows, and from then on every sample has its place: a function of (seed, step, shard) (Invariant 2).

This module does not know how shards are loaded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch.multiprocessing
from torch.utils.data import default_collate

from relume.errors import DataError
from relume.train.loader import Loader, NextKey
from relume.train.loading import Recipe
from relume.train.order import Order
from relume.train.pool import PoolOptions
from relume.train.source import ADVICE, is_stream, name_of

_Function = TypeVar("_Function")

SHARDS_MAX = 4095
"""The arena's names for nodes of the tree have 12 bits for a shard."""

SHARDS_DEFAULT = 8

_INSTEAD = {
    "batch_size": "say global_batch_size=, the samples of one whole step: it does not depend on the number of workers",
    "sampler": "the order is a function of (seed, epoch), so that any worker can load any shard: see shuffle=, seed=",
    "batch_sampler": "a stream, a function (step, shard) -> batch, can make batches of any kind",
    "generator": "seed= decides the order, and every shard is loaded with its own random state",
    "worker_init_fn": "open files when the dataset is first indexed; every shard is loaded with its own random state",
    "persistent_workers": "loader processes always live as long as the loop over run.steps",
    "timeout": "a dataset that hangs is seen as a step without progress, and told",
}


class Shards:
    """A dataset or a stream, cut into global batches and those into shards.

    Args:
        source: a map-style dataset (anything with `__len__` and `__getitem__`), or a stream, which is a function
            (step, shard) -> batch that must return the same batch whenever it is called with the same arguments, and
            None for a shard that is empty.
        global_batch_size: samples per step, over all workers. A stream has no use for it.
        shards: S, in how many shards a global batch is cut, whatever the number of workers; 1 to 4095. By default
            what `relume run --shards` said, else min(8, global_batch_size).
        seed: of the order; the run's by default.
        shuffle: a new order in every epoch, instead of the dataset's own.
        num_workers: loader processes per worker. They load what this worker will need next, and after a death what the
            dead one leaves. 0 loads in the training process, each shard when it is needed: nothing can be loaded ahead
            there, not even in a thread, because loading seeds the random generators that the training process draws
            from. The bits are the same. Shards taken over from a dead worker may be loaded in the training process in
            any case, so a dataset that keeps files open has to open them once per process.
        collate_fn: from a list of samples to a batch; torch's `default_collate` by default.
        drop_last: leave out an epoch's last global batch if it is not full. Else it is smaller, and a step like others.
        prefetch_factor: how many shards a loader process is ahead. What is taken over in the middle of a step comes on
            top, once as much at most.
        multiprocessing_context: how loader processes are started (`"fork"`, `"spawn"`, a context), as for DataLoader.
        pin_memory: give batches in page-locked memory, where there is an accelerator.
        samples: for a stream, from a batch to the number of samples in it, which is its weight. By default the first
            dimension of the first tensor in it.

    Raises:
        DataError: if these make no steps: here, or when `run.steps` begins.
    """

    def __init__(  # noqa: PLR0913 - the DataLoader's settings, by the names that people know
        self,
        source: Any,  # noqa: ANN401 - any dataset: what it must have is checked, and told
        *,
        global_batch_size: int | None = None,
        shards: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        prefetch_factor: int | None = 2,
        multiprocessing_context: Any = None,  # noqa: ANN401 - a name, a context or None, as torch's
        pin_memory: bool = False,
        samples: Callable[[Any], int] | None = None,
        **others: Any,  # noqa: ANN401 - what a DataLoader takes and Shards does not: refused with advice
    ) -> None:
        """Check everything that can be checked without the run."""
        _refuse_others(others)
        self.source = source
        self.is_stream = is_stream(source)
        self.global_batch_size = _integer("global_batch_size", global_batch_size, least=1)
        self.shards = _integer("shards", shards, least=1, most=SHARDS_MAX)
        self.seed = _integer("seed", seed)
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.collate_fn = _function("collate_fn", collate_fn)
        self.samples = _function("samples", samples)
        _check_context(multiprocessing_context)
        self._options = PoolOptions(
            num_workers=_integer("num_workers", num_workers, least=0) or 0,
            prefetch_factor=_integer("prefetch_factor", prefetch_factor, least=1) or 2,
            multiprocessing_context=multiprocessing_context,
            pin_memory=bool(pin_memory),
        )
        self._check_combination()

    def bind(self, *, seed: int, default_shards: int | None) -> BoundShards:
        """Return the data as the run sees it: `seed` is the run's, `default_shards` what the command line said.

        Raises:
            DataError: if there is no step to make of the data.
        """
        count = self._count_shards(default_shards)
        recipe = Recipe(self.source, seed, stream=self.is_stream, collate=self.collate_fn or default_collate)
        order = None if self.is_stream else self._order(seed if self.seed is None else self.seed, count)
        return BoundShards(self, recipe, order, count)

    def _check_combination(self) -> None:
        if not self.is_stream:
            if self.global_batch_size is None:
                raise DataError("Shards needs global_batch_size=, the number of samples in one step over all workers.")
            if self.samples is not None:
                raise DataError(
                    "samples= is for streams: a dataset's samples are counted. To weigh the loss by something else, "
                    "call step.backward(loss, weight=...) in the loop."
                )
        elif self.collate_fn is not None or self.drop_last:
            name = "drop_last" if self.collate_fn is None else "collate_fn"
            raise DataError(f"{name}= has no meaning for a stream, which makes whole batches itself: leave it out.")

    def _count_shards(self, default_shards: int | None) -> int:
        count = self.shards or _integer("--shards", default_shards, least=1, most=SHARDS_MAX)
        if count is not None:
            return count
        if self.global_batch_size is None:
            raise DataError("A stream needs shards=: into how many shards a step is cut (or `relume run --shards`).")
        return min(SHARDS_DEFAULT, self.global_batch_size)

    def _order(self, seed: int, shards: int) -> Order:
        try:
            samples = len(self.source)
        except (TypeError, NotImplementedError) as error:
            raise DataError(f"{name_of(self.source)} does not tell its length ({error}): {ADVICE}.") from error
        batch = self.global_batch_size or 1
        if samples < 1:
            raise DataError(f"The dataset ({name_of(self.source)}) is empty: there is nothing to train on.")
        if self.drop_last and samples < batch:
            raise DataError(
                f"The dataset has {samples} samples, fewer than global_batch_size={batch}, and drop_last=True drops "
                "them all: no step is left. Make the batch smaller, or leave drop_last out."
            )
        return Order(
            samples=samples, batch=batch, shards=shards, seed=seed, shuffle=self.shuffle, drop_last=self.drop_last
        )


class BoundShards:
    """The data of a run: which samples each shard of each step holds, and the way to load them."""

    def __init__(self, settings: Shards, recipe: Recipe, order: Order | None, shards: int) -> None:
        """Made by `Shards.bind`. A stream has no order."""
        self.shards = shards
        self.steps_per_epoch = None if order is None else order.steps_per_epoch
        self._settings = settings
        self._recipe = recipe
        self._order = order

    def epoch(self, step: int) -> int:
        """Return the epoch that `step` belongs to, from 0. A stream has only one."""
        return 0 if self._order is None else self._order.epoch(step)

    def indices(self, step: int, shard: int) -> Sequence[int]:
        """Return which samples of the dataset the shard holds, in order."""
        if self._order is None:
            raise DataError("A stream has no indices: what a shard holds is known when it is loaded.")
        return self._order.indices(step, shard)

    def size(self, step: int, shard: int) -> int | None:
        """Return the number of samples in the shard: 0 if it is empty, None if only loading it can tell (a stream)."""
        return None if self._order is None else self._order.size(step, shard)

    def identity(self) -> list[str]:
        """Return what must be equal on all workers, one readable line for each thing."""
        settings, order = self._settings, self._order
        lines = [f"random seed of loading: {self._recipe.seed}", f"shards per step: {self.shards}"]
        if order is None:
            return [f"stream: {name_of(settings.source)}", *lines]
        return [
            f"dataset: {name_of(settings.source)} of {order.samples} samples",
            *lines,
            f"global batch size: {order.batch}",
            f"order: shuffled with seed {order.seed}" if order.shuffle else "order: the dataset's own",
            f"last batch if not full: {'dropped' if settings.drop_last else 'kept'}",
            f"collate_fn: {name_of(self._recipe.collate)}",
        ]

    def open(self, next_key: NextKey) -> Loader:
        """Return the loader of one loop, which prefetches what `next_key` foresees. It has to be closed."""
        return Loader(
            self._recipe,
            self._order,
            self._settings._options,  # noqa: SLF001 - one thing in two classes: before the run and in it
            next_key,
            self._settings.samples,
        )


def _refuse_others(others: Mapping[str, Any]) -> None:
    for name in others:
        if name not in _INSTEAD:
            raise TypeError(f"Shards() got an unexpected keyword argument {name!r}")
        raise DataError(f"Shards takes no {name}=: {_INSTEAD[name]}.")


def _integer(name: str, value: Any, *, least: int | None = None, most: int | None = None) -> int | None:  # noqa: ANN401
    """Return `value` as an int within its limits, None as None; raise DataError for anything else."""
    if value is None:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DataError(f"{name} has to be an int, and is {value!r} ({type(value).__name__}).")
    if (least is not None and number < least) or (most is not None and number > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise DataError(f"{name} has to be {limits}, and is {number}.")
    return number


def _function(name: str, value: _Function) -> _Function:
    if value is not None and not callable(value):
        raise DataError(f"{name} has to be a function, and is {value!r}.")
    return value


def _check_context(context: object) -> None:
    methods = torch.multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise DataError(f"multiprocessing_context has to be one of {', '.join(methods)}, and is {context!r}.")
