"""The shape of one history, drawn from its seed: the fleet, its pace, its channels, and what will go wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from relume.core.coordinator import State
from relume.simulate import faults
from relume.simulate.channel import Discipline

HANG_S = 3.0
"""The one knob from which all limits follow; short, so that histories are."""

SOCKET = Discipline()
SLOW_SOCKET = Discipline((0.0005, 0.02), stalled=0.05)
UNRULY = Discipline((0.00005, 0.02), ordered=False, doubled=0.1, stalled=0.02)


@dataclass(frozen=True, slots=True)
class Settings:
    """`diverges`: the rank whose terms differ, or -1. `echoes`: the share of events that come to the core again, late.

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
    discipline: Discipline = SOCKET
    diverges: int = -1
    no_memory: bool = False
    faults: tuple[faults.Plan, ...] = ()


def draw(seed: int, workers: int | None = None) -> Settings:
    """Return the settings of the history `seed`; `workers` fixes the size of the fleet."""
    chance = random.Random(f"relume.simulate|{seed}")
    count = workers if workers is not None else chance.choice([1, 2, 2, 3, 3, 3, 4, 4, 5, 6])
    steps = chance.randint(1, 5)
    plans = faults.draw(chance, count, steps, seed)
    rare = workers is None and chance.random() < 0.06
    if rare:
        count, steps = 4, 4
        plans = faults.draw_rare(chance, count, steps)
    merging = any(plan.phase == "merge" for plan in plans)
    if merging and workers is None:
        count = min(count, 3)
    idle = not merging and chance.random() < 0.12  # with little to do for many: somebody has no shard and no block
    if idle and not rare:
        steps = 5
        count = workers if workers is not None else max(count, 3)
    counting = any(plan.state is State.COUNTING for plan in plans)
    paces = [1.0, 20.0] if rare else [0.3, 0.3, 20.0] if idle else [0.3, 1.0, 1.0, 1.0, 4.0, 20.0]
    return Settings(
        seed=seed,
        workers=count,
        shards=chance.choice([7, 8, 13] if merging else [1, 2] if idle else [1, 1, 2, 2, 3, 4, 6, 7, 8, 13]),
        blocks=1 if idle else chance.choice([1, 1, 2, 3, 4]),
        pieces=chance.choice([1, 1, 2]),
        steps=steps,
        min_workers=min(count, chance.choice([1, 1, 1, 1, 1, 1, 1, 2])),
        paces=tuple(chance.choice(paces) for _ in range(count)),
        stalls=chance.choice([0.0, 0.01, 0.05]),
        stall_s=chance.choice([0.005, 0.02, 0.1, 0.4]),
        lag_s=0.5 if rare else chance.choice([0.03, 0.2, 0.5] if counting else [0.0001, 0.002, 0.03, 0.2]),
        kill_lag_s=chance.choice([0.0005, 0.005, 0.05]),
        deaf=chance.choice([0.0, 0.0, 0.0, 0.05]),
        echoes=chance.choice([0.0, 0.0, 0.05]),
        discipline=chance.choice([SOCKET, SOCKET, SLOW_SOCKET, UNRULY]),
        diverges=chance.randrange(count) if count > 1 and chance.random() < 0.01 else -1,
        no_memory=chance.random() < 0.01,
        faults=plans,
    )
