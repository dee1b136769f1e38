"""A trial as one JSON object, for programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from relume.chaos.beside import as_ms
from relume.chaos.comeback import Comeback
from relume.chaos.evidence import Who
from relume.chaos.measure import Cost
from relume.chaos.schedule import Action, Outside, Pick, Rescale
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
        **(_comeback(result.comeback) if result.comeback else {}),
        "steps": result.verdict["steps"],
        "lost_steps": result.verdict["lost_steps"],
        "differing_bits": result.verdict["differing_bits"],
        "exposed_wait_ms": _summary([cost.exposed_wait_ns for cost in costs]),
        "redo_ms": _summary([cost.redo_ns for cost in costs]),
        "raw_excess_ms": _summary([cost.raw_excess_ns for cost in costs]),
        "control_excess_ms": _summary([control.excess_ns.get(cost.who) for cost in costs]) if control else None,
        "control_step_ms": {name: _ms(step_ns) for name, step_ns in control.step_ns.items()} if control else None,
        "baseline_step_ms": _ms(result.measured.baseline_ns),
        "undisturbed_steps": len(result.measured.undisturbed),
        "per_kill": [_kill(result, cost) | _back(result, cost.who) for cost in costs],
        "errors": list(result.errors),
        "remarks": result.remarks,
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


def _comeback(comeback: Comeback) -> dict[str, Any]:
    """Return what is told of a run whose workers came back."""
    beside = comeback.beside
    return {
        "recovered": sum(back.recovered for back in comeback.recoveries),
        "kill_to_full_strength_ms": _summary([back.full_strength_ns for back in comeback.recoveries]),
        "survivors_step_ms": as_ms(beside) if beside else None,
        "survivors_step_ratio": round(beside.ratio, 4) if beside and beside.ratio else None,
        "survivors_steps": {"joining": beside.joining_steps, "control": beside.control_steps} if beside else None,
        "kill_all": [
            {
                "killed": len(group),
                "recovered": sum(back.recovered for back in group),
                "full_strength_ms": max((_ms(back.full_strength_ns) or 0.0 for back in group), default=None),
            }
            for group in comeback.all_killed
        ],
        "scale": [{"workers": each.workers, "reached_ms": _ms(each.reached_ns)} for each in comeback.scalings],
    }


def _back(result: Result, who: Who) -> dict[str, Any]:
    """Return what is told of how one victim's place was taken."""
    backs = result.comeback.recoveries if result.comeback else ()
    back = next((back for back in backs if back.who == who), None)
    if back is None:
        return {}
    return {
        "member": back.member,
        "recovered": back.recovered,
        "missing": back.missing,
        "heir": None if back.heir is None else list(back.heir),
        "warm": back.heir in result.fleet.evidence.warm,
        "respawned_ms": _ms(back.respawned_ns),
        "level_ms": _ms(back.level_ns),
        "admitted_ms": _ms(back.admitted_ns),
        "worked_ms": _ms(back.worked_ns),
        "full_strength_ms": _ms(back.full_strength_ns),
    }


def _kill(result: Result, cost: Cost) -> dict[str, Any]:
    loss = _loss(result, cost)
    exact = next((kill for kill in result.schedule.exact if kill.who == cost.who), None)
    return {
        "rank": loss.rank,
        "life": loss.life,
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
        "control_excess_ms": _ms(result.control.excess_ns.get(cost.who) if result.control else None),
        "disturbed_steps": list(cost.steps),
        "moved": {str(shard): heir for shard, heir in sorted(cost.moved.items())},
    }


def _loss(result: Result, cost: Cost) -> WorkerLost:
    return result.fleet.evidence.lost[cost.who]


def _schedule(result: Result) -> dict[str, Any]:
    return {
        "exact": [{"story": kill.story, **kill.trap()} for kill in result.schedule.exact],
        "outside": [_action(action) for action in result.schedule.outside],
    }


def _action(action: Action) -> dict[str, Any]:
    if isinstance(action, Outside):
        return {"ranks": list(action.ranks), "at_step": action.at_step}
    if isinstance(action, Pick):
        return {"count": action.count, "at_step": action.at_step}
    if isinstance(action, Rescale):
        return {"workers": action.workers, "at_step": action.at_step}
    return {"all": True, "at_step": action.at_step}


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    return {
        "median": _ms(median(known)) if known else None,
        "max": _ms(max(known)) if known else None,
        "values": [_ms(value) for value in values],
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value / MS, 3)
