"""How the fleet stands, in the words that people are told, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relume.agent.worker import Worker
from relume.arena.progress import Moment
from relume.core.coordinator import Coordinator, State
from relume.core.words import plural
from relume.wire.messages import WorkerStatus


def worker_state(worker: Worker, *, inside: bool) -> str:
    """Return the word for a worker's state (`wire.messages.WorkerStatus`)."""
    if worker.wait_status == 0 and not worker.condemned:
        return "ended"
    if worker.away and worker.wait_status is None:
        return "leaving"
    if worker.condemned or worker.wait_status is not None:
        return "ended" if worker.away else "lost"
    if not worker.joined:
        return "starting"
    if inside:
        return "in"
    return "spare" if worker.level else "replaying"


def scale_refusal(core: Coordinator, workers: int, *, mirror: bool) -> str:
    """Say why the run cannot be scaled to `workers` ("": it can)."""
    most = core.seats - core.spares
    if core.state in {State.FORMING, State.CLOSED, State.ENDED}:
        return f"the run is {core.state.value}: it can be scaled from its first step to its last"
    if workers < max(1, core.min_workers):
        return f"{workers} workers are fewer than --min-workers, which is {core.min_workers}"
    if workers > len(core.party()) and not mirror:
        return "the run has no mirror (--mirror-every 0), so nobody can join it"
    if workers > most:
        room = f"there is room for {plural(most, 'worker')}"
        return f"{room}: start the run with --max-workers {workers + core.spares} or more"
    return ""


def worker_lines(
    workers: Mapping[int, Worker], core: Coordinator, moment: Callable[[int], Moment], idle_s: Callable[[int], float]
) -> tuple[WorkerStatus, ...]:
    """Return a line for each seat that was ever taken; `moment` and `idle_s` tell what a worker does, by rank."""
    forming = core.state is State.FORMING and not core.resume_step  # nobody has anything to replay
    party = core.party()
    lines = []
    for rank, worker in sorted(workers.items()):
        at = worker.last or moment(rank)
        state = worker_state(worker, inside=forming or rank in party)
        lines.append(WorkerStatus(rank, worker.pid, state, at.phase, at.step, at.shard, idle_s(rank), worker.life))
    return tuple(lines)
