"""What histories have met: rows of the coordinator's table, faults, and pairs of fault and phase."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from relume.core.coordinator import TRANSITIONS, State
from relume.core.events import Event
from relume.simulate.faults import PAIRS, Fault


@dataclass(slots=True)
class Coverage:
    """Counts. Add them up with `add`."""

    rows: Counter[tuple[State, type[Event]]] = field(default_factory=Counter)
    pairs: Counter[tuple[Fault, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def row(self, state: State, event: Event) -> None:
        """Count that `event` came in `state`."""
        self.rows[state, type(event)] += 1

    def fault(self, fault: Fault, phase: str) -> None:
        """Count that `fault` struck in `phase`."""
        self.pairs[fault, phase] += 1

    def add(self, other: Coverage) -> None:
        """Add what another history has met."""
        self.rows.update(other.rows)
        self.pairs.update(other.pairs)
        self.outcomes.update(other.outcomes)

    def faults(self) -> dict[str, int]:
        """Return how often each fault struck."""
        counts: Counter[str] = Counter()
        for (fault, _), times in self.pairs.items():
            counts[fault.value] += times
        return dict(counts.most_common())

    def missing_rows(self) -> list[str]:
        """Return the rows of the table that were never met."""
        return [f"{state.value} {event.__name__}" for state, event in TRANSITIONS if not self.rows[state, event]]

    def missing_faults(self) -> list[str]:
        """Return the faults that never struck."""
        struck = self.faults()
        return [fault.value for fault in Fault if fault.value not in struck]

    def missing_pairs(self) -> list[str]:
        """Return the pairs of fault and phase that never came together."""
        return [f"{fault.value} in {phase}" for fault, phase in PAIRS if not self.pairs[fault, phase]]

    def shares(self) -> dict[str, float]:
        """Return which share of each was met, from 0.0 to 1.0."""
        return {
            "rows": 1.0 - len(self.missing_rows()) / len(TRANSITIONS),
            "faults": 1.0 - len(self.missing_faults()) / len(Fault),
            "pairs": 1.0 - len(self.missing_pairs()) / len(PAIRS),
        }

    @property
    def whole(self) -> bool:
        """True if nothing is missing."""
        return not (self.missing_rows() or self.missing_pairs())
