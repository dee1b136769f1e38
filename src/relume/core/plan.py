"""From an old view, its survivors and what the arena holds: the next view.

Rule 4: when all survivors have promised and the others are fenced, the seals are final. If every block of a step
is sealed, that step is complete and nothing of it is redone. Otherwise what is sealed stands, and only what is
missing gets a new worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relume.core import ranges
from relume.core.ranges import Range
from relume.core.view import shards_of
from relume.wire.messages import Ballot, View


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the arena holds once nobody may write: read by the agent, judged here.

    `complete` is the newest step whose blocks are all sealed, or the last one before the checkpoint that the run goes
    on from (-1: none). `sealed` are the nodes of the step after it, by the rank in whose slots they stand, the dead
    included. `taken` is the newest step that each worker has copied out, joiners included.
    """

    complete: int
    sealed: Mapping[int, Collection[Range]]
    taken: Mapping[int, int] = field(default_factory=dict)


Moved = Mapping[int, Mapping[int, int]]
"""By the rank that is gone: its shards that somebody has to compute again, and who that is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next view, and the shards that had to move because their worker is gone."""

    view: View
    moved: Moved


def replan(old: View, number: Ballot, members: Sequence[int], inventory: Inventory) -> Plan:
    """Return the view that follows `old` when `members` go on: those that are left, and any who come in their place."""
    step = inventory.complete + 1
    standing = ranges.leaves(node for nodes in inventory.sealed.values() for node in nodes)
    alive = tuple(sorted(members))
    if step > old.step:
        # Nobody had an assignment by name for this step yet: it would have been spread over the old members.
        kept = {rank: list(shards_of(old, rank, step)) for rank in old.members}
    else:
        kept = {rank: list(shards) for rank, shards in zip(old.members, old.assigned, strict=True)}
    lost = {shard: rank for rank in old.members if rank not in alive for shard in kept[rank] if shard not in standing}
    assigned = {rank: kept.get(rank, []) for rank in alive}
    known = {shard for shards in assigned.values() for shard in shards}
    for rank in alive:  # what a dead predecessor left in its slots is its own now: it may merge it, and die of it
        assigned[rank] += sorted(ranges.leaves(inventory.sealed.get(rank, ())) - known)
    load = {rank: sum(shard not in standing for shard in assigned[rank]) for rank in alive}
    moved: dict[int, dict[int, int]] = {}
    for heir, shards in _bequeath(sorted(lost), load).items():
        assigned[heir] += shards
        for shard in shards:
            moved.setdefault(lost[shard], {})[shard] = heir
    view = View(
        number=number,
        members=alive,
        step=step,
        shards=old.shards,
        assigned=tuple(tuple(assigned[rank]) for rank in alive),
    )
    return Plan(view, moved)


def _bequeath(lost: Sequence[int], load: Mapping[int, int]) -> dict[int, list[int]]:
    """Spread `lost` shards: the least loaded first, since whoever has nothing left to do starts at once.

    Each heir gets neighbours, which merge in the tree and so take few slots.
    """
    level = dict(load)
    count = dict.fromkeys(load, 0)
    for _ in lost:
        heir = min(level, key=lambda rank: (level[rank], rank))
        level[heir] += 1
        count[heir] += 1
    parts: dict[int, list[int]] = {}
    start = 0
    for heir in sorted((rank for rank in count if count[rank]), key=lambda rank: (load[rank], rank)):
        parts[heir] = list(lost[start : start + count[heir]])
        start += count[heir]
    return parts
