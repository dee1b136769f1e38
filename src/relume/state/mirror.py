"""The mirror: protected state in the host's memory, so that a worker can come back without asking anybody.

There are two generations. The members write one together, each its chunks, and a death in the middle leaves it
incomplete and the other as it was. Which one is written, and when, follows from what is complete (`Mirror.due`), so
that all members agree without a word.

This module does not know what a view is, nor what is in the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash

from relume.arena.layout import ControlLayout
from relume.errors import StateError
from relume.state.area import Bytes, LiveArea, chunk_bounds, pieces
from relume.state.facts import TensorFacts
from relume.state.generation import Corrupt, Generation, Torn, skeleton_start
from relume.state.seen import SKELETON, Seen, combine, generations
from relume.state.tree import Familiar, dissect, facts, unflatten

Write = Callable[[Callable[[], None]], None]
Owns = Callable[[int, int], bool]

READ_TRIES = 16
"""A reader loses a race only if a whole generation is written while it reads; so often in a row it does not."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `Mirror.write` did. `mine_bytes`: by this worker; `seconds` include waiting for the pen."""

    step: int
    tensor_bytes: int
    skeleton_bytes: int
    mine_bytes: int
    seconds: float


class Mirror:
    """`words`: the control part; `descriptors`: the memfds of the generations; `every`: steps between two mirrors.

    The agent and its scribe use it too, to read. `faults` says what was wrong with a generation that the last `read` or
    `parts` passed over.
    """

    def __init__(self, words: memoryview, layout: ControlLayout, descriptors: tuple[int, int], every: int) -> None:
        parts = zip(generations(words, layout), descriptors, strict=True)
        self._generations = [Generation(part, descriptor) for part, descriptor in parts]
        self.every = every
        self.faults: tuple[str, ...] = ()
        self._not_before = 0
        self._familiar = Familiar()
        self._about: list[TensorFacts] | None = None
        self._area = LiveArea(())

    # What is there ------------------------------------------------------------------------------------------

    def newest(self, before: int | None = None) -> int:
        """Return the newest step, at most `before`, of which a mirror is complete; 0 if there is none.

        0 is also the script's own start, of which there is no mirror, as a rule: `has(0)`.
        """
        return self._newest(before)[0]

    def has(self, step: int) -> bool:
        """True if a complete mirror of exactly this step is there."""
        return self._of(step) is not None

    def digest(self, step: int) -> str:
        """Return the digest of the mirror of `step`, sixteen hexadecimal digits. Raises `StateError` if it is gone."""
        return self._complete(step).digest

    def digest_of(self, tree: object) -> str:
        """Return the digest that a mirror of `tree` would have: equal if and only if all bits are."""
        return digest_of(tree)

    def state_bytes(self, step: int) -> int:
        """Return the bytes of the state in the mirror of `step`. Raises `StateError` if it is gone."""
        return self._complete(step).state_bytes

    def host_bytes(self) -> int:
        """Return the bytes of memory that both generations take on this host."""
        return sum(generation.host_bytes for generation in self._generations)

    # Writing ------------------------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """True if a mirror is to be written at the boundary before `step`: the same on all members.

        It is judged by what is complete of `step` - 2 or older, which is decided: all members have passed that
        boundary, and only what is newer is still written. One that a death cut short is tried again two steps later.
        What is decided only ever gets newer, so that steps, asked for in their order, need not look each time.
        """
        if self.every < 1 or step < self._not_before:
            return False
        self._not_before = first = self._decided(step)[0] + self.every
        return step >= first and (step - first) % 2 == 0

    def write(self, step: int, tree: object, owns: Owns, write: Write, *, last: bool = False) -> Written:
        """Write this worker's share of the mirror of `step`, which is `tree` as it stands before that step.

        `last`: not because it is due, but because the loop ends here; all members have passed the boundary before.

        `write(action)` runs `action` under the pen, as soon as it may; if it comes back without, this worker leaves the
        mirror at that. `owns(chunk, chunks)` is asked under the pen, before each piece of at most 1 MiB, and must go by
        the view in force at that moment without taking the pen itself: so two views' writers never overlap.

        Raises `MemoryShortage`, having written nothing, and `StateError` for state that cannot be kept. Room is made
        for all by whoever comes first, so that a shortage hits all or none; trying again when it is next due is cheap.
        """
        if self.has(step):
            return Written(step, 0, 0, 0, 0.0)
        begin = time.monotonic_ns()
        tensors, about, skeleton = self._familiar.dissect(tree)
        if about is not self._about:
            self._about, self._area = about, LiveArea(about)
        area = self._area.over(tensors)
        try:
            return self._write(step, _Content(skeleton, area, begin), owns, write, last=last)
        finally:
            area.let_go()

    def write_parts(self, step: int, parts: tuple[bytes, Sequence[torch.Tensor]], owns: Owns, write: Write) -> Written:
        """Write a skeleton and its tensors, as `parts` returned them: else like `write`."""
        skeleton, tensors = parts
        content = _Content(skeleton, LiveArea(facts(skeleton)).over(tensors), time.monotonic_ns())
        return self._write(step, content, owns, write)

    def _write(self, step: int, content: _Content, owns: Owns, write: Write, *, last: bool = False) -> Written:
        generation, area = self._generations[self._target(step, last=last)], content.area
        bounds, start = chunk_bounds(area.size), skeleton_start(area.size)
        room = generation.make_room(start + len(content.skeleton))
        raw = np.frombuffer(content.skeleton, dtype=np.uint8)

        def tell_skeleton() -> None:
            generation.tell_skeleton(len(raw))

        def tell_tensors() -> None:
            generation.tell_tensors(area.size, len(bounds), time.monotonic_ns() - content.begin_ns)

        chunk = _Chunk(SKELETON, room[start : start + len(raw)], lambda a, b: iter((raw[a:b],)), tell_skeleton)
        chunks = [(0, chunk)]  # the skeleton is written by the owner of chunk 0, and before it
        for index, (low, high) in enumerate(bounds):
            tell = tell_tensors if index == 0 else None
            chunks.append((index, _Chunk(index, room[low:high], partial(_shifted, area, low), tell)))
        mine = 0
        for index, chunk in chunks:
            mine += _ChunkWriter(generation, step, chunk, partial(owns, index, len(bounds))).run(write)
        return Written(step, area.size, len(raw), mine, (time.monotonic_ns() - content.begin_ns) / 1e9)

    # Reading ------------------------------------------------------------------------------------------------

    def read(self, step: int | None = None) -> tuple[int, Any]:
        """Return the step and the tree of the newest mirror, or of the one of `step`: verified, in private memory.

        If one is corrupt, it is passed over, and `faults` says why. Raises `StateError` if none can be trusted.
        """
        found, skeleton, tensors = self.parts(step)
        about = facts(skeleton)
        return found, unflatten(skeleton, [_move(tensor, fact) for tensor, fact in zip(tensors, about, strict=True)])

    def parts(self, step: int | None = None) -> tuple[int, bytes, list[torch.Tensor]]:
        """Return the step, skeleton and tensors (on the CPU) of a mirror: else like `read`.

        It runs no code that the skeleton names, so that it works where the script's classes are not.
        """
        faults: dict[tuple[int, int], str] = {}
        try:
            for _ in range(READ_TRIES):
                looks = [(seen.step, index, seen) for index, seen in enumerate(self._look())]
                whole = [(s, i, seen) for s, i, seen in looks if s is not None and s == (s if step is None else step)]
                whole = [(s, i, seen) for s, i, seen in whole if (s, i) not in faults]
                if not whole and faults:
                    break
                if not whole:  # there is always one; but the generations were looked at one after the other
                    continue
                found, index, seen = max(whole, key=lambda look: look[0])
                try:
                    return (found, *self._generations[index].read(seen))
                except Torn:
                    continue
                except Corrupt as fault:
                    faults[found, index] = f"the mirror of step {found} is corrupt: {fault}"
        finally:
            self.faults = tuple(faults.values())
        what = "no mirror" if step is None else f"no mirror of step {step}"
        raise StateError("; ".join([f"there is {what} that can be trusted", *faults.values()]))

    # Within -------------------------------------------------------------------------------------------------

    def _look(self) -> list[Seen]:
        return [generation.look() for generation in self._generations]

    def _newest(self, before: int | None) -> tuple[int, int | None]:
        """Return the newest complete step and its generation; (0, None) if there is none."""
        steps = [(seen.step, index) for index, seen in enumerate(self._look())]
        whole = [(step, index) for step, index in steps if step is not None and (before is None or step <= before)]
        return max(whole) if whole else (0, None)

    def _of(self, step: int) -> Seen | None:
        return next((seen for seen in self._look() if seen.step == step), None)

    def _complete(self, step: int) -> Seen:
        seen = self._of(step)
        if seen is None:
            raise StateError(f"there is no complete mirror of step {step}")
        return seen

    def _target(self, step: int, *, last: bool = False) -> int:
        """Return the generation that may be overwritten: not the one that `due` went by."""
        holder = self._decided(step, last=last)[1]
        return 0 if holder is None else 1 - holder

    def _decided(self, step: int, *, last: bool = False) -> tuple[int, int | None]:
        """Return the newest mirror that is decided for all who stand before `step`, and its generation.

        Where there is none two steps old, one of the step before is either what the run was resumed from, and must not
        be overwritten, or just written, which changes nothing here: the next one is not due so soon.
        """
        decided = self._newest(step - (1 if last else 2))
        return decided if decided[1] is not None else self._newest(step - 1)


@dataclass(frozen=True, slots=True)
class _Content:
    """What is to be written, and when that began."""

    skeleton: bytes
    area: LiveArea
    begin_ns: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Where a chunk goes, what its bytes are (from, to, counted within it), and what to say before its seal."""

    index: int
    target: Bytes
    spans: Callable[[int, int], Iterator[Bytes]]
    tell: Callable[[], None] | None


