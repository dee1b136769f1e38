"""Loader processes of one worker, and the thread that keeps them busy.

Whenever something has changed (a shard was handed out, another view is in force), `feed` is asked what is wanted next,
and the process that has least to do gets it. A process takes the most urgent of its jobs first (`train.loaderprocess`),
so that what is wanted at once overtakes what was foreseen, however much that is. The thread takes in what comes back,
so that a process never waits for the training loop, and gives out what is wanted while the loop is busy.

Why not torch's DataLoader, whose settings these are: it gives work out when an item is taken and at no other time,
first in, first out. The shards of a dead worker would be loaded one by one, behind everything that was foreseen.

This module does not know what is wanted: its `feed` does.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing

from relume.train.loaderdeath import death_of
from relume.train.loaderprocess import Conditions, Place, serve
from relume.train.loading import Recipe, Request
from relume.train.parcels import Job, Parcel, Wanted, unpack

GRACE_S = 1.0
"""How long a loader process may go on with what it is doing when the pool is closed."""

KILL_AFTER_S = 2.0
"""How long a loader process that was told to end may take."""

LOOK_S = 1.0
"""Whoever waits for a shard looks so often whether there is still somebody to load it (Invariant 6)."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What the user says about loader processes; the names are the DataLoader's."""

    num_workers: int = 0
    prefetch_factor: int = 2
    multiprocessing_context: Any = None
    pin_memory: bool = False

    @property
    def depth(self) -> int:
        """How many shards may be under way, or there and not asked for yet."""
        return self.num_workers * self.prefetch_factor


@dataclass(eq=False, slots=True)
class _Hand:
    """A loader process as its worker sees it: the connection to it, and its jobs that are not done."""

    process: BaseProcess
    connection: Connection
    jobs: dict[int, Job] = field(default_factory=dict)
    begun: Job | None = None
    """The one that it is at, as far as can be told from here."""

    def load(self, step: int) -> tuple[int, int]:
        """Return how many jobs it will do before a new one of `step`, and how many it has."""
        return sum(job.step <= step for job in self.jobs.values()), len(self.jobs)


