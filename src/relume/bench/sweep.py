"""Many measurements: what a step costs with more and more gradient, and with more and more workers.

Each point is a measurement of its own, in a run of its own. They are written down one by one, so that a sweep that was
ended goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relume.errors import ConfigError

FILE = "sweep.json"
SIZES_MB, SIZE_WORKERS = (1.0, 4.0, 16.0, 64.0), (4, 2)
WORKERS, WORKERS_MB = (1, 2, 3, 4, 5, 6, 7, 8), 16.0
QUICK_SIZES_MB, QUICK_WORKERS = (0.25, 1.0), (1, 2)
VERSION = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement that is wanted."""

    workers: int
    size_mb: float

    def __str__(self) -> str:
        return f"{self.size_mb:g} MiB, {self.workers} worker{'s' * (self.workers > 1)}"


def points(*, quick: bool) -> list[Point]:
    """Return all points, each once: over sizes for two numbers of workers, over workers for one size."""
    if quick:
        wanted = [Point(2, size) for size in QUICK_SIZES_MB] + [Point(n, QUICK_SIZES_MB[-1]) for n in QUICK_WORKERS]
    else:
        wanted = [Point(n, size) for n in SIZE_WORKERS for size in SIZES_MB]
        wanted += [Point(n, WORKERS_MB) for n in WORKERS]
    return list(dict.fromkeys(wanted))


class Notebook:
    """What a sweep has found so far, in `folder`/sweep.json."""

    def __init__(self, folder: Path, *, go_on: bool) -> None:
        self.path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        self.found: list[dict[str, Any]] = self._read() if go_on and self.path.exists() else []

    def has(self, point: Point) -> bool:
        """Return True if `point` is measured."""
        return any(point_of(said) == point for said in self.found)

    def add(self, said: dict[str, Any]) -> None:
        """Write down what a measurement said."""
        self.found.append(said)
        text = json.dumps({"v": VERSION, "points": self.found}, indent=1)
        beside = self.path.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.replace(self.path)

    def _read(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = json.loads(self.path.read_text())["points"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path} is no sweep's file: move it away, or leave out --resume") from error
        return found


def point_of(said: dict[str, Any]) -> Point:
    """Return which point a measurement is."""
    return Point(said["terms"]["workers"], said["terms"]["size_mb"])


def sweep(
    notebook: Notebook, wanted: Sequence[Point], one: Callable[[Point], dict[str, Any]]
) -> Iterator[tuple[Point, dict[str, Any]]]:
    """Measure what is missing with `one`, write it down, and yield it."""
    for point in wanted:
        if not notebook.has(point):
            said = one(point)
            notebook.add(said)
            yield point, said
