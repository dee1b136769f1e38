"""Shards by name, for the engine: `get(step, shard)` returns the batch, wherever it was loaded.

With loader processes most shards are there before they are asked for: those of the next steps, in the order in which
they will be needed, as far as there is room for them. When another view is in force (`look`), what it gives this worker
in the step that is under way is given out at once, to all processes, and goes before what was foreseen for later ones.
If they are all busy when such a shard is asked for, it is loaded right here, to the same bits (Invariant 2), and so is
what nobody foresaw. What was prefetched for a step that has gone by is dropped.

This module does not know who else is in the run: `next_key` tells it what to prefetch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relume.errors import BatchError, DataError
from relume.train.batches import Signature, align, count_samples, pin, signature
from relume.train.loading import Recipe, Request
from relume.train.order import Order
from relume.train.parcels import Errand, Parcel, Wanted
from relume.train.pool import Pool, PoolOptions, can_pin
from relume.train.structure import Structure, difference, structure_of

LOOK_AHEAD = 1024
"""How many keys foreseeing looks past (they are there already, or empty) before it rests until it is asked again."""

PATIENCE_S = 0.002
"""How long a loader process may take to begin with a shard that was lost, before whoever waits for it loads it."""

Key = tuple[int, int]
"""(step, shard)."""

NextKey = Callable[[Key | None], Key | None]
"""From the newest key that prefetching has reached to the next one that this worker will want.

