"""A one-way channel between two simulated processes, and what it may do to messages.

A Unix stream socket delays, and does nothing worse. Between hosts, over reconnecting transports, messages come late,
twice and out of order. The core has to survive all of it, so the discipline is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relume.simulate.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Discipline:
    """Latency in seconds; `ordered`: nothing overtakes; `doubled`: how many of a hundred come twice, as a share."""

    latency_s: tuple[float, float] = (0.00005, 0.001)
    ordered: bool = True
    doubled: float = 0.0
    stalled: float = 0.0
    """The share of messages that take `stall_s` longer."""
    stall_s: float = 0.2


class Channel:
    """Carries messages to `deliver`. While `cut`, they wait (a partition); `mend` lets them go on."""

    def __init__(self, scheduler: Scheduler, discipline: Discipline, deliver: Callable[[object], None]) -> None:
        self._scheduler = scheduler
        self._discipline = discipline
        self._deliver = deliver
        self._flight: dict[int, object] = {}
        self._sent = 0
        self._last_s = 0.0
        self._cut = False

    def send(self, message: object) -> None:
        """Send `message`."""
        self._launch(message)
        if self._discipline.doubled and self._scheduler.chance() < self._discipline.doubled:
            self._launch(message)

    def drain(self) -> None:
        """Deliver all that is on its way now: the sender is gone, and the receiver reads what is left."""
        flight, self._flight = self._flight, {}
        for message in flight.values():
            self._deliver(message)

    def cut(self) -> None:
        """Deliver nothing until it is mended."""
        self._cut = True

    def mend(self) -> None:
        """Deliver again, and what has waited first."""
        self._cut = False
        self.drain()

    def _launch(self, message: object) -> None:
        scheduler, discipline = self._scheduler, self._discipline
        delay_s = scheduler.between(*discipline.latency_s)
        if discipline.stalled and scheduler.chance() < discipline.stalled:
            delay_s += discipline.stall_s
        arrival_s = scheduler.now + delay_s
        if discipline.ordered:
            arrival_s = self._last_s = max(arrival_s, self._last_s)
        self._sent += 1
        self._flight[self._sent] = message
        scheduler.after(arrival_s - scheduler.now, self._arrive, self._sent)

    def _arrive(self, number: int) -> None:
        if not self._cut and number in self._flight:
            self._deliver(self._flight.pop(number))
