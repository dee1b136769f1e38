"""What a run is started with, checked before anything starts, and the exit codes it can end with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from relume.core.verdict import Outcome

EXIT_CODES = MappingProxyType(
    {
        Outcome.COMPLETED.value: 0,
        Outcome.SCRIPT_FAILED.value: 1,
        "usage": 2,
        Outcome.NO_STEPS.value: 3,
        Outcome.DIVERGED.value: 4,
        Outcome.NO_MEMORY.value: 5,
        Outcome.ALL_LOST.value: 6,
        Outcome.TOO_FEW.value: 7,
        Outcome.TAIL_LOST.value: 8,
        Outcome.UNFENCED.value: 9,
        "internal": 70,
        "interrupted": 130,
        "terminated": 143,
    }
)
"""How `relume run` ends: outcome to exit code. The table in the README is checked against it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's settings. `environment` is added to each worker's."""

    command: tuple[str, ...]
    workers: int
    run_dir: Path
    run_id: str
    shards: int | None = None
    threads: int = 1
    min_workers: int = 1
    max_restarts: int = 0
    spares: int = 0
    seats: int = 0
    """How many workers there can be at a time; 0: as many as there are at the start."""
    mirror_every: int = 0
    """Steps between mirrors of the protected state; 0: none, and nobody can come back."""
    warm: bool = False
    """Start later workers from a template that has its imports behind it."""
    checkpoint_dir: Path | None = None
    checkpoint_every_steps: int | None = None
    checkpoint_every_s: float | None = None
    checkpoint_keep: int = 3
    resume: bool = False
    hang_timeout_s: float = 300.0
    environment: dict[str, str] = field(default_factory=dict)
    burner: bool = False
    """Start a CPU burner in the place of each lost worker (the control of `relume chaos`)."""
    port: int = 29500
