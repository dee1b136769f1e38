"""The arena as its owner holds it: descriptors to pass on, and the reading of it for the coordinator."""

from __future__ import annotations

import os

from relume.arena import doorbell, memory, progress
from relume.arena.layout import (
    KEPT_BEYOND,
    MIRRORS,
    RESULTS,
    SLOTS_EAGER,
    ControlLayout,
    DataLayout,
    block_bounds,
    slots_max,
)
from relume.arena.progress import Moment, Pulse
from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.errors import ConfigError
from relume.reduce.seals import Seals
from relume.state.seen import Seen, generations
from relume.wire.messages import Shape


class Arena:
    """Made before the workers, sized when the first of them has told what it protects, closed after the last.

    `seats`: how many workers there can be at a time. `every`: steps between mirrors, 0 for none.
    """

    def __init__(self, seats: int, every: int = 0) -> None:
        self.every = every
        self._layout = ControlLayout(seats, every + KEPT_BEYOND if every else RESULTS)
        self._data: DataLayout | None = None
        self._seated = 0
        self.base = 0
        """All steps before this one were done before a checkpoint: they stand in no arena."""
        try:
            self.control_fd = memory.create("relume-control", self._layout.size)
            self.data_fd = memory.create("relume-data")
            self.mirror_fds = [memory.create(f"relume-mirror-{generation}") for generation in range(MIRRORS)]
            self.bells = [doorbell.create() for _ in range(seats)]
        except OSError as error:
            text = f"the arena for {seats} workers cannot be made ({error.strerror})."
            raise ConfigError(text + " Use fewer workers (--workers), or raise the limit (ulimit -a)") from error
        self._map = memory.attach(self.control_fd, self._layout.size)
        self.words = memoryview(self._map).cast("Q")
        self._seals: Seals | None = None

    @property
    def layout(self) -> ControlLayout:
        """Where everything stands in the control part."""
        return self._layout

    @property
    def descriptors(self) -> list[int]:
        """What every worker inherits."""
        return [self.control_fd, self.data_fd, *self.mirror_fds, *self.bells]

    def words_for(self, connection: int, *, life: int, began: bool) -> str:
        """Return what a worker is told of the descriptors that it inherits (`AGENT_VARIABLE`)."""
        facts = {
            "socket": connection,
            "control": self.control_fd,
            "data": self.data_fd,
            "mirrors": ",".join(map(str, self.mirror_fds)),
            "bells": ",".join(map(str, self.bells)),
            "kept": self._layout.kept,
            "every": self.every,
            "life": life,
            "began": int(began),
        }
        return " ".join(f"{name}={value}" for name, value in facts.items())

    def reserve(self, shape: Shape, workers: int) -> int:
        """Give the data part its size, and memory to the first `workers` seats; return the bytes allocated.

        Raises `MemoryShortage`.
        """
        self._data = DataLayout(shape, self._layout.workers, self._layout.kept)
        size = memory.reserve(self.data_fd, self._data, workers)
        self._seated = workers
        blocks, slots = len(block_bounds(shape.gradient_bytes)), slots_max(shape.shards)
        self._seals = Seals(self.words, self._layout, blocks, slots)
        return size

    def seat(self, rank: int) -> None:
        """See to it that the seat of `rank` has memory. Raises `MemoryShortage`."""
        if self._data is not None and rank >= self._seated:
            memory.grow(self.data_fd, self._data.slot(rank, 0), SLOTS_EAGER * self._data.gradient_size)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the results that are kept for those who come back."""
        return 0 if self._data is None else self._data.kept * self._data.gradient_size

    def moment(self, rank: int) -> Moment:
        """Return what `rank` is doing, or was when it died."""
        return progress.read(self.words, self._layout, rank)

    def pulses(self, rank: int) -> list[Pulse]:
        """Return what `rank` showed of its state at its newest steps' begin."""
        return progress.pulses(self.words, self._layout, rank)

    def inventory(self, ranks: list[int]) -> Inventory:
        """Read the seals, and what `ranks` have taken. Final once survivors have promised and the rest is fenced."""
        if self._seals is None:
            return Inventory(-1, {})
        complete = max(self._seals.newest_complete(), self.base - 1)
        sealed: dict[int, list[Range]] = {}
        for rank, _, node in self._seals.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        taken = {rank: progress.taken(self.words, self._layout, rank) for rank in ranks}
        return Inventory(complete, sealed, taken)

    def newest_mirror(self) -> int:
        """Return the step of the newest whole mirror, 0 if there is none."""
        seen = self.mirror()
        return 0 if seen is None else seen.step or 0

    def mirror(self) -> Seen | None:
        """Return the words of the newest whole mirror."""
        seen = [Seen(part.copy()) for part in generations(self.words, self._layout)]
        return max((each for each in seen if each.step), key=lambda each: each.step or 0, default=None)

    def close(self) -> None:
        """Close every descriptor and unmap.

        Unmapping now matters: a forked child does not have this map, and would otherwise unmap whatever it has there.
        """
        self._seals = None
        self.words.release()
        self._map.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
