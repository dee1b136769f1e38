"""How the fleet stands, in the words that people are told, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relume.agent.worker import Worker
from relume.core.coordinator import Coordinator, State


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
    if workers > most:
        return f"there is room for {most} workers: start the run with --max-workers {workers + core.spares} or more"
    if workers > core.workers and not mirror:
        return "the run has no mirror (--mirror-every 0), so nobody can join it"
    return ""


def other_script(wrote: Mapping[str, Any], now: Mapping[str, Any], terms: Sequence[str]) -> str:
    """Say what makes this script another than the one that wrote a checkpoint ("": nothing).

    `wrote` and `now` are the facts of both runs, `terms` what a worker of this one stands for. How many steps there
    shall be may change, and so may the machine, which is told elsewhere.
    """
    before = _own(wrote.get("terms", ()), wrote.get("numerics", {}))
    after = _own(terms, now.get("numerics", {}))
    for old, new in zip(before, after, strict=False):
        if old != new:
            return f"is of another script: `{old}` is now `{new}`. {_OTHER}"
    if before and len(before) != len(after):
        return f"is of another script: it had {len(before)} lines of terms, this one has {len(after)}. {_OTHER}"
    return ""


_OTHER = (
    "To go on bit for bit, run the script as it was; to begin another run from these weights, "
    "`relume checkpoint export` them"
)


def _own(terms: Sequence[str], numerics: Mapping[str, str]) -> list[str]:
    machine = {f"{name}: {value}" for name, value in numerics.items()}
    return [term for term in terms if term not in machine and not term.startswith("total: ")]