class Pool:
    """The loader processes, from `start` to `close`. `changed` guards everything that `feed` and `deliver` touch.

    `feed()` returns the next wanted thing that is not under way yet, or None; `deliver(wanted, parcel)` takes what came
    of it. Both are called under `changed`, `deliver` by the pool's thread.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: PoolOptions,
        feed: Callable[[], Wanted | None],
        deliver: Callable[[Wanted, Parcel], None],
    ) -> None:
        """Start nothing yet."""
        self.changed = threading.Condition()
        self._recipe, self._options = recipe, options
        self._feed, self._deliver = feed, deliver
        self._hands: list[_Hand] = []
        self._thread: threading.Thread | None = None
        self._bell: tuple[Connection, Connection] | None = None
        self._bell_lock = threading.Lock()
        self._rung = self._closing = False
        self._failure: BaseException | None = None
        self._number = 0

    @property
    def running(self) -> bool:
        """Whether the processes have been started."""
        return self._thread is not None

    def start(self) -> None:
        """Start the processes, and with them the prefetching; from the thread that runs the loop.

        What is wanted by now is under way when this returns.
        """
        self._rung = self._closing = False
        self._failure = None
        try:
            self._start_processes()
            self.hand_out()
        except BaseException:
            self._end_processes()
            raise
        device = torch.accelerator.current_device_index() if self._options.pin_memory and can_pin() else None
        self._thread = threading.Thread(target=self._run, args=(device,), name="relume-loader", daemon=True)
        self._thread.start()

    def _start_processes(self) -> None:
        options, context = self._options, self._options.multiprocessing_context
        if context is None or isinstance(context, str):
            context = torch.multiprocessing.get_context(context)
        conditions = Conditions.here(context)
        self._bell = bell = context.Pipe(duplex=False)
        for number in range(options.num_workers):
            ours, theirs = context.Pipe()
            kept = [*bell, ours, *(hand.connection for hand in self._hands)]
            inherited = kept if conditions.start_method == "fork" else []
            place = Place(number, options.num_workers)
            process = context.Process(
                target=serve, args=(theirs, self._recipe, conditions, place, inherited), daemon=True
            )
            self._hands.append(_Hand(process, ours))
            with warnings.catch_warnings():
                # Python 3.12 warns of any fork beside a thread, and this worker has one that is not the user's.
                warnings.filterwarnings("ignore", r".*multi-threaded, use of fork\(\)", DeprecationWarning)
                process.start()
            theirs.close()

    def ring(self) -> None:
        """Let the thread ask again what is wanted. Any thread may call it, whatever it holds: it never waits."""
        with self._bell_lock:
            if self._bell is not None and not self._rung:
                self._rung = True
                self._bell[1].send_bytes(b"!")

    def hand_out(self) -> None:
        """Ask what is wanted, and give it to the processes."""
        with self.changed:
            while (wanted := self._feed()) is not None:
                job = Job(wanted.step if isinstance(wanted, Request) else -1, self._number, wanted)
                self._number += 1
                hand = min(self._hands, key=partial(_Hand.load, step=job.step))
                hand.jobs[job.number] = job
                hand.begun = hand.begun or job
                self._send(hand, job)

    def take_back(self, key: tuple[int, int], patience_s: float) -> bool:
        """Take back the request for a shard if no process begins with it soon; False if one does. Under `changed`."""
        deadline = time.monotonic() + patience_s
        while (found := self._waiting(key)) is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                hand, job = found
                del hand.jobs[job.number]
                self._send(hand, job.number)
                return True
            self.check()
            self.changed.wait(left_s)
        return False

    def _waiting(self, key: tuple[int, int]) -> tuple[_Hand, Job] | None:
        """Return the request for a shard that no process has begun with, and who has it."""
        for hand in self._hands:
            for job in hand.jobs.values():
                if job is not hand.begun and isinstance(job.wanted, Request) and job.wanted.key == key:
                    return hand, job
        return None

    def wait(self) -> None:
        """Wait, under `changed`, until something has changed. Raises what went wrong, if something did."""
        self.check()
        self.changed.wait(LOOK_S)
        self.check()

    def check(self) -> None:
        """Raise RuntimeError if a loader process has ended by itself, or whatever else has ended the loading."""
        if self._failure is None and self._thread is not None and not self._thread.is_alive():
            self._failure = RuntimeError("the thread of the loader processes has ended: this is a defect in relume")
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the processes, in a few seconds at most, whatever they are doing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closing = True
        self.ring()
        thread.join(GRACE_S)
        if thread.is_alive():  # it waits for the rest of a parcel, whose sender stands still
            _kill([hand.process for hand in self._hands])
            thread.join(KILL_AFTER_S)
        self._end_processes()

    def _end_processes(self) -> None:
        with self._bell_lock:
            bell, self._bell = self._bell, None
        hands, self._hands = self._hands, []
        for connection in (*(bell or ()), *(hand.connection for hand in hands)):
            connection.close()  # which tells the process to end
        processes = [hand.process for hand in hands if hand.process.pid is not None]
        _join(processes, GRACE_S)
        for process in processes:
            if process.is_alive():
                process.terminate()  # torch makes its loader processes end well and at once when their parent says so
        _join(processes, KILL_AFTER_S)
        _kill(processes)

    # The thread ---------------------------------------------------------------------------------------------

    def _run(self, device: int | None) -> None:
        try:
            if device is not None:
                torch.accelerator.set_device_index(device)
            while not self._closing:
                self.hand_out()
                self._take_in(pinned=device is not None)
        except BaseException as error:  # noqa: BLE001 - whoever waits for a shard raises it
            with self.changed:
                self._failure = error
                self.changed.notify_all()

    @staticmethod
    def _send(hand: _Hand, message: Job | int) -> None:
        try:
            hand.connection.send(message)
        except OSError:
            raise death_of(hand.process) from None

    def _take_in(self, *, pinned: bool) -> None:
        """Wait for parcels, or for the bell, and take in what has come."""
        assert self._bell is not None
        bell = self._bell[0]
        by_connection = {hand.connection: hand for hand in self._hands}
        by_sentinel = {hand.process.sentinel: hand for hand in self._hands}
        for ready in wait([bell, *by_connection, *by_sentinel]):
            if ready is bell:
                with self._bell_lock:
                    bell.recv_bytes()
                    self._rung = False
            elif isinstance(ready, int):
                hand = by_sentinel[ready]
                if not hand.connection.poll():  # what it has made before it ended counts
                    raise death_of(hand.process)
            else:
                self._take_parcel(by_connection[ready], pinned=pinned)  # type: ignore[index] # it is one of these

    def _take_parcel(self, hand: _Hand, *, pinned: bool) -> None:
        try:
            number = hand.connection.recv()
            packed = hand.connection.recv_bytes()
        except (EOFError, OSError):
            raise death_of(hand.process) from None
        parcel = unpack(packed, pinned=pinned)
        with self.changed:
            job = hand.jobs.pop(number, None)
            hand.begun = min(hand.jobs.values(), default=None)
            if job is not None:  # else it was taken back, too late
                self._deliver(job.wanted, parcel)
            self.changed.notify_all()


def can_pin() -> bool:
    """Return whether there is an accelerator here that page-locked memory is of use for."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type != "mps"


def _join(processes: list[BaseProcess], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join(KILL_AFTER_S)
