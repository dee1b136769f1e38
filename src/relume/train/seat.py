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

from relume.arena import memory, progress
from relume.arena.doorbell import Doorbells
from relume.arena.layout import ControlLayout
from relume.arena.progress import Progress
from relume.errors import ConfigError
from relume.train.link import Link
from relume.train.standing import Standing
from relume.wire.messages import AGENT_VARIABLE, PROTOCOL, Hello, Leave


@dataclass(slots=True)
class Seat:
    """See the module's docstring. `data` is the descriptor of the arena's data part, None for a run of one."""

    rank: int
    workers: int
    run_id: str
    words: memoryview
    control: ControlLayout
    standing: Standing
    progress: Progress
    link: Link | None = None
    data: int | None = None

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
        rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        control = ControlLayout(workers)
        connection, control_fd, data, *bells = _inherited(text, control)
        words = memoryview(memory.attach(control_fd, control.size)).cast("Q")
    except (ValueError, KeyError, OSError) as error:
        text = f"{AGENT_VARIABLE} is set but does not describe descriptors of a live agent ({error})."
        raise ConfigError(text + " Start the script with `relume run`, and do not copy its environment") from error
    standing = Standing(rank, Doorbells(bells, rank))
    run_dir = os.environ.get("RELUME_RUN_DIR")
    log = Path(run_dir) / f"worker-{rank}.log" if run_dir else None
    link = Link(socket.socket(fileno=connection), standing, log)
    seat = Seat(
        rank,
        workers,
        os.environ.get("RELUME_RUN_ID", ""),
        words,
        control,
        standing,
        _progress(words, control, rank),
        link,
        data,
    )
    link.trap = seat.progress.spring
    standing.on_look = seat.progress.advance
    seat.progress.leave = lambda: _leave(seat)
    _close_in_children([connection, control_fd, data, *bells])
    link.send(Hello(rank, os.getpid(), PROTOCOL, profile))
    link.start()
    faulthandler.register(progress.STACK_SIGNAL, file=2, all_threads=False)
    return seat


def _inherited(text: str, control: ControlLayout) -> list[int]:
    """Return the descriptors that `text` names, which are kept from further children from here on."""
    descriptors = [int(part) for part in text.split(",")]
    if len(descriptors) != 3 + control.workers:
        raise ValueError(f"{len(descriptors)} descriptors for {control.workers} workers")
    connection, control_fd = descriptors[:2]
    if not stat.S_ISSOCK(os.fstat(connection).st_mode) or os.fstat(control_fd).st_size != control.size:
        raise ValueError(f"{connection} and {control_fd} are other files here")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return descriptors


def _leave(seat: Seat) -> None:
    seat.standing.retire()
    if seat.link is not None:
        seat.link.send(Leave("its shards were handed over by plan"))


def _progress(words: memoryview, control: ControlLayout, rank: int) -> Progress:
    return Progress(words, control, rank, progress.parse_traps(os.environ.get("RELUME_TRAPS", "[]"), rank))


def _close_in_children(descriptors: list[int]) -> None:
    """Keep forked data loaders from holding the worker's descriptors: killed without them they would live on."""
    owner = os.getpid()

    def close() -> None:
        if os.getppid() == owner:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    os.register_at_fork(after_in_child=close)
