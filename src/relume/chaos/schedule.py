"""Who is killed, where and when: a pure function of the seed, so that a run that went wrong can be had again.

Half of the kills (rounded up) are *exact*: a trap ends the worker at a point of a phase of a step. The others come
from *outside* at a random time. Exact kills tell *stories*, one per phase that a worker can die in. Stories are dealt
in turn, seed after seed, so that a few seeds in a row meet all of them; all else is drawn at random.

This module knows nothing of processes. Points are chosen such that they are sure to be met, whoever else has died by
then: a shard that each worker has at least, a block that the worker is sure to own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from relume.errors import ConfigError

STORIES: Final = (
    "backward",
    "last",
    "load",
    "view",
    "joining",
    "publish",
    "update",
    "forward",
    "between",
    "sum",
    "take",
)
"""`view` is a kill while another loss is being handled, `joining` one before the first step, `last` one in the last."""

LAST_PHASES: Final = ("load", "forward", "backward", "publish", "sum", "take", "update")
"""What the story `last` is about: any phase of the last step."""

SHARD_PHASES: Final = frozenset({"load", "forward", "backward", "publish"})
"""Phases that a worker is in only while it has a shard."""

MOMENTS: Final = {
    "joining": 2,  # as the process attaches to the arena, and when it has said that it is ready
    "forward": 40,  # the batch is handed out, then each module that is called
    "backward": 60,  # each parameter's gradient
    "publish": 3,  # on entering, just before the seal, just after it
    "view": 3,  # before its promise, between the promise and saying so, before it installs the view
    "sum": 8,  # each piece of a block
    "take": 2,  # before and after the copy
    "update": 3,  # before the optimizer, and as it begins and ends
}
"""How deep into a phase a kill may go. A trap springs at the phase's end if there is no such moment."""

OUTSIDE_FROM, OUTSIDE_TO = 0.2, 0.8
"""Kills from outside fall uniformly into this part of the run."""


@dataclass(frozen=True, slots=True)
class Exact:
    """`rank` is killed at moment `nth` of the `entry`-th time that it enters `phase` in `step` (see `Trap`).

    `life`: how many processes had the rank before this victim. `later`: `step` is the earliest.
    """

    rank: int
    phase: str
    step: int
    entry: int | None
    nth: int
    story: str
    life: int = 0
    later: bool = False

    @property
    def who(self) -> tuple[int, int]:
        """The victim: (rank, life)."""
        return self.rank, self.life

    def trap(self, action: str = "kill") -> dict[str, Any]:
        """Return it as RELUME_TRAPS wants it."""
        place = {"rank": self.rank, "phase": self.phase, "step": self.step, "entry": self.entry, "nth": self.nth}
        return {**place, "action": action, "life": self.life, "later": self.later}


@dataclass(frozen=True, slots=True)
class Outside:
    """`ranks` are killed from outside, back to back, when `at_step` steps are done (2.5: halfway through step 2)."""

    ranks: tuple[int, ...]
    at_step: float


@dataclass(frozen=True, slots=True)
class Pick:
    """`count` members are killed from outside at `at_step`: whom `dice` (a seed) picks then, but none of `spared`."""

    at_step: float
    count: int
    dice: str
    spared: frozenset[int]


@dataclass(frozen=True, slots=True)
class KillAll:
    """Every worker that there is at `at_step` is killed from outside, back to back."""

    at_step: float


@dataclass(frozen=True, slots=True)
class Rescale:
    """At `at_step` somebody asks for so many `workers`."""

    at_step: float
    workers: int


Action = Outside | Pick | KillAll | Rescale
"""What is done to a run from outside."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that is done to one run."""

    exact: tuple[Exact, ...]
    outside: tuple[Action, ...]

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that die, ascending, of those known beforehand."""
        return tuple(sorted([kill.rank for kill in self.exact] + [rank for kill in self._named for rank in kill.ranks]))

    @property
    def kills(self) -> int:
        """How many are killed one by one; `KillAll` is beside that."""
        picks = sum(action.count for action in self.outside if isinstance(action, Pick))
        return len(self.victims) + picks

    @property
    def _named(self) -> list[Outside]:
        return [action for action in self.outside if isinstance(action, Outside)]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a schedule is made for. `together`: so many die at the same instant. `many_blocks`: everybody owns some."""

    workers: int
    steps: int
    shards: int
    kills: int
    together: int = 1
    many_blocks: bool = True

    def check(self) -> None:
        """Raise `ConfigError` for what cannot be asked."""
        if not 0 <= self.kills < self.workers:
            text = f"--kills {self.kills}: victims are distinct and one of {self.workers} workers has to live. "
            raise ConfigError(text + "With --respawn they come back, and there may be more kills than workers")
        if not 1 <= self.together <= max(1, self.kills):
            raise ConfigError(f"--kill-together {self.together}: between 1 and --kills, which is {self.kills}")
        if self.steps < 4:
            raise ConfigError(f"--steps {self.steps}: at least 4, so that there is a middle to kill in")


