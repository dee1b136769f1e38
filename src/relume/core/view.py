"""What follows from a view: who computes which shard, who sums which block, which number comes next.

Pure functions of the view (rule 2): two workers that hold the same view agree on everything without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from relume.wire.messages import Ballot, View

NONE: Ballot = (0, 0)
"""Older than every ballot."""


def spread(members: Sequence[int], shards: int) -> tuple[tuple[int, ...], ...]:
    """Return each member's shards: contiguous, even, in order of rank. More members than shards: some have none."""
    count = len(members)
    return tuple(tuple(range(shards * i // count, shards * (i + 1) // count)) for i in range(count))


def first(epoch: int, members: Sequence[int], shards: int, step: int = 0) -> View:
    """Return the view in which a run begins, with `step`."""
    return planned((epoch, 1), members, shards, step)


def planned(number: Ballot, members: Sequence[int], shards: int, step: int) -> View:
    """Return a view of `members` in whose first step nothing is done yet: shards are spread evenly."""
    ranks = tuple(sorted(members))
    return View(number=number, members=ranks, step=step, shards=shards, assigned=spread(ranks, shards))


def shards_of(view: View, rank: int, step: int) -> tuple[int, ...]:
    """Return the shards that `rank` computes in `step` under `view`."""
    place = view.members.index(rank)
    if step == view.step:
        return view.assigned[place]
    count = len(view.members)
    return tuple(range(view.shards * place // count, view.shards * (place + 1) // count))


def owner(view: View, block: int, blocks: int) -> int:
    """Return the rank that sums `block` of `blocks` under `view`."""
    return view.members[block * len(view.members) // blocks]


def mirror_owner(view: View, chunk: int, chunks: int) -> int:
    """Return the rank that mirrors `chunk` of `chunks` under `view`: one that has shards.

    Steps go on without whoever has none: it may hear of the view, and so of its part, only several steps later.
    """
    working = [rank for rank, shards in zip(view.members, spread(view.members, view.shards), strict=True) if shards]
    return working[chunk * len(working) // chunks]
