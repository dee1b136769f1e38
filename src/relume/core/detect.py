"""Who hangs: progress is watched, not liveness (scenario 2).

A worker whose background thread still answers may be stuck for ever in its main thread. What moves is the progress
counter in the arena: it is raised on every phase, shard and parameter gradient, and at each look of a wait. So whoever
waits in the engine is a victim and never the culprit, wherever it waits, and one that does not come back from its wait
is found like any other; the culprit is the worker whose counter has stood still for the limit. Phases in which the
script may take any time (`aside`, `tail`) and the time before the first step are exempt here; the latter has its own
limit in `core.coordinator`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from relume.core.events import Cause

EXEMPT = frozenset({"joining", "aside", "tail"})
STOPPED_S = 5.0
"""A process that the kernel says is stopped (SIGSTOP, a debugger) for this long is not coming back by itself."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one worker. `stopped`: the kernel shows its main task as stopped or traced."""

    rank: int
    counter: int
    phase: str
    step: int
    shard: int
    stopped: bool = False


@dataclass(slots=True)
class _Track:
    counter: int
    since_s: float
    stopped_since_s: float | None = None


@dataclass(slots=True)
class Watch:
    """Feed it samples; it names the workers that hang. One knob: `hang_timeout_s`."""

    hang_timeout_s: float
    _tracks: dict[int, _Track] = field(default_factory=dict)

    def look(self, samples: list[Sample], now: float) -> list[tuple[int, Cause]]:
        """Return the culprits among `samples` (usually none), with the evidence."""
        culprits: list[tuple[int, Cause]] = []
        for sample in samples:
            track = self._tracks.get(sample.rank)
            if track is None or track.counter != sample.counter:
                self._tracks[sample.rank] = track = _Track(sample.counter, now)
            if not sample.stopped:
                track.stopped_since_s = None
            elif track.stopped_since_s is None:
                track.stopped_since_s = now
            cause = self._judge(sample, track, now)
            if cause is not None:
                culprits.append((sample.rank, cause))
        return culprits

    def forget(self, rank: int) -> None:
        """Another worker has the rank now."""
        self._tracks.pop(rank, None)

    def idle_s(self, rank: int, now: float) -> float:
        """Return for how long `rank` has not moved."""
        track = self._tracks.get(rank)
        return 0.0 if track is None else now - track.since_s

    def _judge(self, sample: Sample, track: _Track, now: float) -> Cause | None:
        where = f"in phase {sample.phase} of step {sample.step}, shard {sample.shard}"
        evidence = {"phase": sample.phase, "step": str(sample.step), "shard": str(sample.shard)}
        hangs = sample.phase not in EXEMPT and now - track.since_s >= self.hang_timeout_s
        if track.stopped_since_s is not None:
            idle = now - track.stopped_since_s
            if hangs or idle >= min(STOPPED_S, self.hang_timeout_s):
                return Cause("stopped", f"its process has been stopped for {idle:.1f} s {where}", evidence)
        elif hangs:
            return Cause("hung", f"it made no progress for {now - track.since_s:.1f} s {where}", evidence)
        return None
