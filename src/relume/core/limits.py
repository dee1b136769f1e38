"""The bounds of all waits for a worker, from one knob (scenario 12)."""

from __future__ import annotations

from dataclasses import dataclass

from relume.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of all waits for a worker, in seconds; they derive from one knob and are ordered (scenario 12).

    A ballot is over well before those who wait for it could look hung themselves; `core.detect` watches by `hang_s`.
    """

    hang_s: float
    start_s: float
    promise_s: float

    @property
    def fence_s(self) -> float:
        """For how long the kernel may hold on to a worker that was killed."""
        return self.hang_s

    @property
    def pause_s(self) -> float:
        """For how long a run with too few workers waits for others to come back."""
        return self.start_s

    def __post_init__(self) -> None:
        if not 0.0 < self.promise_s < self.hang_s < self.start_s < float("inf"):
            order = f"promise {self.promise_s:g} s < hang {self.hang_s:g} s < start {self.start_s:g} s"
            raise ConfigError(f"time limits have to be ordered and finite: {order}. Give --hang-timeout alone")

    @classmethod
    def derive(cls, hang_timeout_s: float) -> Limits:
        """Return limits that are ordered for a given `--hang-timeout`. Raises `ConfigError` if that cannot be."""
        return cls(hang_s=hang_timeout_s, start_s=2 * hang_timeout_s, promise_s=min(10.0, hang_timeout_s / 2))
