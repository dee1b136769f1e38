"""A worker's place in the run: its rank, the control part of the arena, its doorbell and its link to the agent.

Under `relume run` it is made from what the agent passed on (descriptors, named in the environment); under plain
`python train.py` it is a run of one worker in private memory, with the same layout and no agent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from relume.arena import knell, memory, progress
from relume.arena.doorbell import Doorbells
from relume.arena.layout import ControlLayout
from relume.arena.progress import Progress
from relume.errors import ConfigError
from relume.train.link import Link
from relume.train.standing import Standing
from relume.wire.messages import AGENT_VARIABLE, PROTOCOL, Hello, Leave


@dataclass(frozen=True, slots=True)
class Passed:
    """What the agent passes on in `AGENT_VARIABLE`; see there."""

    socket: int
    control: int
    data: int
    bells: tuple[int, ...]
    mirrors: tuple[int, ...]
    kept: int
    every: int
    life: int
    began: bool

    @classmethod
    def parse(cls, text: str) -> Passed:
        """Read the words. Raises ValueError or KeyError for what is none of them."""
        words = dict(part.split("=", 1) for part in text.split())
        numbers = {name: tuple(int(part) for part in value.split(",") if part) for name, value in words.items()}
        return cls(
            socket=_one(numbers, "socket"),
            control=_one(numbers, "control"),
            data=_one(numbers, "data"),
            bells=numbers["bells"],
            mirrors=numbers["mirrors"],
            kept=_one(numbers, "kept"),
            every=_one(numbers, "every"),
            life=_one(numbers, "life"),
            began=bool(_one(numbers, "began")),
        )

    @property
    def descriptors(self) -> list[int]:
        """All descriptors."""
        return [self.socket, self.control, self.data, *self.mirrors, *self.bells]

    def take(self, control: ControlLayout, rank: int) -> None:
        """Check that they are what they should be, and keep them from further children. Raises ValueError."""
        if not 0 <= rank < control.workers:
            raise ValueError(f"there is no seat {rank} of {control.workers}")
        if not stat.S_ISSOCK(os.fstat(self.socket).st_mode) or os.fstat(self.control).st_size != control.size:
            raise ValueError(f"{self.socket} and {self.control} are other files here")
        for descriptor in self.descriptors:
            os.set_inheritable(descriptor, False)


def _one(numbers: dict[str, tuple[int, ...]], name: str) -> int:
    (number,) = numbers[name]
    return number


@dataclass(slots=True)
class Seat:
    """See the module's docstring. `workers` counts the seats of the arena, taken or not.

    `data` is the descriptor of the arena's data part, None for a run of one; `mirrors` are those of the mirror's two
    generations, one of which is written every `every` steps (0: never). `life`: how many had this rank before; `began`:
    the run had when this worker was started, so that it comes later.
    """

    rank: int
    workers: int
    run_id: str
    words: memoryview
    control: ControlLayout
    standing: Standing
    progress: Progress
    link: Link | None = None
    data: int | None = None
    mirrors: tuple[int, ...] = ()
    every: int = 0
    life: int = 0
    began: bool = False

    def taken_by(self, rank: int) -> int:
        """Return the newest step that `rank` has taken."""
        return progress.taken(self.words, self.control, rank)


def solo() -> Seat:
    """Return the only seat of a run of one worker."""
    control = ControlLayout(1)
    words = memoryview(memory.private(control.size)).cast("Q")
    return Seat(0, 1, f"solo-{os.getpid()}", words, control, Standing(0, None), _progress(words, control, 0))


def from_environment(profile: dict[str, str]) -> Seat | None:
    """Return the seat that an agent made for this process, or None if there is none. Raises `ConfigError`."""
    text = os.environ.pop(AGENT_VARIABLE, None)
    if text is None:
        return None
    try:
        rank = int(os.environ["RANK"])
        passed = Passed.parse(text)
        control = ControlLayout(len(passed.bells), passed.kept)
        passed.take(control, rank)
        words = memoryview(memory.attach(passed.control, control.size)).cast("Q")
    except (ValueError, KeyError, OSError) as error:
        text = f"{AGENT_VARIABLE} is set but does not describe descriptors of a live agent ({error})."
        raise ConfigError(text + " Start the script with `relume run`, and do not copy its environment") from error
    bells = Doorbells(list(passed.bells), rank, lambda other: progress.in_use(words, control, other))
    standing = Standing(rank, bells)
    run_dir = os.environ.get("RELUME_RUN_DIR")
    log = Path(run_dir) / f"worker-{rank}.log" if run_dir else None
    link = Link(socket.socket(fileno=passed.socket), standing, log)
    seat = Seat(
        rank,
        control.workers,
        os.environ.get("RELUME_RUN_ID", ""),
        words,
        control,
        standing,
        _progress(words, control, rank, passed.life),
        link,
        passed.data,
        passed.mirrors,
        passed.every,
        passed.life,
        passed.began,
    )
    link.trap = seat.progress.spring
    link.first = lambda: knell.hang(words, control, rank)
    standing.on_look = seat.progress.advance
    seat.progress.leave = lambda: _leave(seat)
    _close_in_children(passed.descriptors)
    link.send(Hello(rank, os.getpid(), PROTOCOL, profile))
    link.start()
    faulthandler.register(progress.STACK_SIGNAL, file=2, all_threads=False)
    return seat


def _leave(seat: Seat) -> None:
    seat.standing.retire()
    if seat.link is not None:
        seat.link.send(Leave("its shards were handed over by plan"))


def _progress(words: memoryview, control: ControlLayout, rank: int, life: int = 0) -> Progress:
    return Progress(words, control, rank, progress.parse_traps(os.environ.get("RELUME_TRAPS", "[]"), rank, life))


def _close_in_children(descriptors: list[int]) -> None:
    """Keep forked data loaders from holding the worker's descriptors: killed without them they would live on."""
    owner = os.getpid()

    def close() -> None:
        if os.getppid() == owner:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    os.register_at_fork(after_in_child=close)
