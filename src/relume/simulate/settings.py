"""The shape of one history, drawn from its seed: the fleet, its pace, its channels, and what will go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from relume.core.coordinator import State
from relume.simulate import faults
from relume.simulate.channel import Discipline
from relume.simulate.memory import kept_with

HANG_S = 3.0
"""The one knob from which all limits follow; short, so that histories are."""

SOCKET = Discipline()
SLOW_SOCKET = Discipline((0.0005, 0.02), stalled=0.05)
UNRULY = Discipline((0.00005, 0.02), ordered=False, doubled=0.1, stalled=0.02)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a history is made of.

    `every`: steps between two mirrors, 0 for none (then nobody comes back). `chunks`: of the mirror, with the skeleton.
    `late`: how much slower those are who replay. `heavy`: how much longer than usual leaves take to compute.

    `diverges`: the rank whose terms differ, or -1. `echoes`: the share of events that come to the core again, late.
    `insists`: the agent tells at each tick who is done.

    `stalls`: the share of instructions that take up to `stall_s` longer. `lag_s`: the agent's loop takes up to this
    long to come to its next callback. `deaf`: the share of rings that are lost.
    """

    seed: int
    workers: int
    shards: int
    blocks: int
    pieces: int
    steps: int
    min_workers: int = 1
    paces: tuple[float, ...] = ()
    stalls: float = 0.0
    stall_s: float = 0.0
    lag_s: float = 0.0001
    kill_lag_s: float = 0.005
    deaf: float = 0.0
    echoes: float = 0.0
    insists: bool = False
    discipline: Discipline = SOCKET
    diverges: int = -1
    no_memory: bool = False
    spares: int = 0
    seats: int = 0
    max_restarts: int = 0
    every: int = 0
    resume_step: int = 0
    chunks: int = 1
    late: float = 1.0
    heavy: float = 1.0
    faults: tuple[faults.Plan, ...] = ()

    @property
    def seats_in_all(self) -> int:
        """How many workers there may be at a time."""
        return max(self.seats, self.workers + self.spares)

    @property
    def kept(self) -> int:
        """How many results are kept."""
        return kept_with(self.every)

    def pace(self, rank: int, life: int) -> float:
        """Return how much slower than usual this life of a rank is."""
        return self.paces[(rank + 3 * life) % len(self.paces)] if self.paces else 1.0


def draw(seed: int, workers: int | None = None) -> Settings:
    """Return the settings of the history `seed`; `workers` fixes the size of the fleet."""
    chance = random.Random(f"relume.simulate|{seed}")
    count = workers if workers is not None else chance.choice([1, 2, 2, 3, 3, 3, 4, 4, 5, 6])
    steps = chance.randint(1, 5)
    coming = chance.random() < 0.7  # else nobody comes back, and histories are short
    if coming:
        steps = chance.choice([3, 6, 10, 16, 16, 40, 80])
        count = min(count, 4) if workers is None else count
    plans = faults.draw(chance, count, steps, seed)
    coming = coming or any(plan.phase in faults.COMING or plan.phase == "mirror" for plan in plans)
    rare = workers is None and chance.random() < 0.1
    if rare:
        count, steps = 4, max(4, steps)
        plans = faults.draw_rare(chance, steps)
    merging = any(plan.phase == "merge" for plan in plans)
    if merging and workers is None:
        count = min(count, 3)
    idle = not merging and chance.random() < 0.12  # with little to do for many: somebody has no shard and no block
    if idle and not rare:
        steps = max(5, steps)
        count = workers if workers is not None else max(count, 3)
    if coming:
        steps = max(steps, 6)
    counting = any(plan.state is State.COUNTING for plan in plans)
    heavy = coming and not rare and chance.random() < 0.3
    paces = (
        [0.3, 1.0, 1.0, 4.0]
        if heavy
        else [1.0, 20.0]
        if rare
        else [0.3, 0.3, 20.0]
        if idle
        else [0.3, 1.0, 1.0, 1.0, 4.0, 20.0]
    )
    least = [2, 4, 4] if rare and coming else [1, 1, 1, 1, 1, 2, 2, 2] if coming else [1, 1, 1, 1, 1, 1, 1, 2]
    many = [1, 1, 2, 2, 3] if coming else [1, 1, 2, 2, 3, 4, 6, 7, 8, 13]
    return Settings(
        seed=seed,
        workers=count,
        shards=chance.choice([7, 8, 13] if merging else [1, 2] if idle else many),
        blocks=1 if idle else chance.choice([1, 1, 2, 3, 4]),
        pieces=chance.choice([1, 1, 2]),
        steps=steps,
        min_workers=min(count, chance.choice(least)),
        paces=tuple(chance.choice(paces) for _ in range(max(count, 3))),
        stalls=chance.choice([0.0, 0.01, 0.05]),
        stall_s=chance.choice([0.005, 0.02, 0.1, 0.4]),
        lag_s=0.5 if rare else chance.choice([0.03, 0.2, 0.5] if counting else [0.0001, 0.002, 0.03, 0.2]),
        kill_lag_s=chance.choice([0.0005, 0.005, 0.05]),
        deaf=chance.choice([0.0, 0.0, 0.0, 0.05]),
        echoes=chance.choice([0.0, 0.4] if rare else [0.0, 0.0, 0.05]),
        insists=rare and chance.random() < 0.5,
        discipline=chance.choice([SOCKET, SOCKET, SLOW_SOCKET, UNRULY]),
        diverges=chance.randrange(count) if count > 1 and chance.random() < 0.01 else -1,
        no_memory=chance.random() < 0.01,
        faults=plans,
        heavy=10.0 if heavy else 1.0,
        **(_coming_back(chance, count, steps, rare=rare) if coming else {}),
    )


def _coming_back(chance: random.Random, workers: int, steps: int, *, rare: bool) -> dict[str, Any]:
    """Draw what a run has whose workers come back. In a rare one somebody does, but not at once."""
    spares = 0 if rare else chance.choice([0, 0, 0, 1, 1, 2])
    return {
        "spares": spares,
        "seats": workers + spares + chance.choice([0, 0, 1, 2]),
        "max_restarts": 20 if rare else chance.choice([0, 1, 2, 5, 20, 20]),
        "every": chance.choice([2, 2, 3, 4, 6]),
        "resume_step": min(chance.choice([0, 0, 0, 0, 1, 3, 5]), steps - 1),
        "chunks": chance.choice([2, 3, 5]),
        "late": 1.0 if rare else chance.choice([1.0, 1.0, 1.0, 1.0, 1.0, 6.0, 40.0]),
    }
