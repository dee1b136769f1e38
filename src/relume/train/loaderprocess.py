"""What a loader process does: it takes on the worker's numerics, and makes what it is asked for, the earliest first.

A loader process must not outlive its worker (fencing kills the whole process group; this is the belt to those braces),
must not answer a Ctrl-C that is meant for the run, and must compute what the worker would compute.

Requests are read by a thread as they come, so that whoever asks never waits, and the most urgent one is taken next,
whatever was asked for before. A shard that is lost in this step overtakes those that were foreseen for later ones.

This module does not know who else loads, nor what for.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import _utils as data_utils

from relume.train.loading import Recipe
from relume.train.parcels import Bench, Job
from relume.train.rng import derive

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a process that was not forked from the worker would not have from it."""

    worker_pid: int
    start_method: str
    dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    flush_denormal: bool

    @classmethod
    def here(cls, multiprocessing_context: Any) -> Conditions:  # noqa: ANN401 - a name, a context or None, as torch's
        """Return the conditions of this process, for processes that it will start with `multiprocessing_context`."""
        if isinstance(multiprocessing_context, str):
            method = multiprocessing_context
        else:
            method = (multiprocessing_context or torch.multiprocessing).get_start_method()
        return cls(
            worker_pid=os.getpid(),
            start_method=method,
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            flush_denormal=_flushes_denormals(),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Which of how many loader processes of its worker this is: what torch's `get_worker_info` tells a dataset."""

    number: int
    processes: int


def serve(
    connection: Connection, recipe: Recipe, conditions: Conditions, place: Place, inherited: Sequence[Connection]
) -> None:
    """Be a loader process until the worker hangs up. `inherited`: what a fork has of it, and must not keep open."""
    for other in inherited:
        other.close()
    settle(conditions)
    data_utils.worker._worker_info = data_utils.worker.WorkerInfo(  # noqa: SLF001 - there is no other way to say it
        place.number, place.processes, derive(recipe.seed, "loader process", place.number), recipe.source
    )
    inbox, bench = Inbox(connection), Bench(recipe)
    while (job := inbox.next()) is not None:
        packed = bench.make(job.wanted)
        try:
            connection.send(job.number)
            connection.send_bytes(packed)
        except OSError:  # nobody is there to take it
            return


def settle(conditions: Conditions) -> None:
    """Make this new process a good loader process."""
    _die_with_parent(conditions)
    # SIGTERM from the worker ends it at once and well; what else kills it is told on standard error.
    data_utils.signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]  # noqa: SLF001 - as torch's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides what a Ctrl-C means
    signal.set_wakeup_fd(-1)  # a forked one would wake the worker with its own signals
    torch.set_num_threads(1)
    if conditions.start_method != "fork":
        torch.set_default_dtype(conditions.dtype)
        torch.use_deterministic_algorithms(conditions.deterministic, warn_only=conditions.deterministic_warn_only)
        torch.set_flush_denormal(conditions.flush_denormal)


class Inbox:
    """What this process still has to do, read as it comes and handed out by urgency."""

    def __init__(self, connection: Connection) -> None:
        """Begin to read."""
        self._connection = connection
        self._jobs: list[Job] = []
        self._open = True
        self._changed = threading.Condition()
        threading.Thread(target=self._read, name="relume-requests", daemon=True).start()

    def next(self) -> Job | None:
        """Wait for the most urgent job; None once the worker has hung up, whatever is left to do."""
        with self._changed:
            while self._open and not self._jobs:
                self._changed.wait()
            return heapq.heappop(self._jobs) if self._open else None

    def _read(self) -> None:
        while self._open:
            try:
                message: Job | int | None = self._connection.recv()
            except (EOFError, OSError):
                message = None
            with self._changed:
                if isinstance(message, Job):
                    heapq.heappush(self._jobs, message)
                elif message is None:
                    self._open = False
                else:  # the number of a job that was taken back
                    self._jobs = sorted(job for job in self._jobs if job.number != message)
                self._changed.notify()


def _die_with_parent(conditions: Conditions) -> None:
    if sys.platform != "linux":
        return
    # To the kernel the parent is the thread that started this process: the one that runs the loop, so it stays.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The worker may have died before that. A fork server's children have the server for a parent, which ends with the
    # worker by itself.
    if conditions.start_method != "forkserver" and os.getppid() != conditions.worker_pid:
        os._exit(1)


def _flushes_denormals() -> bool:
    """Return whether this thread computes with denormals as zeros: torch can set it, and has no way to ask."""
    return bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0).item() == 0.0)
