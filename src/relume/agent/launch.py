"""How a worker's process comes to be: its environment, what it inherits, and the worker as the agent sees it.

The first workers are fresh interpreters. Later ones are forked from the template where that is ready, since nobody who
comes back should spend two seconds of a busy core on imports; one that was refused for its numerics is started afresh.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from relume.agent.arena import Arena
from relume.agent.priority import lower_priority
from relume.agent.settings import Settings
from relume.agent.spawn import Spawner, Started, environment
from relume.agent.template import Template
from relume.agent.worker import Worker
from relume.errors import ConfigError
from relume.wire import messages

Launched = Callable[[Worker | ConfigError], None]
"""Gets the worker, or why there is none."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which worker is wanted. `began`: the run has had a view. `nice`: how far below the agent's its priority is."""

    rank: int
    life: int
    began: bool = False
    nice: int = 0


class Launcher:
    """Starts workers on this host; `template` is None where all of them start cold."""

    def __init__(self, settings: Settings, arena: Arena, spawner: Spawner, template: Template | None) -> None:
        self._settings = settings
        self._arena = arena
        self._spawner = spawner
        self._template = template

    def cold(self, order: Order) -> Worker:
        """Start a fresh interpreter. Raises `ConfigError`."""
        ours, theirs = self._connection()
        with theirs:
            try:
                started = self._spawner.spawn(
                    self._settings.command, self._variables(order, theirs), self._descriptors(theirs)
                )
            except OSError as error:
                ours.close()
                text = f"worker {order.rank} cannot be started ({error.strerror})."
                raise ConfigError(text + " Use fewer workers (--workers), or raise the limit (ulimit -a)") from error
        lower_priority(started.pid, order.nice)
        return _worker(order, started, ours)

    def launch(self, order: Order, launched: Launched, *, warm: bool = True) -> None:
        """Start a worker, from the template if it can and shall (`warm`); `launched` hears of it, at once or soon."""
        if not warm or self._template is None:
            self._cold_for(order, launched)
            return
        ours, theirs = self._connection()

        def born(started: Started | None) -> None:
            if started is not None:
                launched(_worker(order, started, ours, warm=True))
                return
            ours.close()
            self._cold_for(order, launched)

        with theirs:
            try:
                variables, descriptors = self._variables(order, theirs), self._descriptors(theirs)
                self._template.order(self._settings.command, variables, descriptors, born, nice=order.nice)
            except OSError:  # it is not ready, or cannot: that is nothing to tell
                born(None)

    def _cold_for(self, order: Order, launched: Launched) -> None:
        try:
            worker = self.cold(order)
        except ConfigError as error:
            launched(error)
        else:
            launched(worker)

    @staticmethod
    def _connection() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.settimeout(0.0)
        return ours, theirs

    def _descriptors(self, theirs: socket.socket) -> list[int]:
        return [theirs.fileno(), *self._arena.descriptors]

    def _variables(self, order: Order, theirs: socket.socket) -> dict[str, str]:
        settings = self._settings
        run = {
            **settings.environment,
            "RELUME_RUN_ID": settings.run_id,
            "RELUME_RUN_DIR": str(settings.run_dir),
            "TORCHELASTIC_RESTART_COUNT": str(order.life),
            "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
            messages.AGENT_VARIABLE: self._arena.words_for(theirs.fileno(), life=order.life, began=order.began),
        }
        if settings.shards is not None:
            run["RELUME_SHARDS"] = str(settings.shards)
        return environment(order.rank, settings.workers, threads=settings.threads, port=settings.port, run=run)


def template_for(settings: Settings, trouble: Callable[[str], None]) -> Template | None:
    """Return the template of a run whose later workers shall be forks of one."""
    if not settings.warm or not (settings.max_restarts or settings.mirror_every):
        return None
    variables = environment(0, settings.workers, threads=settings.threads, port=settings.port, run=settings.environment)
    return Template(settings.command, variables, trouble)


def _worker(order: Order, started: Started, ours: socket.socket, *, warm: bool = False) -> Worker:
    pipes = {started.out: "out", started.err: "err"}
    worker = Worker(order.rank, order.life, started.pid, -1, ours, pipes, warm=warm)
    worker.pidfd = os.pidfd_open(started.pid)
    worker.stat = os.open(f"/proc/{started.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    return worker