None: from the step that is under way. (step, -1): from the beginning of that step. None in return means that there is
nothing more to foresee for now. It may answer differently at any time, and is called in a thread of the loader's.
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
        self._depth = options.depth
        self._pool = Pool(recipe, options, self._feed, self._deliver) if options.num_workers else None
        self._pin = options.pin_memory and can_pin()
        self._alike: Signature | None = None
        self._structure: Structure | None = None
        self._restart()

    def _restart(self) -> None:
        self._step = 0
        self._previous: Key | None = None
        self._look_again = False
        self._errands: list[Errand] = []
        self._sample: Parcel | None = None
        self._arrived: dict[Key, Parcel] = {}
        self._pending: set[Key] = set()
        self._served: set[Key] = set()
        self._taken_over: set[Key] = set()
        self._passed = False

    def get(self, step: int, shard: int) -> Loaded:
        """Return the shard of a step, waiting for it if it is being loaded.

        Raises BatchError if the batch is not built like the first one, and whatever the dataset raises.
        """
        key, size = (step, shard), None if self._order is None else self._order.size(step, shard)
        if size == 0:
            return Loaded(None, 0)
        batch = self._load(self._request(key)) if self._pool is None else self._obtain(self._pool, key)
        if batch is None:
            if self._order is None:
                return Loaded(None, 0)
            raise BatchError(f"collate_fn returned None for shard {shard} of step {step}: it has to return the batch.")
        self._check_structure(batch, step, shard)
        samples = self._count(batch, step, shard) if size is None else size
        return Loaded(batch, samples) if samples != 0 else Loaded(None, 0)

    def look(self) -> None:
        """Foresee again from the step that is under way: another view is in force, or is going to be.

        Any thread may call it, at any time; it waits for nothing.
        """
        self._look_again = True
        if self._pool is not None:
            self._pool.ring()

    def fingerprint(self) -> str:
        """Return the digest of the dataset's sample 0, made where samples are loaded; empty for a stream.

        From here on the loader processes are there.
        """
        pool = self._pool
        if pool is None or self._recipe.stream:
            if pool is not None and not pool.running:
                pool.start()
            return self._recipe.fingerprint()
        with pool.changed:
            self._sample, self._errands = None, [Errand.FINGERPRINT]
            self._begin(pool)
            pool.hand_out()
            while self._sample is None:
                pool.wait()
            return str(self._sample.open())

    def close(self) -> None:
        """End the loader processes, in a few seconds at most. A `get` after it starts anew."""
        if self._pool is not None:
            self._pool.close()
        self._restart()

    # In the training thread ---------------------------------------------------------------------------------

    def _load(self, request: Request) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        batch = align(self._recipe.load(request))
        return pin(batch) if self._pin else batch

    def _obtain(self, pool: Pool, key: Key) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        """Return the batch of `key` from a loader process if one has it or works on it, else load it here."""
        with pool.changed:
            self._enter(key[0])
            self._begin(pool)
            if key not in self._arrived and key not in self._pending:
                self._look_again = True  # the view has changed, and nobody has told
                pool.hand_out()
            if key in self._taken_over and pool.take_back(key, PATIENCE_S):
                self._pending.discard(key)  # all processes are in the middle of something: this one is not
            self._served.add(key)
            while key in self._pending:
                pool.wait()
            parcel = self._arrived.pop(key, None)
            pool.hand_out()  # there is room for one more
            if parcel is not None:
                return parcel.open()
            request = self._request(key)
        return self._load(request)

    def _enter(self, step: int) -> None:
        """Forget what was foreseen for earlier steps."""
        if step != self._step:
            self._step = step
            self._arrived = {key: parcel for key, parcel in self._arrived.items() if key[0] >= step}
            self._served = {key for key in self._served if key[0] >= step}
            self._taken_over.clear()

    @staticmethod
    def _begin(pool: Pool) -> None:
        """See to it that the loader processes are there."""
        if pool.running:
            pool.check()
        else:
            pool.start()

    # Under the pool's `changed`, in either thread -----------------------------------------------------------

    def _feed(self) -> Wanted | None:
        """Return what a loader process should make next, if there is room for one more."""
        if self._errands:
            return self._errands.pop()
        if self._look_again:
            self._look_again = False
            self._passed = self._previous is not None and self._previous[0] > self._step
            self._previous = (self._step, -1) if self._served else None
            self._forget_unwanted()
        key = self._previous
        for _ in range(LOOK_AHEAD):
            key = self._next_key(key)
            if key is None:
                break
            if key[0] < self._step or self._is_known(key):
                continue
            taken_over = self._passed and key[0] == self._step
            if not self._has_room(key[0], among=self._taken_over if taken_over else None):
                break
            request = self._request(key)
            if request.indices is None or len(request.indices):
                self._previous = key
                self._pending.add(key)
                if taken_over:
                    self._taken_over.add(key)
                return request
        return None

    def _forget_unwanted(self) -> None:
        """Make room: what is held, or under way, and has gone to somebody else is not going to be asked for."""
        held = self._arrived.keys() | self._pending
        newest = max((step for step, _ in held), default=-1)
        wanted, key, reached = set(self._served), self._previous, -1
        for _ in range(LOOK_AHEAD):
            key = self._next_key(key)
            reached = newest + 1 if key is None else key[0]
            if key is None or reached > newest:
                break
            wanted.add(key)
        for key in held:
            if key[0] < reached and key not in wanted:
                self._arrived.pop(key, None)
                self._pending.discard(key)

    def _has_room(self, step: int, among: set[Key] | None) -> bool:
        """Whether another shard of `step` may be under way: what is needed later does not stand in its way.

        Of what is taken over in the middle of a step as much may be there beside the rest (`among` itself only).
        """
        held = [key for keys in (self._pending, self._arrived) for key in keys if among is None or key in among]
        return sum(key[0] <= step for key in held) < self._depth

    def _deliver(self, wanted: Wanted, parcel: Parcel) -> None:
        if isinstance(wanted, Request):
            key = (wanted.step, wanted.shard)
            if key in self._pending and wanted.step >= self._step:
                self._arrived[key] = parcel
            self._pending.discard(key)
        else:
            self._sample = parcel

    def _is_known(self, key: Key) -> bool:
        return key in self._arrived or key in self._served or key in self._pending

    def _request(self, key: Key) -> Request:
        return Request(*key, None if self._order is None else self._order.indices(*key))

    # Checks -------------------------------------------------------------------------------------------------

    def _check_structure(self, batch: object, step: int, shard: int) -> None:
        alike = signature(batch)
        if alike is not None and alike == self._alike:
            return
        structure = structure_of(batch)
        if self._structure is None:
            self._structure = structure
        elif where := difference(self._structure, structure):
            raise BatchError(
                f"The batch of shard {shard} of step {step} is not built like the first one: {where}. Every batch "
                "needs the same keys, containers, types and dtypes (sizes may vary): see the dataset and collate_fn."
            )
        self._alike = alike

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
