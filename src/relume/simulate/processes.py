"""Simulated processes: threads that are generators, a lock, a doorbell, an inbox; and how a process ends or freezes.

A thread yields before each instruction that others could notice: a number of seconds that it takes, or something to
wait for. Between two yields nothing can come in between; at a yield anything may, the process's end included. A
killed process simply never goes on: as with SIGKILL, nothing of it runs any more, not even a `finally`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from relume.simulate.scheduler import Scheduler

Way = Generator[Any, Any, None]
"""What a thread does. Yields seconds (float) or a `Waitable`."""


class Waitable(Protocol):
    """Something that a thread can wait for."""

    def park(self, thread: Thread) -> bool:
        """Return True if `thread` may go on at once; else remember it and wake it later."""


class Process:
    """Threads that live and die together. `takes` turns a nominal duration into what it takes this time."""

    def __init__(self, scheduler: Scheduler, takes: Callable[[float], float]) -> None:
        self.scheduler = scheduler
        self.takes = takes
        self.alive = True
        self.frozen = False
        self.moment: Callable[[Thread], None] | None = None
        """Called before every instruction: here faults strike."""
        self._waiting_for_thaw: list[tuple[Thread, int, Any]] = []

    def start(self, name: str, way: Way) -> Thread:
        """Start a thread."""
        thread = Thread(self, name, way)
        thread.wake(0.0)
        return thread

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.alive = False

    def freeze(self) -> None:
        """Stop every thread where it stands (SIGSTOP, or a C call that never lets go of the interpreter)."""
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        self.frozen = False
        waiting, self._waiting_for_thaw = self._waiting_for_thaw, []
        for thread, ticket, value in waiting:
            thread.go(ticket, value)

    def keep(self, thread: Thread, ticket: int, value: object) -> None:
        """Remember what woke `thread` while everything is frozen."""
        self._waiting_for_thaw.append((thread, ticket, value))


class Thread:
    """One thread. Only the newest reason to wake it counts: an older ticket is void."""

    def __init__(self, process: Process, name: str, way: Way) -> None:
        self.process = process
        self.name = name
        self.ticket = 0
        self._ways = [way]
        self._value: object = None
        self._kept: list[object] = []
        self._scheduler = process.scheduler

    def wake(self, delay_s: float, value: object = None) -> None:
        """Have the thread go on in `delay_s`, unless something else wakes it first."""
        self._scheduler.after(delay_s, self.go, self.ticket, value)

    def detour(self, way: Way) -> None:
        """Do `way` first, then go on as before. Only from `Process.moment`."""
        self._ways.append(way)
        self._kept.append(self._value)
        self._value = None

    def turn(self, way: Way) -> None:
        """Do `way` instead of everything else. Only from `Process.moment`."""
        self._ways, self._kept, self._value = [way], [], None

    def go(self, ticket: int, value: object = None) -> None:
        """Do the next instruction, and further ones as long as nothing has to be waited for."""
        process = self.process
        if ticket != self.ticket or not process.alive:
            return
        if process.frozen:
            process.keep(self, ticket, value)
            return
        self._value = value
        if process.moment is not None:
            process.moment(self)
            if not process.alive:
                return
            if process.frozen:
                process.keep(self, ticket, self._value)
                return
        self.ticket += 1
        self._run()

    def _run(self) -> None:
        process = self.process
        while self._ways:
            value, self._value = self._value, None
            try:
                want = self._ways[-1].send(value)
            except StopIteration:
                self._ways.pop()
                self._value = self._kept.pop() if self._kept else None
                if not process.alive:
                    return
                continue
            if not process.alive:
                return
            if want.__class__ is float:
                self.wake(process.takes(want))
                return
            if not want.park(self):
                return


class Lock:
    """A mutex. Whoever waits is let in by chance, as the threads of an interpreter are."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.holder: Thread | None = None
        self._scheduler = scheduler
        self._waiting: list[Thread] = []

    def park(self, thread: Thread) -> bool:
        """Take the lock, or wait for it."""
        if self.holder is None:
            self.holder = thread
            return True
        self._waiting.append(thread)
        return False

    def release(self) -> None:
        """Let go of it."""
        self.holder = None
        if self._waiting:
            self.holder = self._waiting.pop(int(self._scheduler.chance() * len(self._waiting)))
            self.holder.wake(0.0)


class Bell:
    """A doorbell, as an eventfd is: a ring that nobody waits for is kept. `limit_s` bounds every wait."""

    def __init__(self, scheduler: Scheduler, limit_s: float, latency_s: float, deaf: float) -> None:
        self._scheduler = scheduler
        self._limit_s = limit_s
        self._latency_s = latency_s
        self._deaf = deaf
        self._rung = False
        self._waiting: tuple[Thread, int] | None = None

    def park(self, thread: Thread) -> bool:
        """Return at once if it has been rung; else wait for a ring, or the limit."""
        if self._rung:
            self._rung = False
            thread.wake(0.0)
            return False
        self._waiting = (thread, thread.ticket)
        thread.wake(self._limit_s)
        return False

    def ring(self) -> None:
        """Wake whoever waits. By chance (`deaf`) a ring is lost, which costs time and nothing else."""
        if self._deaf and self._scheduler.chance() < self._deaf:
            return
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting[0].ticket != waiting[1]:
            self._rung = True
        else:
            thread, ticket = waiting
            self._scheduler.after(self._scheduler.chance() * self._latency_s, thread.go, ticket)


class Inbox:
    """Messages that wait for one thread, in order of arrival."""

    def __init__(self) -> None:
        self._messages: deque[object] = deque()
        self._waiting: Thread | None = None

    def park(self, thread: Thread) -> bool:
        """Wait for the next message, which becomes the value of the `yield`."""
        if self._messages:
            thread.wake(0.0, self._messages.popleft())
        else:
            self._waiting = thread
        return False

    def put(self, message: object) -> None:
        """Add a message."""
        if self._waiting is None:
            self._messages.append(message)
        else:
            thread, self._waiting = self._waiting, None
            thread.wake(0.0, message)
