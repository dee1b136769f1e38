"""Taking a result: what becomes `.grad`, private to this worker (rule 5), at the least price.

There are two ways. *Mapped*: `.grad` is a view of the result itself, through a map that the kernel keeps private: what
the script writes goes into a copy of that page that nobody else sees. An optimizer only reads, so nothing is copied at
all. The result is not overwritten before every worker has taken the next one (rule 6), and by then `.grad` is gone.
*Copied*: into memory of one gradient's size that is used again from step to step, since fresh memory costs three times
the copy itself.

A script that writes to gradients (clipping, unscaling) pays more for copied pages than for one copy, and one that keeps
a gradient beyond its step must find it unchanged. So the first sign of either ends mapping for good.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref

import torch

from relume.reduce.layout import GradientLayout
from relume.train.store import Store


class Taken:
    """The gradients of the newest step that was taken."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mapped: dict[int, Lent] = {}
        self._copied: Lent | None = None
        self._newest: Lent | None = None
        self._place = 0
        self._private = store.private
        mine = weakref.ref(self)
        os.register_at_fork(before=lambda: _told_of_fork(mine()))

    def take(self, step: int) -> list[torch.Tensor]:
        """Return the gradients of the complete `step`, one view per parameter, with the parameters' strides."""
        if self._private is None:
            return self.copy(self._store.result(step))
        place = step % self._store.layout.kept
        if place not in self._mapped:
            start, size = self._range(place)
            memory = torch.frombuffer(self._private.memory, dtype=torch.uint8, offset=start, count=size)
            self._mapped[place] = Lent(self._store.gradient, memory)
        self._newest, self._place = self._mapped[place], place
        return self._newest.views

    def copy(self, result: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients in `result` (uint8, one gradient), copied."""
        if self._copied is None or self._copied.is_held:
            self._copied = Lent(self._store.gradient, torch.empty(self._store.gradient.size, dtype=torch.uint8))
        self._copied.memory.copy_(result)
        return self._copied.views

    def give_back(self) -> None:
        """`.grad` is None everywhere: this worker is about to say that it needs nothing of the step any more."""
        lent, self._newest = self._newest, None
        if lent is None or self._private is None:
            return
        start, size = self._range(self._place)
        if lent.is_held:
            lent.keep()
        elif lent.is_written or self._private.is_copied(start, size):
            self._private.discard(start, size)
        else:
            return
        self._map_no_more()

    def _before_fork(self) -> None:
        """A child may read `.grad` for as long as it likes."""
        if self._newest is not None and self._private is not None:
            self._newest.keep()
            self._map_no_more()

    def _map_no_more(self) -> None:
        self._private = None
        self._mapped.clear()

    def _range(self, place: int) -> tuple[int, int]:
        return self._store.layout.result(place), self._store.gradient.size


def _told_of_fork(taken: Taken | None) -> None:
    if taken is not None:
        taken._before_fork()  # noqa: SLF001  (its own function, but for the weak reference)


class Lent:
    """Memory that the script sees as gradients for a while.

    The views are the same tensors each time, so what a script has done to one of them is looked for.
    """

    def __init__(self, layout: GradientLayout, memory: torch.Tensor) -> None:
        self.memory = memory
        self.views = layout.views(memory)
        self._marks: list[dict[str, object]] = [vars(view) for view in self.views]
        self._unheld = self._holders()
        self._versions = self._sum()

    @property
    def is_held(self) -> bool:
        """True if somebody holds the memory or a view of it, in Python or in torch, or has changed what a view is."""
        return self._holders() != self._unheld or any(self._marks)

    @property
    def is_written(self) -> bool:
        """True if torch has written to a view."""
        return self._sum() != self._versions

    def keep(self) -> None:
        """Leave the memory to whoever holds it, as it is: every page becomes a copy by being written to."""
        pages = self.memory[:: mmap.PAGESIZE]
        pages.copy_(pages.clone())

    def _sum(self) -> int:
        return sum([view._version for view in self.views])  # noqa: SLF001  (no public spelling)

    def _holders(self) -> list[int]:
        """Count who holds the memory and each view of it, and say where they are."""
        storage: int = torch._C._storage_Use_Count(self.memory.untyped_storage()._cdata)  # noqa: SLF001
        views = self.views
        return [
            storage,
            self.memory.data_ptr(),
            *[view.data_ptr() for view in views],
            *[view._use_count() for view in views],  # type: ignore[attr-defined]  # noqa: SLF001
            *[view.requires_grad for view in views],
            *[sys.getrefcount(view) for view in views],
        ]
