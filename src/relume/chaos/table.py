"""A trial as a short table, for people."""

from __future__ import annotations

from statistics import median

from relume.chaos.comeback import Comeback
from relume.chaos.measure import Cost
from relume.chaos.trial import Result

MS = 1e6


def as_text(result: Result) -> str:
    """Return the table that `relume chaos` prints."""
    said = result.verdict
    ok = "the same, bit for bit" if result.ok else "FAILED" if said["ok"] else "DIFFERENT"
    rows = [
        ("verdict", ok),
        ("kills", f"{len(result.measured.costs)} of {result.schedule.kills}, seed {result.seed}"),
        *_rows(result.comeback),
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
        ("control excess", [excess.get(cost.who) for cost in costs]),
    ):
        known = [value for value in values if value is not None]
        if known:
            rows.append((name, f"median {_number(median(known))} ms, worst {_number(max(known))} ms"))
    lines = [f"{name:<19}{value}" for name, value in rows]
    lines += ["", _head(result), *(_line(result, cost) for cost in costs)] if costs else []
    lines += ["", *result.errors, *said["differences"][:20]] if not result.ok else []
    return "\n".join([*lines, *(f"note: {remark}" for remark in result.remarks)])


def _rows(comeback: Comeback | None) -> list[tuple[str, str]]:
    """Return the rows about coming back."""
    if comeback is None:
        return []
    rows = []
    if comeback.recoveries:
        count = sum(back.recovered for back in comeback.recoveries)
        rows.append(("recovered", f"{count} of {len(comeback.recoveries)}"))
    known = [back.full_strength_ns for back in comeback.recoveries if back.full_strength_ns is not None]
    if known:
        rows.append(("to full strength", f"median {_number(median(known))} ms, worst {_number(max(known))} ms"))
    for group in comeback.all_killed:
        times = [back.full_strength_ns for back in group if back.full_strength_ns is not None]
        came = f"{sum(back.recovered for back in group)} of {len(group)} came back"
        rows.append(("all killed", came + (f", {_number(max(times))} ms to full strength" if times else "")))
    for each in comeback.scalings:
        reached = "never" if each.reached_ns is None else f"after {_number(each.reached_ns)} ms"
        rows.append((f"scaled to {each.workers}", reached))
    beside = comeback.beside
    if beside and beside.ratio:
        text = f"{_number(beside.joining_ns)} ms beside a joiner, {_number(beside.control_ns)} beside a stranger"
        rows.append(("survivors' step", f"{text}: {beside.ratio:.2f} times as long"))
    return rows


def _head(result: Result) -> str:
    names = ("recovered", "full") if result.comeback else ("control",)
    columns = ("detected", "installed", "exposed", "redo", "raw", *names)
    times = "".join(f"{name:>10}" for name in columns) + "  (ms)"
    return f"{'worker':>8}  {'killed in':<20}{'step':>5}{'shard':>6}  {'how':<8}" + times


def _line(result: Result, cost: Cost) -> str:
    loss = result.fleet.evidence.lost[cost.who]
    how = "exact" if any(kill.who == cost.who for kill in result.schedule.exact) else "outside"
    who = f"{loss.rank}.{loss.life}" if result.comeback else str(loss.rank)
    place = f"{who:>8}  {loss.phase:<20}{_index(loss.step):>5}{_index(loss.shard):>6}  {how:<8}"
    taken = (cost.detected_ns, cost.installed_ns, cost.exposed_wait_ns, cost.redo_ns, cost.raw_excess_ns)
    texts = [_number(time) for time in taken]
    if result.comeback is None:
        texts.append(_number(result.control.excess_ns.get(cost.who) if result.control else None))
    else:
        back = next(back for back in result.comeback.recoveries if back.who == cost.who)
        texts += ["yes" if back.recovered else "NO", _number(back.full_strength_ns)]
    return place + "".join(f"{text:>10}" for text in texts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value / MS:.1f}"


def _index(value: int) -> str:
    return "-" if value < 0 else str(value)
