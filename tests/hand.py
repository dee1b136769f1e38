"""An agent made by hand: it owns an arena, starts workers in it, and says to them what a test wants said, and no more.

The real agent (`tests.fleet`) decides by itself when somebody is admitted. Here a test decides, so that a joiner can be
brought in at every possible moment, and messages can come late, twice, or in another order.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from relume.arena import doorbell, memory, progress
from relume.arena.layout import KEPT_BEYOND, MIRROR_WORDS, MIRRORS, RESULTS, ControlLayout, DataLayout, block_bounds
from relume.arena.progress import Moment
from relume.core import view as views
from relume.reduce.seals import Seals
from relume.wire.framing import Decoder, encode
from relume.wire.messages import AGENT_VARIABLE, Close, FromWorker, Hello, Install, Join, Replay, View
from tests.fleet import Forked

WAIT_S = 20.0


class Sitting:
    """One process in a seat: what it has said, and how it ended."""

    def __init__(self, rank: int, life: int, pid: int, connection: socket.socket, pipes: tuple[int, int]) -> None:
        self.rank, self.life, self.pid, self.connection = rank, life, pid, connection
        self.heard: list[Any] = []
        self.output = b""
        self.status: int | None = None
        self.decoder: Decoder[FromWorker] = Decoder(FromWorker)
        self.pipes = list(pipes)

    def of(self, kind: type) -> list[Any]:
        """What it has said of one kind."""
        return [message for message in self.heard if isinstance(message, kind)]

    def say(self, *messages: Any) -> None:
        """Send it messages."""
        for message in messages:
            self.connection.sendall(encode(message))


class Hand:
    """`with Hand(body, seats=2, every=3) as hand:`; at the end nothing of it is left."""

    def __init__(
        self,
        body: Callable[[int], None],
        *,
        seats: int = 1,
        every: int = 3,
        traps: Sequence[dict[str, Any]] = (),
        **env: str,
    ) -> None:
        self.layout = ControlLayout(seats, every + KEPT_BEYOND if every else RESULTS)
        self.every = every
        self._body = body
        self._environment = {"RELUME_TRAPS": json.dumps(list(traps)), **env}
        self._control = memory.create("hand-control", self.layout.size)
        self._data = memory.create("hand-data")
        self._mirrors = [memory.create(f"hand-mirror-{index}") for index in range(MIRRORS)]
        self._bells = [doorbell.create() for _ in range(seats)]
        self._map = memory.attach(self._control, self.layout.size)
        self.words = memoryview(self._map).cast("Q")
        self.all: list[Sitting] = []
        self.seats: dict[int, Sitting] = {}
        self.seals: Seals | None = None
        self.shards = 0
        self.number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.all:
            if one.status is None:
                os.killpg(one.pid, signal.SIGKILL)
                os.waitpid(one.pid, 0)
            one.connection.close()
            for pipe in one.pipes:
                os.close(pipe)
        self.seals = None
        for descriptor in (self._control, self._data, *self._mirrors, *self._bells):
            os.close(descriptor)

    # What it does ---------------------------------------------------------------------------------------------------

    def start(self, rank: int = 0) -> Sitting:
        """Start the next life of a rank; return it once it has joined, and the arena has room for what it protects."""
        life = sum(one.rank == rank for one in self.all)
        ours, theirs = socket.socketpair()
        facts = {
            "socket": theirs.fileno(),
            "control": self._control,
            "data": self._data,
            "mirrors": ",".join(map(str, self._mirrors)),
            "bells": ",".join(map(str, self._bells)),
            "kept": self.layout.kept,
            "every": self.every,
            "life": life,
            "began": int(self.number > 0),
        }
        environment = {
            **os.environ,
            **self._environment,
            "RANK": str(rank),
            "RELUME_RUN_ID": "by-hand",
            AGENT_VARIABLE: " ".join(f"{name}={value}" for name, value in facts.items()),
        }
        descriptors = [theirs.fileno(), self._control, self._data, *self._mirrors, *self._bells]
        with theirs:
            started = Forked(self._body).spawn((), environment, descriptors)
        one = Sitting(rank, life, started.pid, ours, (started.out, started.err))
        self.all.append(one)
        self.seats[rank] = one
        join = self.hear(one, Join)
        if self.seals is None:
            layout = DataLayout(join.shape, self.layout.workers, self.layout.kept)
            memory.reserve(self._data, layout, 1)
            self.seals = Seals(self.words, self.layout, len(block_bounds(join.shape.gradient_bytes)))
            self.shards = join.shape.shards
        return one

    def view(self, members: Sequence[int], step: int) -> View:
        """Make the next view, in whose first step nothing is done yet."""
        self.number += 1
        return views.planned((1, self.number), members, self.shards, step)

    def install(self, view: View) -> View:
        """Put a view in force."""
        for rank in view.members:
            self.seats[rank].say(Install(view))
        return view

    def begin(self, *ranks: int) -> View:
        """Start workers, and install the first view."""
        for rank in ranks:
            self.start(rank)
        return self.install(self.view(ranks, 0))

    def come_back(self, rank: int = 0, end: int = -1) -> Sitting:
        """Start another life of a rank, that has to replay."""
        one = self.start(rank)
        one.say(Replay(end))
        return one

    def inherit(self, other: Hand) -> None:
        """Take the mirror of another arena over, and nothing else."""
        for mine, theirs in zip(self._mirrors, other._mirrors, strict=True):
            size = os.fstat(theirs).st_size
            os.ftruncate(mine, size)
            os.pwrite(mine, os.pread(theirs, size, 0), 0)
        for generation in range(MIRRORS):
            here, there = self.layout.mirror(generation), other.layout.mirror(generation)
            self.words[here : here + MIRROR_WORDS] = other.words[there : there + MIRROR_WORDS]

    def close(self, view: View) -> None:
        """Tell all members that everybody has left the loop."""
        for rank in view.members:
            self.seats[rank].say(Close(view))

    # What it sees ---------------------------------------------------------------------------------------------------

    def moment(self, rank: int) -> Moment:
        """What a worker is doing."""
        return progress.read(self.words, self.layout, rank)

    @property
    def complete(self) -> int:
        """The newest complete step."""
        assert self.seals is not None
        return self.seals.newest_complete()

    def hear(self, one: Sitting, kind: type, count: int = 1) -> Any:
        """Wait until `one` has said `count` messages of a kind, and return the last of them."""
        self.until(lambda: len(one.of(kind)) >= count or one.status is not None)
        assert len(one.of(kind)) >= count, f"it ended with {one.status}:\n{one.output.decode()}"
        return one.of(kind)[count - 1]

    def end(self, one: Sitting) -> int:
        """Wait until it has ended; return its exit code, negative for a signal."""
        self.until(lambda: one.status is not None)
        assert one.status is not None
        return one.status

    def until(self, what: Callable[[], Any], limit_s: float = WAIT_S) -> None:
        """Listen until `what()` is true."""
        end = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < end, f"not within {limit_s} s: {self._told()}"
            self._listen()

    def _told(self) -> str:
        lines = [f"rank {rank} is {self.moment(rank)}" for rank in self.seats]
        for one in self.all:
            heard = [message for message in one.heard if not isinstance(message, Hello | Join)]
            lines.append(f"rank {one.rank}, life {one.life}, said {heard} and wrote {one.output.decode()}")
        return "\n".join(lines)

    def _listen(self) -> None:
        places: dict[int, tuple[Sitting, bool]] = {}
        for one in self.all:
            places |= dict.fromkeys(one.pipes, (one, False))
            if one.status is None:
                places[one.connection.fileno()] = (one, True)
        poll = select.poll()  # select() is for descriptors below 1024
        for descriptor in places:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(5):
            one, is_message = places[descriptor]
            data = one.connection.recv(1 << 16) if is_message else os.read(descriptor, 1 << 16)
            if is_message:
                one.heard += one.decoder.feed(data)
            elif data:
                one.output += data
            else:
                one.pipes.remove(descriptor)
                os.close(descriptor)
        for one in self.all:
            if one.status is None:
                pid, status = os.waitpid(one.pid, os.WNOHANG)
                one.status = os.waitstatus_to_exitcode(status) if pid else None
