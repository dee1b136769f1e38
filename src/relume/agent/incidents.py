"""From a loss that was dealt with to a line that people and programs read.

An incident waits here until the process is reaped, so that its line can hold the wait status.
"""

from __future__ import annotations

from collections.abc import Callable

from relume.agent.arena import Arena
from relume.agent.worker import Worker
from relume.arena.progress import Moment
from relume.core.events import Incident
from relume.wire.events import Event, WorkerLost

_MOVES_TOLD_MAX = 3
_NOWHERE = Moment(counter=0, phase="joining", step=-1, shard=-1, since_ns=0, taken=-1, pid=0, killed_ns=0)


class IncidentDesk:
    """Collects incidents; `emit` gets the event, `say` the sentence.

    `find(rank, life)` returns the worker of that life, or of an earlier one that no incident has been told of yet;
    None for one that was never there.
    """

    def __init__(
        self,
        find: Callable[[int, int], Worker | None],
        arena: Arena,
        emit: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._find = find
        self._arena = arena
        self._emit = emit
        self._say = say
        self._open: list[tuple[Incident, Worker]] = []
        self.count = 0

    def open(self, incident: Incident) -> None:
        """Take an incident; its line is written when the process is reaped."""
        self.count += 1
        worker = self._find(incident.rank, incident.life)
        if worker is None:  # no process came of it, so that there is nothing to wait for
            self._say(f"worker {incident.rank} did not come: {incident.cause.text}")
            self._emit(self._line(incident, None))
            return
        self._open.append((incident, worker))
        self._say(self._sentence(incident, worker))
        self.flush()

    def flush(self) -> None:
        """Write the lines of those that are reaped; at the run's end, of all."""
        for pair in [pair for pair in self._open if pair[1].wait_status is not None]:
            self._open.remove(pair)
            self._emit(self._line(*pair))

    def _moment(self, worker: Worker) -> Moment:
        return worker.last if worker.last is not None else self._arena.moment(worker.rank)

    def _line(self, incident: Incident, worker: Worker | None) -> WorkerLost:
        moment = _NOWHERE if worker is None else self._moment(worker)
        return WorkerLost(
            rank=incident.rank,
            pid=0 if worker is None else worker.pid,
            cause=incident.cause.kind,
            text=incident.cause.text,
            evidence=incident.cause.evidence,
            wait_status=None if worker is None else worker.wait_status,
            phase=moment.phase,
            step=moment.step,
            shard=moment.shard,
            view=incident.ballot,
            moved=incident.moved,
            rung=incident.rung,
            killed_ns=moment.killed_ns,
            lost_ns=_ns(incident.lost_s),
            fenced_ns=_ns(incident.fenced_s),
            promised_ns=_ns(incident.promised_s),
            installed_ns=_ns(incident.installed_s),
            life=incident.life,
        )

    def _sentence(self, incident: Incident, worker: Worker) -> str:
        moment = self._moment(worker)
        where = f"in {moment.phase} of step {moment.step}" if moment.step >= 0 else "before the first step"
        where += f", shard {moment.shard}" if moment.shard >= 0 else ""
        moved = _moves(incident.moved)
        out = f"worker {incident.rank} (pid {worker.pid}) is out {where}: {incident.cause.text}; "
        if not incident.installed_s:
            return out + ("too few are left" if incident.promised_s else "the run ends")
        took = (incident.installed_s - incident.lost_s) * 1000
        return out + f"{moved}; view {incident.ballot[0]}.{incident.ballot[1]} after {took:.1f} ms"


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _moves(moved: dict[int, int]) -> str:
    """Say which shards went to whom, in full while that is short."""
    if not moved:
        return "nothing to recompute"
    if len(moved) <= _MOVES_TOLD_MAX:
        return ", ".join(f"shard {shard} to worker {heir}" for shard, heir in sorted(moved.items()))
    heirs = sorted(set(moved.values()))
    return f"{len(moved)} shards to worker{'s' * (len(heirs) > 1)} {', '.join(map(str, heirs))}"