class _ChunkWriter:
    """Writes one chunk, piece by piece, for as long as it is this worker's."""

    def __init__(self, generation: Generation, step: int, chunk: _Chunk, owned: Callable[[], bool]) -> None:
        self._generation, self._step, self._chunk, self._owned = generation, step, chunk, owned
        self._claim: int | None = None
        self._hasher = xxhash.xxh3_64()

    def run(self, write: Write) -> int:
        """Write the chunk; return its bytes, 0 if it is another's or there already."""
        if not self._owned() or not self._do(write, self._begin):
            return 0
        size = len(self._chunk.target)
        for start, end in pieces(0, size):
            spans = list(self._chunk.spans(start, end))
            if not self._do(write, partial(self._copy, start, spans)):
                return 0
            for span in spans:
                self._hasher.update(span.data)
        return size if self._do(write, self._end) else 0

    def _do(self, write: Write, action: Callable[[], None]) -> bool:
        """Run `action` under the pen if the chunk is still this worker's; True if it was."""
        done = False

        def guarded() -> None:
            nonlocal done
            lost = self._claim is not None and not self._generation.holds(self._chunk.index, self._claim)
            if self._owned() and not lost:
                action()
                done = True

        write(guarded)
        return done and self._claim is not None

    def _begin(self) -> None:
        self._claim = self._generation.claim(self._chunk.index, self._step)

    def _copy(self, start: int, spans: list[Bytes]) -> None:
        target = self._chunk.target
        for span in spans:
            target[start : start + len(span)] = span
            start += len(span)

    def _end(self) -> None:
        if self._chunk.tell is not None:
            self._chunk.tell()
        self._generation.seal(self._chunk.index, self._step, self._hasher.intdigest())


def digest_of(tree: object) -> str:
    """Return the digest that a mirror of `tree` would have: equal if and only if all bits are."""
    tensors, about, skeleton = dissect(tree)
    area = LiveArea(about).over(tensors)
    chunks = [area.digest(start, end) for start, end in chunk_bounds(area.size)]
    return combine(area.size, chunks, xxhash.xxh3_64_intdigest(skeleton))


def _shifted(area: LiveArea, by: int, start: int, end: int) -> Iterator[Bytes]:
    return area.spans(by + start, by + end)


def _move(tensor: torch.Tensor, about: TensorFacts) -> torch.Tensor:
    """Return the tensor on the kind of device that it was on."""
    return tensor if about.device == "cpu" else tensor.to(about.device)
