"""The leaf that this worker is at, shown to the others block by block; and theirs, as far as they count.

Nothing is shown unless each shard has one backward (`single`). See `reduce.opened` for the words, and the engine for
who reads them.
"""

from __future__ import annotations

from collections.abc import Callable

from relume.core.ranges import Range
from relume.core.view import shards_of
from relume.reduce.opened import Missing, Opened
from relume.train.standing import Standing
from relume.train.store import Store
from relume.wire.messages import View


class Opening:
    """`on_more` is called when more of the leaf is whole."""

    def __init__(self, store: Store, standing: Standing, *, single: bool) -> None:
        self.single = single
        self.on_more: Callable[[], None] = lambda: None
        self._leaves = store.open_leaves
        self._standing = standing
        self._missing = Missing(store.gradient, store.bounds)
        self._step, self._shard, self._slot = -1, -1, -1
        self.shown = False
        """True once something of the leaf is shown: from there on it must become what it began as."""

    def close(self) -> None:
        """No leaf is open: its slot may be given away."""
        if self.single:
            self._standing.write(lambda: self._leaves.close(self._standing.rank))

    def begin(self, step: int, shard: int, slot: int) -> None:
        """The leaf of `shard` will come to stand in `slot`."""
        self._step, self._shard, self._slot, self.shown = step, shard, slot, False
        if self.single:
            self._missing.begin()

    def came(self, parameter: int, weight: float | None) -> None:
        """Show what is whole now that the gradient of `parameter` is there."""
        blocks = self._missing.came(parameter)
        if blocks and weight is not None:
            self._standing.write(lambda: self._show(blocks, weight))
            self.on_more()

    def _show(self, blocks: int, weight: float) -> None:
        rank = self._standing.rank
        if self.shown:
            self._leaves.add(rank, blocks)
        else:
            self._leaves.open(rank, self._step, Opened(self._shard, self._slot, weight, blocks))
            self.shown = True

    def leaves(self, view: View, step: int) -> dict[Range, tuple[int, Opened]]:
        """Return the open leaves of `step` with their ranks: each where `view` has its shard computed."""
        found = {}
        for rank in view.members:
            leaf = self._leaves.read(rank, step)
            if leaf is not None and leaf.shard in shards_of(view, rank, step):
                found[leaf.shard, leaf.shard + 1] = (rank, leaf)
        return found
