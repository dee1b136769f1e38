"""A trial as one JSON object for programs and as a short table for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from relume.chaos.measure import Cost
from relume.chaos.trial import Result
from relume.torch_check import torch_version
from relume.version import __version__
from relume.wire.events import WorkerLost

VERSION = 1
"""Of the JSON object. A field may be added within a version."""
MS = 1e6


def as_json(result: Result) -> dict[str, Any]:
    """Return the object that `relume chaos --json` prints. Lists of times are in the order of `per_kill`."""
    costs = result.measured.costs
    control = result.control
    return {
        "v": VERSION,
        "ok": result.ok,
        "kills": len(costs),
        "steps": result.verdict["steps"],
        "lost_steps": result.verdict["lost_steps"],
        "differing_bits": result.verdict["differing_bits"],
        "exposed_wait_ms": _summary([cost.exposed_wait_ns for cost in costs]),
        "redo_ms": _summary([cost.redo_ns for cost in costs]),
        "raw_excess_ms": _summary([cost.raw_excess_ns for cost in costs]),
        "control_excess_ms": _summary([control.excess_ns.get(cost.rank) for cost in costs]) if control else None,
        "control_step_ms": {name: _ms(step_ns) for name, step_ns in control.step_ns.items()} if control else None,
        "baseline_step_ms": _ms(result.measured.baseline_ns),
        "undisturbed_steps": len(result.measured.undisturbed),
        "per_kill": [_kill(result, cost) for cost in costs],
        "errors": list(result.errors),
        "remarks": control.remarks if control else [],
        "verdict": result.verdict,
        "seed": result.seed,
        "schedule": _schedule(result),
        "script": [str(result.job.script), *result.job.arguments],
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "load_1m": round(os.getloadavg()[0], 2),
            "torch": torch_version(),
            "relume": __version__,
            "shards": result.shards,
            "workers": result.job.workers,
            "threads": result.job.threads,
        },
    }


def as_text(result: Result) -> str:
    """Return the table that `relume chaos` prints."""
    said = result.verdict
    ok = "the same, bit for bit" if result.ok else "FAILED" if said["ok"] else "DIFFERENT"
    rows = [
        ("verdict", ok),
        ("kills", f"{len(result.measured.costs)} of {len(result.schedule.victims)}, seed {result.seed}"),
        ("steps", f"{said['steps']}, lost {said['lost_steps']}"),
        ("differing bits", str(said["differing_bits"])),
        ("step, undisturbed", f"{_number(result.measured.baseline_ns)} ms"),
    ]
    costs = result.measured.costs
    excess = result.control.excess_ns if result.control else {}
    for name, values in (
        ("exposed wait", [cost.exposed_wait_ns for cost in costs]),
        ("redo", [cost.redo_ns for cost in costs]),
        ("raw excess", [cost.raw_excess_ns for cost in costs]),
        ("control excess", [excess.get(cost.rank) for cost in costs]),
    ):
        known = [value for value in values if value is not None]
        if known:
            rows.append((name, f"median {_number(median(known))} ms, worst {_number(max(known))} ms"))
    lines = [f"{name:<19}{value}" for name, value in rows]
    lines += ["", f"{'worker':>6}  {'killed in':<20}{'step':>5}{'shard':>6}  {'how':<8}" + _HEAD]
    for cost in costs:
        loss, kill = _loss(result, cost), _kill(result, cost)
        place = f"{loss.rank:>6}  {loss.phase:<20}{_index(loss.step):>5}{_index(loss.shard):>6}  {kill['how']:<8}"
        taken = (cost.detected_ns, cost.installed_ns, cost.exposed_wait_ns, cost.redo_ns)
        times = (*taken, cost.raw_excess_ns, excess.get(cost.rank))
        lines.append(place + "".join(f"{_number(time):>10}" for time in times))
    lines += ["", *result.errors, *said["differences"][:20]] if not result.ok else []
    return "\n".join([*lines, *(f"note: {remark}" for remark in (result.control.remarks if result.control else ()))])


_HEAD = "".join(f"{name:>10}" for name in ("detected", "installed", "exposed", "redo", "raw", "control")) + "  (ms)"


def _kill(result: Result, cost: Cost) -> dict[str, Any]:
    loss = _loss(result, cost)
    exact = next((kill for kill in result.schedule.exact if kill.rank == cost.rank), None)
    return {
        "rank": loss.rank,
        "pid": loss.pid,
        "wait_status": loss.wait_status,
        "step": loss.step,
        "phase": loss.phase,
        "shard": loss.shard,
        "how": "exact" if exact else "outside",
        "story": exact.story if exact else "outside",
        "killed_ns": cost.killed_ns,
        "time": round(cost.killed_ns / 1e9 + result.fleet.evidence.clock_s, 6),
        "detected_ms": _ms(cost.detected_ns),
        "fenced_ms": _ms(cost.fenced_ns),
        "installed_ms": _ms(cost.installed_ns),
        "exposed_wait_ms": _ms(cost.exposed_wait_ns),
        "redo_ms": _ms(cost.redo_ns),
        "raw_excess_ms": _ms(cost.raw_excess_ns),
        "control_excess_ms": _ms(result.control.excess_ns.get(cost.rank) if result.control else None),
        "disturbed_steps": list(cost.steps),
        "moved": {str(shard): heir for shard, heir in sorted(cost.moved.items())},
    }


def _loss(result: Result, cost: Cost) -> WorkerLost:
    return next(loss for loss in result.fleet.evidence.incidents if loss.rank == cost.rank)


def _schedule(result: Result) -> dict[str, Any]:
    return {
        "exact": [{"story": kill.story, **kill.trap()} for kill in result.schedule.exact],
        "outside": [{"ranks": list(kill.ranks), "at_step": kill.at_step} for kill in result.schedule.outside],
    }


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    return {
        "median": _ms(median(known)) if known else None,
        "max": _ms(max(known)) if known else None,
        "values": [_ms(value) for value in values],
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value / MS, 3)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value / MS:.1f}"


def _index(value: int) -> str:
    return "-" if value < 0 else str(value)
