"""Loader processes: torch's own DataLoader, kept busy with the shards that this worker will want.

The DataLoader asks for one more index whenever it hands out an item. Here an index is a shard, and which shard comes
next is asked only then, so a change of view reaches the prefetching at once. If nothing is wanted at that moment, a
request for nothing goes out: the DataLoader takes an end for final, would not ask again, and keeps no more requests
under way than it could place at its start.

This module does not know what is wanted: its `feed` does.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from relume.train.loaderdeath import ADVICE, Watch
from relume.train.loaderprocess import Conditions, settle
from relume.train.loading import Recipe
from relume.train.parcels import Bench, Parcel, Wanted

GRACE_S = 1.0
"""How long a loader process may go on with what it is doing when the pool is closed."""

KILL_AFTER_S = 2.0
"""How long a loader process that was told to end may take."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What the user says about loader processes; the names are the DataLoader's."""

    num_workers: int = 0
    prefetch_factor: int = 2
    multiprocessing_context: Any = None
    pin_memory: bool = False


class Pool:
    """The loader processes of one worker, and the requests that are under way in them, first in, first out."""

    def __init__(self, recipe: Recipe, options: PoolOptions, feed: Callable[[], Wanted]) -> None:
        """Start nothing yet. `feed` is asked for the next request whenever there is room for one."""
        self.pending: deque[Wanted] = deque()
        self._recipe = recipe
        self._options = options
        self._feed = feed
        self._iterator: Iterator[Parcel] | None = None
        self._processes: list[BaseProcess] = []
        self._watch: Watch | None = None

    @property
    def running(self) -> bool:
        """Whether the processes have been started."""
        return self._iterator is not None

    def start(self) -> None:
        """Start the processes, and with them the prefetching."""
        options = self._options
        context = options.multiprocessing_context
        loader: DataLoader[Parcel] = DataLoader(
            Bench(self._recipe),  # type: ignore[arg-type] # anything with __getitem__ does
            batch_size=None,
            sampler=_Requests(self),
            num_workers=options.num_workers,
            collate_fn=_unchanged,  # type: ignore[arg-type] # without a batch size it is given the one item
            pin_memory=options.pin_memory and can_pin(),
            worker_init_fn=partial(settle, Conditions.here(context)),
            multiprocessing_context=context,
            generator=torch.Generator(),  # its base seed would be drawn from the user's generator otherwise
            prefetch_factor=options.prefetch_factor,
        )
        before = set(multiprocessing.active_children())
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of any fork beside a thread, and this worker has one that is not the user's.
                warnings.filterwarnings("ignore", r".*multi-threaded, use of fork\(\)", DeprecationWarning)
                self._iterator = iter(loader)
        finally:
            self._processes = [process for process in multiprocessing.active_children() if process not in before]
            self._watch = Watch(self._processes)

    def check(self) -> None:
        """Raise RuntimeError if a loader process has ended by itself."""
        if self._watch is not None:
            self._watch.check()

    def take(self) -> tuple[Wanted, Parcel]:
        """Wait for the oldest request under way; return it and what came of it."""
        if self._iterator is None or self._watch is None:
            raise RuntimeError("no loader process is running")
        self._watch.waiting = True
        try:
            parcel = next(self._iterator)
        except RuntimeError as error:
            if self._watch.dead():
                error.add_note(ADVICE)
            raise
        finally:
            self._watch.waiting = False
        return self.pending.popleft(), parcel

    def close(self) -> None:
        """End the processes, in a few seconds at most, whatever they are doing."""
        processes, self._processes = self._processes, []
        iterator, self._iterator = self._iterator, None
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if not processes:
            return
        for process in processes:
            process.join(0)  # if one has died, its end is told by now, and torch would tell it again while closing
        timer = threading.Timer(GRACE_S, _terminate, [processes])
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is ending and starts no thread any more
            _terminate(processes)
        try:
            # torch tells its processes to end and waits for them when the last reference goes. If a traceback holds
            # another one, this does nothing, and what follows does it all.
            del iterator
        finally:
            timer.cancel()
            self.pending.clear()
            _terminate(processes)
            deadline = time.monotonic() + KILL_AFTER_S
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join(KILL_AFTER_S)

    def _next(self) -> Wanted:
        wanted = self._feed()
        self.pending.append(wanted)
        return wanted


class _Requests:
    """The DataLoader's sampler: endless, and asked for one more whenever an item has been handed out."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __iter__(self) -> Iterator[Wanted]:
        return self

    def __next__(self) -> Wanted:
        return self._pool._next()  # noqa: SLF001 - one class in two, because the DataLoader wants an iterable


def can_pin() -> bool:
    """Return whether there is an accelerator here that page-locked memory is of use for."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type != "mps"


def _unchanged(parcel: Parcel) -> Parcel:
    """Stand in for the DataLoader's own conversion, which would turn arrays into tensors."""
    return parcel


def _terminate(processes: list[BaseProcess]) -> None:
    """Ask what still runs to end: torch makes its loader processes end well and at once when their parent says so."""
    for process in processes:
        process.terminate()
