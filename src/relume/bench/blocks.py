"""How long a block is and who is measured when: pure functions, so that it is easy to see that nobody is favoured.

A *block* is a few steps of one side in a row: one that does not count (the others' data is in the caches), then those
that do. A *round* has a block of each side. Whose block of the pair comes first changes with every round, so that a
machine that slowly gets busier, or a cache that the one before has left warm, meets both sides alike.

relume mirrors the state every 8 steps. A counted block of a multiple of 8 steps holds exactly its share of them. Where
so many steps take too long a block has 4, and with the one before that does not count it is 5 long, which has no
divisor in common with 8: so the mirror falls into another place of each block, and into every second one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relume.bench.orders import ALONE, DDP, GLOO, MEMORY, RAW, RELUME
from relume.bench.sizes import MIRROR_EVERY

BLOCK_S_MIN = 0.3
STEPS_MIN, STEPS_MAX = 3, 4096
SHORT_BLOCK = 4
EIGHT_STEPS_S_MAX = 12.0
"""If eight steps of the slower side take longer than this, a block has four."""
BESIDE = (ALONE, RAW, GLOO, MEMORY)
"""What is measured beside the pair."""
ROUNDS_S_MAX = 200.0
"""If all rounds took longer than this, what is beside the pairs is measured less often."""
BESIDE_EVERY_MAX = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps`: how many count in a block of each. `beside_every`: in each so-many-th round the others are measured."""

    pairs: int
    steps: Mapping[str, int]
    beside_every: int = 1

    def round(self, number: int) -> list[str]:
        """Return whose blocks make up this round, in order."""
        pair = [RELUME, DDP] if number % 2 == 0 else [DDP, RELUME]
        if number % self.beside_every:
            return pair
        beside = list(BESIDE if (number // self.beside_every) % 2 == 0 else reversed(BESIDE))
        return [*pair, *beside]

    @property
    def blocks(self) -> int:
        """How many blocks there are in all."""
        return sum(len(self.round(number)) for number in range(self.pairs))


def plan(pairs: int, step_s: Mapping[str, float]) -> Plan:
    """Return the plan for `pairs` pairs, given roughly how long a step of each takes."""
    both = [step_s[RELUME], step_s[DDP]]
    if max(both) * MIRROR_EVERY > EIGHT_STEPS_S_MAX:
        count = SHORT_BLOCK
    else:
        count = min(STEPS_MAX, MIRROR_EVERY * math.ceil(_enough(min(both)) / MIRROR_EVERY))
    steps = {RELUME: count, DDP: count} | {name: _enough(step_s[name]) for name in BESIDE}
    round_s = {name: (steps[name] + 1) * step_s[name] for name in steps}
    every = 1
    while every < BESIDE_EVERY_MAX and _total_s(pairs, round_s, every) > ROUNDS_S_MAX:
        every *= 2
    return Plan(pairs, steps, every)


def quick(pairs: int) -> Plan:
    """Return a plan that only shows that everything works."""
    return Plan(pairs, dict.fromkeys((RELUME, DDP), 2) | dict.fromkeys(BESIDE, 2))


def mirrors_in(first: int, warm: int, steps: int, blocks: int) -> list[int]:
    """Return how many mirrors each of `blocks` counted blocks holds, the first warm step being step `first`."""
    stride = warm + steps
    starts = (first + number * stride + warm for number in range(blocks))
    return [sum(step % MIRROR_EVERY == 0 for step in range(start, start + steps)) for start in starts]


def turns(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return in which order `names` take their turns in each round: each comes first, second, ... about as often."""
    return [[names[(place + number) % len(names)] for place in range(len(names))] for number in range(rounds)]


def _enough(step_s: float) -> int:
    return max(STEPS_MIN, min(STEPS_MAX, math.ceil(BLOCK_S_MIN / max(step_s, 1e-6))))


def _total_s(pairs: int, round_s: Mapping[str, float], every: int) -> float:
    beside = sum(round_s[name] for name in BESIDE)
    return pairs * (round_s[RELUME] + round_s[DDP] + beside / every)
