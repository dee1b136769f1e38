"""What is done to a run whose workers come back: as pure a function of the seed as `schedule`, for (rank, life) pairs.

Kills, `--kill-all` and `--scale` share the run out among themselves in slots of equal length, so that each recovery can
finish; about a third of the kills come right after the one before instead, while somebody is on its way back.

Half of the kills are exact, as in `schedule`. A process is known beforehand only by its rank and by how many had that
rank before it, so the ranks are dealt to two camps: the members of one die by traps alone, so that their lives can be
counted, and those of the other from outside, whoever is in at that time. In which step a joiner is admitted is not
known either: its trap springs in the first step from a given one on in which it does what the story is about.

Stories come in turn, as there; beside those, joiners die while they replay, somebody dies while the mirror is written,
and while another is being admitted. There is no kill in the last step: nobody could come back from that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from relume.chaos.schedule import MOMENTS, SHARD_PHASES, Action, Exact, KillAll, Pick, Rescale, Schedule
from relume.errors import ConfigError

STORIES: Final = (
    "backward",
    "replay",
    "load",
    "admission",
    "mirror",
    "view",
    "joining",
    "publish",
    "update",
    "forward",
    "between",
    "sum",
    "take",
)
"""`replay`: a joiner on its way; `admission`: a member that is asked to admit another; `view`: as in `schedule`."""
ALONE: Final = frozenset({"admission", "view"})
"""They need another's loss, and are not at the same instant as that."""
ON_ITS_WAY: Final = frozenset({"joining", "replay"})
"""Their victim was no member yet."""
DEPTHS: Final = MOMENTS | {
    "replay": 2,  # a step that it replays begins, and is about to end
    "mirror": 3,  # each piece that is written
    "admission": 2,  # before it promises, and before it says so
}
FROM, TO = 0.06, 0.72
"""All is done in this part of the run: the last ones to die have the rest of it to come back in."""
SOON = 1 / 3
STEPS_BASE, STEPS_PER_KILL, STEPS_PER_CHANGE = 60, 20, 40
"""A run is so long unless told otherwise: a cold start takes some twenty steps of a small model, a warm one five."""


@dataclass(frozen=True, slots=True)
class Respawn:
    """What is asked of a run whose workers come back: `kill_all` times all of them die, `scale` in turn to so many."""

    spares: int = 0
    mirror_every: int | None = None
    kill_all: int = 0
    scale: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Errand:
    """What is to be done to a run whose workers come back."""

    workers: int
    steps: int
    shards: int
    kills: int
    together: int = 1
    many_blocks: bool = True
    respawn: Respawn = field(default_factory=Respawn)

    def check(self) -> None:
        """Raise `ConfigError` for what cannot be asked."""
        respawn = self.respawn
        if self.kills < 0 or respawn.kill_all < 0 or respawn.spares < 0:
            raise ConfigError("--kills, --kill-all and --spares: whole numbers from 0")
        if not 1 <= self.together <= max(1, min(self.kills, self.workers - 1)):
            text = f"--kill-together {self.together}: at most --kills, and one of {self.workers} workers lives on. "
            raise ConfigError(text + "All of them die together with --kill-all")
        if any(workers < 1 for workers in respawn.scale):
            raise ConfigError(f"--scale {','.join(map(str, respawn.scale))}: numbers of workers from 1")
        if self.steps < max(8, 2 * (self.kills + respawn.kill_all + len(respawn.scale))):
            usual = steps_for(self.kills, respawn)
            raise ConfigError(f"--steps {self.steps}: too few for all of that; left out, it is {usual}")


def steps_for(kills: int, respawn: Respawn) -> int:
    """Return how long a run has to be for so many kills and whatever else is done to it."""
    return STEPS_BASE + STEPS_PER_KILL * kills + STEPS_PER_CHANGE * (respawn.kill_all + len(respawn.scale))


