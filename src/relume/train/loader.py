"""Shards by name, for the engine: `get(step, shard)` returns the batch, wherever it was loaded.

With loader processes most shards are there before they are asked for. After a death this worker takes over shards that
nobody foresaw, and those are loaded right here, to the same bits (Invariant 2). What was prefetched for a step that has
gone by is dropped.

This module does not know who else is in the run: `next_key` tells it what to prefetch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relume.errors import BatchError, DataError
from relume.train.batches import align, count_samples, pin
from relume.train.loading import Recipe, Request
from relume.train.order import Order
from relume.train.parcels import Errand, Parcel, Wanted
from relume.train.pool import Pool, PoolOptions, can_pin
from relume.train.structure import Structure, difference, structure_of

LOOK_AHEAD = 1024
"""How many keys foreseeing looks past (they are there already, or empty) before it rests until it is asked again."""

Key = tuple[int, int]
"""(step, shard)."""

NextKey = Callable[[Key | None], Key | None]
"""From the newest key that prefetching has reached (None: from none) to the next one that this worker will want.

None means that there is nothing more to foresee for now. It may answer differently at any time.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A shard's batch, and how many samples are in it: 0 (and no batch) if the shard is empty, None if unknown."""

    batch: Any
    samples: int | None


class Loader:
    """The data of one `run.steps` loop of one worker."""

    def __init__(
        self,
        recipe: Recipe,
        order: Order | None,
        options: PoolOptions,
        next_key: NextKey,
        samples: Callable[[Any], int] | None = None,
    ) -> None:
        """Start nothing yet: the first `get` or `fingerprint` starts the loader processes. A stream has no order."""
        self._recipe = recipe
        self._order = order
        self._next_key = next_key
        self._samples = samples
        self._pool = Pool(recipe, options, self._feed) if options.num_workers else None
        self._pin = options.pin_memory and can_pin()
        self._structure: Structure | None = None
        self._restart()

    def _restart(self) -> None:
        self._step = 0
        self._previous: Key | None = None
        self._errands: list[Errand] = []
        self._arrived: dict[Key, Parcel] = {}
        self._served: set[Key] = set()

    def get(self, step: int, shard: int) -> Loaded:
        """Return the shard of a step, waiting for it if it is being loaded.

        Raises BatchError if the batch is not built like the first one, and whatever the dataset raises.
        """
        size = None if self._order is None else self._order.size(step, shard)
        if size == 0:
            return Loaded(None, 0)
        self._enter(step)
        batch = align(self._obtain((step, shard)))
        self._served.add((step, shard))
        if batch is None:
            if self._order is None:
                return Loaded(None, 0)
            raise BatchError(f"collate_fn returned None for shard {shard} of step {step}: it has to return the batch.")
        self._check_structure(batch, step, shard)
        samples = self._count(batch, step, shard) if size is None else size
        return Loaded(batch, samples) if samples != 0 else Loaded(None, 0)

    def fingerprint(self) -> str:
        """Return the digest of the dataset's sample 0, made where samples are loaded; empty for a stream."""
        if self._pool is None or self._pool.running or self._recipe.stream:
            return self._recipe.fingerprint()
        self._errands.append(Errand.FINGERPRINT)
        self._pool.start()
        while True:
            wanted, parcel = self._pool.take()
            if wanted is Errand.FINGERPRINT:
                return str(parcel.open())
            self._keep(wanted, parcel)

    def close(self) -> None:
        """End the loader processes, in a few seconds at most. A `get` after it starts anew."""
        if self._pool is not None:
            self._pool.close()
        self._restart()

    def _enter(self, step: int) -> None:
        """Forget what was foreseen for earlier steps."""
        if step == self._step:
            return
        self._step = step
        self._arrived = {key: parcel for key, parcel in self._arrived.items() if key[0] >= step}
        self._served = {key for key in self._served if key[0] >= step}

    def _obtain(self, key: Key) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        """Return the batch of `key` from a loader process if one has it or works on it, else load it here."""
        if self._pool is not None:
            self._advance(self._pool)
            while key not in self._arrived and self._is_pending(key):
                self._keep(*self._pool.take())
            if key in self._arrived:
                return self._arrived.pop(key).open()
            # Not foreseen, so the view has changed. Go on foreseeing from here, for there may be more of the kind.
            self._previous = key
        batch = self._recipe.load(self._request(key))
        return pin(align(batch)) if self._pin else batch

    def _advance(self, pool: Pool) -> None:
        """Take what nobody wants off the head of the queue, so that what is wanted now finds room in it."""
        if not pool.running:
            pool.start()
        pool.check()
        for _ in range(len(pool.pending)):
            head = pool.pending[0]
            if isinstance(head, Request) and head.step >= self._step:
                break
            self._keep(*pool.take())

    def _keep(self, wanted: Wanted, parcel: Parcel) -> None:
        if isinstance(wanted, Request) and wanted.step >= self._step:
            self._arrived[wanted.step, wanted.shard] = parcel

    def _feed(self) -> Wanted:
        """Return what a loader process should make next: asked by the pool when it has room for one more."""
        if self._errands:
            return self._errands.pop()
        key = self._previous
        for _ in range(LOOK_AHEAD):
            key = self._next_key(key)
            if key is None:
                break
            if key[0] >= self._step and not self._is_known(key):
                request = self._request(key)
                if request.indices is None or len(request.indices):
                    self._previous = key
                    return request
        return Errand.NOTHING

    def _is_known(self, key: Key) -> bool:
        return key in self._arrived or key in self._served or self._is_pending(key)

    def _is_pending(self, key: Key) -> bool:
        pending = self._pool.pending if self._pool is not None else ()
        return any(isinstance(wanted, Request) and (wanted.step, wanted.shard) == key for wanted in pending)

    def _request(self, key: Key) -> Request:
        return Request(*key, None if self._order is None else self._order.indices(*key))

    def _check_structure(self, batch: object, step: int, shard: int) -> None:
        structure = structure_of(batch)
        if self._structure is None:
            self._structure = structure
        elif where := difference(self._structure, structure):
            raise BatchError(
                f"The batch of shard {shard} of step {step} is not built like the first one: {where}. Every batch "
                "needs the same keys, containers, types and dtypes (sizes may vary): see the dataset and collate_fn."
            )

    def _count(self, batch: object, step: int, shard: int) -> int | None:
        """Return how many samples a stream's batch has."""
        if self._samples is None:
            return count_samples(batch)
        said = self._samples(batch)
        try:
            count = operator.index(said)
        except TypeError:
            count = -1
        if count < 0:
            raise DataError(
                f"samples= returned {said!r} for shard {shard} of step {step}: it has to return the number of samples "
                "in the batch, an int that is not negative."
            )
        return count
