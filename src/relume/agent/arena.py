"""The arena as its owner holds it: descriptors to pass on, and the reading of it for the coordinator."""

from __future__ import annotations

import os

from relume.arena import doorbell, memory, progress
from relume.arena.layout import ControlLayout, DataLayout, block_bounds
from relume.arena.progress import Moment, Pulse
from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.errors import ConfigError
from relume.reduce.seals import Seals
from relume.wire.messages import Shape


class Arena:
    """Made before the workers, sized when the first of them has told what it protects, closed after the last."""

    def __init__(self, workers: int) -> None:
        self._layout = ControlLayout(workers)
        try:
            self.control_fd = memory.create("relume-control", self._layout.size)
            self.data_fd = memory.create("relume-data")
            self.bells = [doorbell.create() for _ in range(workers)]
        except OSError as error:
            text = f"the arena for {workers} workers cannot be made ({error.strerror})."
            raise ConfigError(text + " Use fewer workers (--workers), or raise the limit (ulimit -a)") from error
        self._map = memory.attach(self.control_fd, self._layout.size)
        self._words = memoryview(self._map).cast("Q")
        self._seals: Seals | None = None

    def reserve(self, shape: Shape) -> int:
        """Give the data part its size; return the bytes allocated. Raises `MemoryShortage`."""
        layout = DataLayout(shape, self._layout.workers)
        memory.reserve(self.data_fd, layout)
        self._seals = Seals(self._words, self._layout, len(block_bounds(shape.gradient_bytes)))
        return layout.eager_bytes

    def moment(self, rank: int) -> Moment:
        """Return what `rank` is doing, or was when it died."""
        return progress.read(self._words, self._layout, rank)

    def pulses(self, rank: int) -> list[Pulse]:
        """Return what `rank` showed of its state at its newest steps' begin."""
        return progress.pulses(self._words, self._layout, rank)

    def inventory(self) -> Inventory:
        """Read the seals. They are final once every survivor has promised and the rest is fenced (rule 4)."""
        if self._seals is None:
            return Inventory(-1, {})
        complete = self._seals.newest_complete()
        sealed: dict[int, list[Range]] = {}
        for rank, _, node in self._seals.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        return Inventory(complete, sealed)

    def close(self) -> None:
        """Close every descriptor and unmap.

        Unmapping now matters: a forked child does not have this map, and would otherwise unmap whatever it has there.
        """
        self._seals = None
        self._words.release()
        self._map.close()
        for descriptor in (self.control_fd, self.data_fd, *self.bells):
            os.close(descriptor)