def plan_return(errand: Errand, seed: int) -> Schedule:
    """Return the schedule of `seed`. Raises `ConfigError` for what cannot be asked."""
    errand.check()
    dice = random.Random(f"relume chaos --respawn {seed}")
    sizes = [errand.together] * (errand.kills // errand.together)
    sizes += [errand.kills % errand.together] if errand.kills % errand.together else []
    only_outside = errand.workers == 1 or errand.respawn.kill_all > 0 or bool(errand.respawn.scale)
    exact_groups = 0 if only_outside else (len(sizes) + 1) // 2
    if len(sizes) == 1 and exact_groups and sizes[0] > 1 and dice.random() < 0.5:
        exact_groups = 0
    camp = _camp(dice, errand, sizes, exact_groups, seed)
    kinds: list[str] = ["exact"] * exact_groups + ["pick"] * (len(sizes) - exact_groups)
    dice.shuffle(kinds)
    slots = _slots(dice, errand, kinds)
    exact: list[Exact] = []
    outside: list[Action] = []
    spared = frozenset(camp.ranks) if exact_groups else frozenset()
    left, targets = list(sizes), list(errand.respawn.scale)
    for place, (kind, at_step) in enumerate(slots):
        if kind == "exact":
            exact += camp.deal(left.pop(0), place, slots)
        elif kind == "pick":
            outside.append(Pick(at_step, left.pop(0), f"{seed} {place}", spared))
        elif kind == "all":
            outside.append(KillAll(at_step))
        else:
            outside.append(Rescale(at_step, targets.pop(0)))
    return Schedule(tuple(exact), tuple(outside))


def _slots(dice: random.Random, errand: Errand, kills: Sequence[str]) -> list[tuple[str, float]]:
    """Return what is done, and when: evenly spread, but for the kills that come soon after another."""
    kinds = [*kills, *["all"] * errand.respawn.kill_all]
    dice.shuffle(kinds)
    scalings = len(errand.respawn.scale)
    for i in range(scalings):
        kinds.insert(round((i + 0.5) * (len(kinds) + 1) / scalings), "scale")
    width = errand.steps * (TO - FROM) / max(1, len(kinds))
    at_step = [errand.steps * FROM + width * (i + 0.5 * dice.random()) for i in range(len(kinds))]
    for i in range(1, len(kinds)):
        kill_after_kill = kinds[i - 1] in {"exact", "pick"} and kinds[i] in {"exact", "pick"}
        if kill_after_kill and dice.random() < SOON:
            at_step[i] = at_step[i - 1] + dice.uniform(0.5, 4.0)
    return [(kind, round(step, 3)) for kind, step in zip(kinds, at_step, strict=True)]


def _camp(dice: random.Random, errand: Errand, sizes: Sequence[int], groups: int, seed: int) -> _Camp:
    """Return the ranks that die by traps: half of them, and as many as have to die together."""
    largest = max(sizes[:groups], default=0)
    count = max(largest, errand.workers // 2) if len(sizes) > groups else max(largest, errand.workers - 1)
    count = min(count, errand.workers - 1)
    return _Camp(errand, dice, sorted(dice.sample(range(errand.workers), count)), seed * max(groups, 1))


@dataclass(slots=True)
class _Camp:
    """Those whose lives are counted. `turn`: the next story; `last`: in which slot each rank died last."""

    errand: Errand
    dice: random.Random
    ranks: list[int]
    turn: int
    lives: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def deal(self, size: int, place: int, slots: Sequence[tuple[str, float]]) -> list[Exact]:
        """Deal the next story that `size` ranks can tell at slot `place` of `slots`, and the ranks that do."""
        others_die = any(kind == "pick" for kind, _ in slots[place + 1 :])
        for _ in STORIES:
            story = STORIES[self.turn % len(STORIES)]
            self.turn += 1
            fit = [rank for rank in self.ranks if self._fits(rank, story, place, others_die=others_die)]
            if len(fit) >= size and (size == 1 or story not in ALONE):
                break
        else:  # anybody comes by there
            story, fit = "between", list(self.ranks)
        # The one that died longest ago goes first, so that all get their turn.
        self.dice.shuffle(fit)
        ranks = sorted(fit, key=lambda rank: self.last.get(rank, -1))[:size]
        point = self._point(story, int(slots[place][1]))
        self.last |= dict.fromkeys(ranks, place)
        return [self._kill(rank, story, point) for rank in ranks]

    def _fits(self, rank: int, story: str, place: int, *, others_die: bool) -> bool:
        """True if `rank` is sure to come by what `story` is about."""
        errand, life = self.errand, self.lives.get(rank, 0)
        since = place - self.last.get(rank, -1) - 1  # so many others died since it did
        if story in ON_ITS_WAY:
            return life > 0 or (story == "joining" and place == 0)
        if story == "admission" and errand.respawn.spares:
            return False  # the view that ends with a death takes the spare in: nobody is asked
        if story in ALONE:
            return others_die and (life == 0 or since >= errand.respawn.spares)
        if story in SHARD_PHASES and errand.shards < errand.workers:
            alone = rank == errand.workers - 1  # the highest always has a shard
        elif story in {"sum", "mirror"} and not errand.many_blocks:
            alone = rank == 0  # the lowest always has a block
        else:
            alone = True
        return alone and (
            life == 0 or since >= errand.respawn.spares
        )  # with spares its next life is in only after those

    def _point(self, story: str, step: int) -> tuple[int, int | None, int]:
        """Return (step, entry, nth) of a story, the same for all of a group."""
        nth = self.dice.randrange(DEPTHS.get(story, 1))
        if story in ALONE:
            return 0, None, nth  # whenever it comes
        shards_min = max(1, self.errand.shards // self.errand.workers)
        entry = self.dice.randrange(shards_min) if story in SHARD_PHASES else 0
        return step, entry, nth

    def _kill(self, rank: int, story: str, point: tuple[int, int | None, int]) -> Exact:
        life = self.lives.get(rank, 0)
        self.lives[rank] = life + 1
        step, entry, nth = point
        if story == "joining":
            return Exact(rank, story, -1, entry, nth, story, life)
        if story == "replay":
            step = 0  # as soon as it replays anything
        return Exact(rank, story, step, entry, nth, story, life, later=True)
