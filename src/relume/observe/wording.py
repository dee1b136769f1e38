"""The sentences and figures that people read about a run, in one place so that they are the same everywhere."""

from __future__ import annotations

import os
import signal

from relume.core.words import plural
from relume.wire.events import WorkerLost

_SHORT = {
    "out_of_memory": "killed for memory",
    "raised": "its script raised",
    "hung": "hung",
    "stopped": "stopped",
    "silent": "fell silent",
    "left_early": "left early",
    "planned": "left as planned",
    "profile": "has other numerics",
    "protocol": "broke the protocol",
}


def listed(items: list[int]) -> str:
    """Return `0`, `0 and 2`, `0, 2 and 3`."""
    texts = [str(item) for item in items]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def named(ranks: list[int]) -> str:
    """Return `worker 0`, `workers 0 and 2`."""
    return f"{'worker' if len(ranks) == 1 else 'workers'} {listed(ranks)}"


def duration(seconds: float) -> str:
    """Return a time span as a person would say it: `3.4 ms`, `310 ms`, `2.1 s`, `12 s`, `3:07`, `1:02:03`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return clock(seconds)


def clock(seconds: float) -> str:
    """Return `0:34`, `12:05`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: int) -> str:
    """Return an amount of memory as a person would say it: `812 bytes`, `1.2 MB`, `34 MB`, `2.1 GB` (powers of ten)."""
    if count < 1000:
        return plural(count, "byte")
    scaled, unit = float(count), "bytes"
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 - the last one is what is left
        scaled /= 1000
        if scaled < 999.5:
            break
    return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"


def place(phase: str, step: int, shard: int) -> str:
    """Return `in backward of step 12, shard 4`."""
    if phase == "joining":
        return "before its first step"
    text = f"in {phase} of step {step}"
    return f"{text}, shard {shard}" if shard >= 0 else text


def cause_short(incident: WorkerLost) -> str:
    """Return the cause in a few words: `killed (SIGKILL)`, `exit code 3`, `hung`."""
    status = incident.wait_status
    if incident.cause == "signal" and status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed ({signal.Signals(number).name})"
        except ValueError:
            return f"killed (signal {number})"
    if incident.cause == "exit_code" and status is not None:
        return f"exit code {os.waitstatus_to_exitcode(status)}"
    return _SHORT.get(incident.cause, incident.cause)


def handled_s(incident: WorkerLost) -> float | None:
    """Return the seconds from when the agent noticed the loss until the others had a new view.

    None if there was none, as too few were left for it: then the run waited for others to come back.
    """
    return max(0, incident.installed_ns - incident.lost_ns) / 1e9 if incident.installed_ns else None


def since_kill_s(incident: WorkerLost) -> float | None:
    """Return the seconds from the kill until the new view; None if there was none, or nobody noted when it was."""
    known = incident.killed_ns and incident.installed_ns
    return max(0, incident.installed_ns - incident.killed_ns) / 1e9 if known else None


def span(seconds: float | None) -> str:
    """Return a time span, or `-` for one that is not known."""
    return "-" if seconds is None else duration(seconds)


def hand_over(incident: WorkerLost) -> str:
    """Return who recomputes what: `2 shards to 0 and 1`."""
    if not incident.moved:
        return "nothing to redo"
    return f"{plural(len(incident.moved), 'shard')} to {listed(sorted(set(incident.moved.values())))}"


def who(rank: int, life: int) -> str:
    """Return `worker 2`, or `worker 2 (life 1)` if it is not the first process with that rank."""
    return f"worker {rank} (life {life})" if life else f"worker {rank}"


def incident_line(incident: WorkerLost) -> str:
    """Return one line: who, why, where, who takes over, and how long the agent took to deal with it."""
    where = place(incident.phase, incident.step, incident.shard)
    handled = handled_s(incident)
    how = "too few are left to go on" if handled is None else f"handled in {duration(handled)}"
    return f"{who(incident.rank, incident.life)} {cause_short(incident)} {where}; {hand_over(incident)}; {how}"
