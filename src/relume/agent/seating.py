"""Giving a seat to its next worker: when the one before is gone, with memory for its slots, and not too eagerly.

A worker that has fenced itself may still write its own words until its process ends, so that nobody gets a seat before
the last process in it was waited for (ADR 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from relume.agent.arena import Arena
from relume.agent.fence import kill_group
from relume.agent.launch import Launcher, Order
from relume.agent.worker import Worker
from relume.core.coordinator import Coordinator, State
from relume.errors import ConfigError, MemoryShortage

JOINER_NICE = 2
"""So far below the others' is the priority of a worker that comes back, until it is level."""


@dataclass(slots=True)
class Seating:
    """`welcome` gets a worker that was started, `failed(rank, life, error)` hears that there is none.

    `workers` is who had each seat last.
    """

    workers: Mapping[int, Worker]
    arena: Arena
    launcher: Launcher
    core: Coordinator
    welcome: Callable[[Worker], None]
    failed: Callable[[int, int, Exception], None]
    closed: bool = False
    _waiting: dict[int, int] = field(default_factory=dict)
    _births: set[int] = field(default_factory=set)
    _cold: set[int] = field(default_factory=set)

    def start(self, rank: int, life: int) -> None:
        """Start this life of `rank`, now or as soon as the seat is empty."""
        self._waiting[rank] = life
        self.emptied(rank)

    def emptied(self, rank: int) -> None:
        """See whether the seat is empty, and somebody waits for it. A birth takes time, and nobody is born twice."""
        before, life = self.workers.get(rank), self._waiting.get(rank)
        taken = rank in self._births or (before is not None and before.wait_status is None)
        if life is not None and not taken and not self.closed:
            self._launch(rank, life)

    def dismiss(self, rank: int) -> None:
        """End the worker in this seat, or whoever is about to come."""
        if self._waiting.pop(rank, None) is None:
            self._send_away(self.workers[rank])

    def forget(self, rank: int) -> None:
        """Whoever was to come to this seat is lost before it was there."""
        self._waiting.pop(rank, None)

    def mistrust(self, rank: int) -> None:
        """A worker of this rank was refused: what a fork inherits may differ from what a fresh start has."""
        self._cold.add(rank)

    def _launch(self, rank: int, life: int) -> None:
        try:
            self.arena.seat(rank)
        except MemoryShortage as error:
            self._waiting.pop(rank, None)
            self.failed(rank, life, error)
            return
        training = self.core.state in {State.STEADY, State.BALLOT, State.COUNTING}
        order = Order(rank, life, began=self.core.view is not None, nice=JOINER_NICE if training else 0)
        self._births.add(rank)
        self.launcher.launch(order, partial(self._on_launched, order), warm=rank not in self._cold)

    def _on_launched(self, order: Order, worker: Worker | ConfigError) -> None:
        rank = order.rank
        self._births.remove(rank)
        wanted = self._waiting.get(rank) == order.life and not self.closed
        if wanted:
            del self._waiting[rank]
        if isinstance(worker, ConfigError):
            if wanted:
                self.failed(rank, order.life, worker)
            self.emptied(rank)
            return
        self.welcome(worker)
        if not wanted:  # it was sent away before it was there; the next one comes when it is gone
            self._send_away(worker)

    @staticmethod
    def _send_away(worker: Worker) -> None:
        worker.condemned = worker.away = True
        kill_group(worker.pid)
