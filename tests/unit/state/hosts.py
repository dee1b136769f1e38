"""A host's mirror for tests: control words and two memfds, as many workers as wanted, and state that tells its step."""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np
import torch

from relume.arena import memory
from relume.arena.layout import ControlLayout
from relume.state.mirror import Mirror

LAYOUT = ControlLayout(4, 12)


class Host:
    """What an agent makes. `mirror()` is a worker's (or the agent's) view of it."""

    def __init__(self, every=8):
        self.every = every
        self.control = memory.create("relume-test-control", LAYOUT.size)
        self.descriptors = (memory.create("relume-test-a"), memory.create("relume-test-b"))

    def mirror(self):
        words = memoryview(mmap.mmap(self.control, LAYOUT.size)).cast("Q")  # goes with the mirror, as hosts are many
        return Mirror(words, LAYOUT, self.descriptors, self.every)

    def close(self):
        for descriptor in (self.control, *self.descriptors):
            os.close(descriptor)

    def flip(self, generation, offset, bit=0):
        byte = os.pread(self.descriptors[generation], 1, offset)
        os.pwrite(self.descriptors[generation], bytes([byte[0] ^ 1 << bit]), offset)

    def flip_word(self, generation, word, bit):
        offset = 8 * (LAYOUT.mirror(generation) + word) + bit // 8
        byte = os.pread(self.control, 1, offset)
        os.pwrite(self.control, bytes([byte[0] ^ 1 << bit % 8]), offset)

    def set_words(self, generation, values):
        os.pwrite(self.control, np.array(values, dtype=np.uint64).tobytes(), 8 * LAYOUT.mirror(generation))


@contextlib.contextmanager
def host(every=8):
    one = Host(every)
    try:
        yield one
    finally:
        one.close()


def state(step, *, size=300_000):
    """Return state of about `size` floats; they and all else tell the step."""
    return {
        "big": torch.full((size,), float(step)),
        "odd": torch.full((3, 5), step, dtype=torch.int16),
        "many": [torch.tensor(float(step + index)) for index in range(20)],
        "plain": {"step": step, "text": "s" * (step % 7), "nothing": None},
    }


def told(tree):
    """Return the step that the state tells, having looked at every bit of it."""
    step = tree["plain"]["step"]
    expected = state(step, size=len(tree["big"]))
    assert tree["plain"] == expected["plain"]
    assert all(torch.equal(a, b) for a, b in zip(tree["many"], expected["many"], strict=True))
    assert torch.equal(tree["big"], expected["big"])
    assert torch.equal(tree["odd"], expected["odd"])
    return step


def everything(chunk, chunks):
    """Own all chunks."""
    return True


def at_once(action):
    """Have a pen that is always free."""
    action()


def share(members, rank):
    """Return the `owns` of `rank` under a view of `members`, as `core.view.owner` has it."""
    return lambda chunk, chunks: members[chunk * len(members) // chunks] == rank
