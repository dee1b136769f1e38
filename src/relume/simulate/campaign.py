"""Many histories, one after the other, and what they showed together."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from relume.simulate.checkers import Violation
from relume.simulate.coverage import Coverage
from relume.simulate.settings import Settings, draw
from relume.simulate.world import Parts, World

VIOLATIONS_MAX = 20
"""After so many the campaign stops: they are one and the same by then."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A law that did not hold. `seed` lives the same history again."""

    seed: int
    checker: str
    text: str
    trace: list[str]


@dataclass(slots=True)
class Summary:
    """What the histories showed. `seconds` is filled in by whoever has a clock."""

    first_seed: int
    histories: int = 0
    actions: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, other: Summary) -> None:
        """Add what other histories showed."""
        self.histories += other.histories
        self.actions += other.actions
        self.findings += other.findings
        self.coverage.add(other.coverage)

    @property
    def enough(self) -> bool:
        """True when more violations would say nothing new."""
        return len(self.findings) >= VIOLATIONS_MAX


def live(settings: Settings, parts: Parts | None = None, *, trace: int | None = None) -> tuple[World, Finding | None]:
    """Live one history; return it and what was found. An exception of the core is a finding, too."""
    world = World(settings, parts) if trace is None else World(settings, parts, trace=trace)
    try:
        world.run()
    except Violation as violation:
        return world, Finding(settings.seed, violation.checker, str(violation), world.trace.lines())
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding
        where = "".join(traceback.format_exception(error)[-3:]).strip()
        return world, Finding(settings.seed, "defect", where, world.trace.lines())
    return world, None


def campaign(
    seeds: range,
    *,
    workers: int | None = None,
    parts: Parts | None = None,
    proceed: Callable[[Summary], bool] = lambda _: True,
) -> Summary:
    """Live the histories of `seeds`, for as long as `proceed` says so (asked after each)."""
    summary = Summary(seeds.start)
    for seed in seeds:
        world, finding = live(draw(seed, workers), parts)
        summary.histories += 1
        summary.actions += world.scheduler.done
        summary.coverage.add(world.coverage)
        if finding is not None:
            summary.findings.append(finding)
        if not proceed(summary) or summary.enough:
            break
    return summary