def plan(terms: Terms, seed: int) -> Schedule:
    """Return the schedule of `seed`. Raises `ConfigError` for terms that cannot be met."""
    terms.check()
    dice = random.Random(f"relume chaos {seed}")
    exact_sizes, outside_sizes = _groups(terms, dice)
    hat = _Hat(terms, dice, list(range(terms.workers)))
    deals = _deal(seed, exact_sizes, hat, has_outside=bool(outside_sizes))
    exact = []
    for deal, step in zip(deals, _steps(dice, terms, len(deals)), strict=True):
        point = _point(dice, terms, deal, step)
        exact += [replace(point, rank=rank) for rank in deal.ranks or hat.draw(hat.left, deal.size)]
    outside = []
    for size in outside_sizes:
        at_step = terms.steps * dice.uniform(OUTSIDE_FROM, OUTSIDE_TO)
        outside.append(Outside(tuple(hat.draw(hat.left, size)), at_step))
    outside.sort(key=lambda kill: kill.at_step)
    return Schedule(tuple(exact), tuple(outside))


@dataclass(slots=True)
class _Hat:
    """The ranks that nobody has plans for yet."""

    terms: Terms
    dice: random.Random
    left: list[int]

    def fits(self, phase: str) -> list[int]:
        """Return the ranks that are sure to come by `phase`, whoever else has died by then."""
        if phase in SHARD_PHASES and self.terms.shards < self.terms.workers:
            return [
                rank for rank in self.left if rank == self.terms.workers - 1
            ]  # the highest alive always has a shard
        if phase == "sum" and not self.terms.many_blocks:
            return [rank for rank in self.left if rank == 0]  # the lowest alive owns the first block
        return self.left

    def draw(self, ranks: Sequence[int], count: int) -> list[int]:
        """Take `count` of `ranks` out."""
        drawn = self.dice.sample(list(ranks), count)
        self.left = [rank for rank in self.left if rank not in drawn]
        return drawn


@dataclass(frozen=True, slots=True)
class _Deal:
    """A story for a group of `size`. `ranks` is empty if anybody will do."""

    story: str
    phase: str
    size: int
    ranks: Sequence[int]


def _groups(terms: Terms, dice: random.Random) -> tuple[list[int], list[int]]:
    """Cut the kills into groups of `together`; half of the kills, rounded up, are exact.

    Where groups do not divide so, exact kills are the more. A single group of several is exact or not by the dice.
    """
    full, rest = divmod(terms.kills, terms.together)
    sizes = [terms.together] * full + ([rest] if rest else [])
    if len(sizes) == 1 and sizes[0] > 1:
        return (sizes, []) if dice.random() < 0.5 else ([], sizes)
    half, count = (terms.kills + 1) // 2, 0
    while sum(sizes[:count]) < half:
        count += 1
    return sizes[:count], sizes[count:]


def _deal(seed: int, sizes: Sequence[int], hat: _Hat, *, has_outside: bool) -> list[_Deal]:
    """Deal a story to each group of exact kills: the next ones in turn, passing over what cannot be."""
    deals: list[_Deal] = []
    turn = seed * len(sizes)
    for size in sizes:
        while True:
            story = STORIES[turn % len(STORIES)]
            turn += 1
            if story == "view" and (size > 1 or not has_outside):
                continue  # it needs another loss, and is not at the same instant as that
            phase = hat.dice.choice(LAST_PHASES) if story == "last" else story
            fit = hat.fits(phase)
            if len(fit) >= size:
                # Those that few can do are given out first; who does the others is drawn when all stories are known.
                ranks = hat.draw(fit, size) if len(fit) < len(hat.left) else ()
                deals.append(_Deal(story, phase, size, ranks))
                break
    return deals


def _steps(dice: random.Random, terms: Terms, count: int) -> list[int]:
    """Return a step for each of `count` stories, spread over the middle of the run in random order."""
    low, high = 1, terms.steps - 2
    width = (high - low + 1) / max(count, 1)
    steps = [low + int(width * (i + dice.random())) for i in range(count)]
    dice.shuffle(steps)
    return [min(step, high) for step in steps]


def _point(dice: random.Random, terms: Terms, deal: _Deal, step: int) -> Exact:
    """Return where `deal` happens, the same for all of a group; who it is stands open."""
    phase, nth = deal.phase, dice.randrange(MOMENTS.get(deal.phase, 1))
    if deal.story == "view":
        return Exact(-1, phase, 0, None, nth, deal.story)  # whenever another loss is handled from step 0 on
    step = {"last": terms.steps - 1, "joining": -1}.get(deal.story, step)
    shards_min = max(1, terms.shards // terms.workers)
    entry = dice.randrange(shards_min) if phase in SHARD_PHASES else 0
    return Exact(-1, phase, step, entry, nth, deal.story)
