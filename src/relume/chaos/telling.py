"""What came out of the demo, in the words of a person who has never heard of views or shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from relume.chaos.measure import Cost
from relume.chaos.trial import Result, named
from relume.core.words import plural
from relume.observe.wording import duration, listed

_DIFFERENCES_MAX = 10


def tell(result: Result, state: Path, console: Console) -> None:
    """Print the verdict on `result`; `state` is the file with the original's final state."""
    console.print(_kills(result))
    console.print()
    console.print(_figures(result, state))
    console.print()
    for line in (*result.errors, *result.verdict["differences"][:_DIFFERENCES_MAX]):
        console.print(Text(f"wrong: {line}", "red"))
    console.print(Text(closing_sentence(result), "bold green" if result.ok else "bold red"))


def closing_sentence(result: Result) -> str:
    """Say what it all means."""
    costs, workers = result.measured.costs, result.job.workers
    if not result.ok:
        what = "nothing differs, but not all went as it should" if result.verdict["ok"] else "something differs"
        return f"FAILED: {what} (see above). Please report it, with the records."
    died = f"{len(costs)} of {workers} workers {'was' if len(costs) == 1 else 'were'} killed without warning"
    worst = duration(max(cost.exposed_wait_ns for cost in costs) / 1e9)
    others = "The other one" if workers == 2 else "The others"
    when = "after" if len(costs) == 1 else "each time after"
    return (
        f"{died}. {others} went on, {when} a wait of {worst} at most; {_returned(result)}no step was lost, and the "
        "trained model is, bit for bit, the one that nobody disturbed."
    )


def _returned(result: Result) -> str:
    """Say who came back, if anybody did."""
    backs = result.comeback.recoveries if result.comeback else ()
    count = sum(back.recovered for back in backs)
    if not count:
        return ""
    if count < len(backs):
        return f"{count} of them came back and took part again; "
    return "the dead one came back and took part again; " if count == 1 else "all of them came back; "


def _kills(result: Result) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for side in ("left", "left", "right", "right", "right", "left", "right"):
        table.add_column(no_wrap=True, justify=side)
    headers = ("killed", "while in", "step", "others waited", "recomputing", "by", "back after")
    table.add_row(*(Text(header, "bright_black") for header in headers))
    losses = result.fleet.evidence.lost
    for cost in result.measured.costs:
        loss = losses[cost.who]
        doing = f"{loss.phase}, shard {loss.shard}" if loss.shard >= 0 else loss.phase
        heirs = listed(sorted(set(cost.moved.values()))) if cost.moved else "-"
        redo = duration(cost.redo_ns / 1e9) if cost.moved else "nothing"
        table.add_row(named(cost.who), doing, str(loss.step), _wait(cost), redo, heirs, _back(result, cost))
    return table


def _back(result: Result, cost: Cost) -> str:
    """Return how long it took until the victim's place was filled, and whoever filled it worked."""
    backs = result.comeback.recoveries if result.comeback else ()
    worked = next((back.worked_ns for back in backs if back.who == cost.who and back.recovered), None)
    return "-" if worked is None else duration(worked / 1e9)


def _wait(cost: Cost) -> str:
    return duration(cost.exposed_wait_ns / 1e9)


def _figures(result: Result, state: Path) -> RenderableType:
    said, costs = result.verdict, result.measured.costs
    table = Table.grid(padding=(0, 2))
    table.add_row("kills", f"{len(costs)} of {plural(result.job.workers, 'worker')}")
    table.add_row("steps lost", f"{said['lost_steps']} of {said['steps']}")
    if costs:
        table.add_row("exposed wait", _spread([cost.exposed_wait_ns for cost in costs], result.measured.baseline_ns))
    bits = "unknown: there is nothing to compare" if said["differing_bits"] is None else str(said["differing_bits"])
    size = f" in {state.stat().st_size / 1e6:.1f} MB of weights and optimizer state" if state.is_file() else ""
    table.add_row("differing bits", Text(bits + size, "bold"))
    return table


def _spread(waits_ns: Sequence[int], step_ns: float | None) -> str:
    text = f"median {duration(median(waits_ns) / 1e9)}, worst {duration(max(waits_ns) / 1e9)}"
    return f"{text} (an undisturbed step takes {duration(step_ns / 1e9)})" if step_ns is not None else text
