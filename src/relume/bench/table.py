"""A measurement as tables, for people: the ratio first, then what it is made of. All figures are `report`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from relume.bench.orders import ALONE, BARE, DDP, GLOO, MEMORY, RAW, RELUME
from relume.core.words import plural

Said = Mapping[str, Any]


def as_tables(said: Said) -> RenderableType:
    """Return what `relume bench step` prints of the object `said`."""
    return Group(_head(said), Text(), _steps(said), Text(), _exchange(said), Text(), _memory(said), *_notes(said))


def _head(said: Said) -> Text:
    ratio, terms = said["relume_over_ddp"], said["terms"]
    what = (
        f"{terms['model']}, {terms['gradient_mib']:g} MiB of gradient in "
        f"{plural(terms['parameter_tensors'], 'tensor')}, {plural(terms['workers'], 'worker')}, "
        f"{plural(terms['batch_per_worker'], 'sample')} each"
    )
    return Text.assemble(
        ("A step of relume takes ", "bold"),
        (f"{ratio['median']:.3f}", "bold green" if ratio["high"] < 1 else "bold yellow"),
        (" of the time of one of DDP", "bold"),
        f"  (95 %: {ratio['low']:.3f} to {ratio['high']:.3f}; {plural(terms['pairs'], 'pair')})\n{what}",
    )


def _steps(said: Said) -> Table:
    table = _table("a step", "ms", "95 %", "")
    variants = len(said["ddp_variants_ms"])
    for work, note in (
        (RELUME, "everything on: flight recorder, mirror, digests, fault checks"),
        (DDP, f"the best of {variants}: {said['ddp_variant']}" if variants > 1 else said["ddp_variant"]),
        (ALONE, "the same loop, nothing exchanged"),
    ):
        _row(table, work, said["interval_ms"][work], note)
    own = said["own_time_us"]
    _row(
        table,
        "engine's own",
        {name: own[name] / 1e3 for name in ("median", "low", "high")},
        f"relume - alone - raw; its budget is {own['budget'] / 1e3:.3f}",
    )
    return table


def _exchange(said: Said) -> Table:
    table = _table("the all-reduce", "ms", "95 %", "relume takes")
    found = said["all_reduce"]
    parts = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in found["raw_parts_ms"].items())
    _row(table, RELUME, found["relume_ms"], "relume - alone")
    for work, name in ((GLOO, "dist.all_reduce"), (RAW, f"bare kernel: {parts}"), (MEMORY, "one copy of the bytes")):
        ratio = found[f"relume_over_{work}"]
        _row(table, work.replace("_", " "), said["interval_ms"][work], f"{ratio['median']:.2f} times as long as {name}")
    return table


def _memory(said: Said) -> Table:
    table = _table("memory (PSS)", "MiB", "", "")
    arena = said["arena_mib"]
    notes = {
        RELUME: "workers {workers_mib:.0f}, agent {agent_mib:.0f}, its helpers {helpers_mib:.0f}",
        DDP: "",
        BARE: "the processes of alone and raw",
    }
    for side, note in notes.items():
        used = said["memory"][side]
        table.add_row(side, f"{used['pss_mib']:.0f}", "", note.format(**used))
    parts = "results {results:.1f}, slots {slots:.1f}, mirror {mirror:.1f}, other {other:.1f}".format(**arena)
    table.add_row("arena", f"{arena['total']:.0f}", "", f"allocated: {parts}")
    return table


def _notes(said: Said) -> list[Text]:
    close, machine, terms = said["parameters_close"], said["machine"], said["terms"]
    lines = ["the work was equal" if close["ok"] else "THE WORK WAS NOT EQUAL"]
    apart = "no number" if close["of_way"] is None else f"{close['of_way']:.1e}"
    lines[0] += f": the sides' weights differ by {apart} of the way they went, of {close['tolerance']:g} for rounding"
    lines.append(
        f"machine: {plural(machine['cpus'], 'CPU')}, load {machine['load_1m']:.1f}, torch {machine['torch']}; "
        f"idle, relume took {said['idle']['relume_cpu_percent']} % of a CPU from the others"
    )
    if terms["quick"]:
        lines.append("--quick: these figures say nothing")
    if terms["beside_every"] > 1:
        lines.append(f"alone, raw, gloo and memory pass were measured in every {terms['beside_every']}th round only")
    return [Text("\n" + "\n".join(lines))]


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(names[0])
    table.add_column(names[1], justify="right")
    table.add_column(names[2], justify="right", style="dim")
    table.add_column(names[3], overflow="fold")
    return table


def _row(table: Table, name: str, interval: Mapping[str, float], note: str) -> None:
    table.add_row(name, _number(interval["median"]), f"{_number(interval['low'])} to {_number(interval['high'])}", note)


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
