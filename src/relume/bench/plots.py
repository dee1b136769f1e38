"""The plots of a sweep, as SVG: what a step costs against the gradient's size, and against the number of workers.

matplotlib is imported here and nowhere else, and only when somebody plots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relume.bench.orders import ALONE, DDP, RELUME
from relume.bench.sweep import point_of
from relume.errors import ConfigError

COLOURS = {RELUME: "#c2410c", DDP: "#1d4ed8", ALONE: "#6b7280"}
NAMES = {RELUME: "relume", DDP: "DDP (best setting)", ALONE: "no exchange"}
NAME_POINTS = 12
GOAL = 0.80
_GRID = "#e5e7eb"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#374151",
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "text.color": "#111827",
    "svg.fonttype": "none",
    "svg.hashsalt": "relume",
    "savefig.facecolor": "white",
}

Said = dict[str, Any]
Place = Callable[[Said], float]


def check_matplotlib() -> None:
    """Raise `ConfigError` if there is no matplotlib: before a sweep, not after it."""
    try:
        import matplotlib  # noqa: F401, ICN001, PLC0415
    except ImportError as error:
        text = "plots need matplotlib, which is not installed: pip install 'relume[bench]'"
        raise ConfigError(text) from error


def plot(found: Sequence[Said], folder: Path) -> list[Path]:
    """Draw what can be drawn of the points `found` into `folder`; return the files."""
    check_matplotlib()
    files = []
    by_workers: dict[int, list[Said]] = {}
    by_size: dict[float, list[Said]] = {}
    for said in found:
        point = point_of(said)
        by_workers.setdefault(point.workers, []).append(said)
        by_size.setdefault(point.size_mb, []).append(said)
    lines = {f"{n} workers": points for n, points in sorted(by_workers.items(), reverse=True) if len(points) > 2}
    if not lines:
        lines = {f"{n} workers": points for n, points in by_workers.items() if len(points) > 1}
    if lines:
        path = folder / "step-by-size.svg"
        _draw(path, lines, lambda said: point_of(said).size_mb, "gradient (MiB of float32)", logarithmic=True)
        files.append(path)
    size, most = max(by_size.items(), key=lambda each: len({point_of(said).workers for said in each[1]}))
    if len(most) > 1:
        path = folder / "step-by-workers.svg"
        title = f"{size:g} MiB of gradient"
        _draw(path, {title: most}, lambda said: point_of(said).workers, "workers on one host", logarithmic=False)
        files.append(path)
    return files


def _draw(path: Path, lines: dict[str, list[Said]], place: Place, label: str, *, logarithmic: bool) -> None:
    """Draw a column of two panels for each of `lines`: times above, and below them relume's over DDP's."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * len(lines) if len(lines) > 1 else 6.4, 5.6), layout="constrained")
        FigureCanvasSVG(figure)
        panels = figure.subplots(2, len(lines), sharex="col", sharey="row", squeeze=False, height_ratios=(2.2, 1.0))
        for column, (title, points) in enumerate(lines.items()):
            ordered = sorted(points, key=place)
            above, below = panels[0][column], panels[1][column]
            _times(above, ordered, place)
            _ratio(below, ordered, place, named=column == len(lines) - 1)
            above.set_title(title, loc="left", fontsize=11, fontweight="bold")
            below.set_xlabel(label)
            for panel in (above, below):
                panel.grid(visible=True, color=_GRID, linewidth=0.8)
                panel.set_axisbelow(True)
            _ticks(below, [place(said) for said in ordered], logarithmic=logarithmic)
            if column == 0:
                above.set_ylabel("ms per step")
                below.set_ylabel("relume ÷ DDP")
        for column in range(len(lines)):
            if logarithmic:
                panels[0][column].set_yscale("log")
                panels[0][column].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            else:
                panels[0][column].set_ylim(bottom=0)
        figure.draw_without_rendering()  # then it is known where everything stands
        for column, points in enumerate(lines.values()):
            _names(panels[0][column], sorted(points, key=place), place)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _times(panel: Any, points: Sequence[Said], place: Place) -> None:  # noqa: ANN401 - matplotlib's Axes
    x = [place(said) for said in points]
    for work in (DDP, RELUME, ALONE):
        found = [said["interval_ms"][work] for said in points]
        y = [each["median"] for each in found]
        panel.fill_between(
            x, [each["low"] for each in found], [each["high"] for each in found], color=COLOURS[work], alpha=0.15, lw=0
        )
        panel.plot(x, y, color=COLOURS[work], marker="o", markersize=4, linewidth=1.8)


def _names(panel: Any, points: Sequence[Said], place: Place) -> None:  # noqa: ANN401
    """Write beside the end of each line whose it is, one name above the other. The axes' limits are set."""
    last, least = points[-1], float("-inf")
    ends = sorted((last["interval_ms"][work]["median"], work) for work in COLOURS)
    for value, work in ends:
        _, pixels = panel.transData.transform((place(last), value))
        at = pixels * 72 / panel.figure.dpi
        shift = max(0.0, least + NAME_POINTS - at)
        least = at + shift
        panel.annotate(
            NAMES[work], (place(last), value), xytext=(8, shift), textcoords="offset points", va="center",
            color=COLOURS[work],
        )  # fmt: skip


def _ratio(panel: Any, points: Sequence[Said], place: Place, *, named: bool) -> None:  # noqa: ANN401
    x = [place(said) for said in points]
    found = [said["relume_over_ddp"] for said in points]
    y = [each["median"] for each in found]
    errors = [[m - each["low"] for m, each in zip(y, found, strict=True)],
              [each["high"] - m for m, each in zip(y, found, strict=True)]]  # fmt: skip
    panel.axhline(1.0, color="#111827", linewidth=1.0)
    panel.axhline(GOAL, color="#111827", linewidth=0.8, linestyle=(0, (4, 3)))
    panel.errorbar(x, y, yerr=errors, color=COLOURS[RELUME], marker="o", markersize=4, linewidth=1.8, capsize=3)
    panel.set_ylim(0.0, max(1.25, 1.05 * max(each["high"] for each in found)))
    if named:
        for value, text in ((1.0, "as DDP"), (GOAL, f"goal {GOAL:g}")):
            panel.annotate(
                text, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=9, color="#374151",
            )  # fmt: skip


def _ticks(panel: Any, values: Sequence[float], *, logarithmic: bool) -> None:  # noqa: ANN401
    if logarithmic:
        panel.set_xscale("log", base=2)
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.minorticks_off()
    if logarithmic:
        panel.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    else:
        panel.set_xlim(values[0] - 0.3, values[-1] + 0.3)
