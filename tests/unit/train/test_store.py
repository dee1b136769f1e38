"""What is kept of a step is read whole or not at all, whoever overwrites it meanwhile (Invariant 8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relume.arena.layout import ControlLayout
from relume.reduce.layout import GradientLayout
from relume.reduce.notes import Note
from relume.train.store import Store
from relume.wire.messages import Shape

KEPT = 3
SHARDS = 2


@pytest.fixture
def store():
    parameters = [("weight", torch.zeros(40_000)), ("bias", torch.zeros(7))]
    gradient, control = GradientLayout(parameters), ControlLayout(1, KEPT)
    words = memoryview(bytearray(control.size)).cast("Q")
    return Store(words, control, Shape(gradient.size, 64, 2, SHARDS), gradient, None)


def leaf(store, step, shard):
    """Publish a note, and with shard 0 the buffers, as the engine does."""
    store.notes.unseal(step, shard)
    if shard == 0:
        store.buffers(step).fill_(step)
    store.notes.write(step, shard, Note(1.0 + shard, np.ones(2, dtype=bool), {"step": float(step)}))
    store.notes.seal(step, shard)


def block(store, step, index):
    """Sum one block, as the engine does."""
    start, end = store.bounds[index]
    store.seals.unseal_blocks(step, range(index, index + 1))
    store.result(step)[start:end].fill_(step)
    store.seals.seal_blocks(step, range(index, index + 1))


def complete(store, step):
    for shard in range(SHARDS):
        leaf(store, step, shard)
    for index in range(len(store.bounds)):
        block(store, step, index)


def test_a_step_is_kept_until_something_of_a_newer_one_takes_its_place(store):
    assert len(store.bounds) > 1
    for step in range(10):
        assert store.kept(step) is None
        complete(store, step)
        for old in range(step + 1):
            kept = store.kept(old)
            assert (kept is not None) == (old > step - KEPT) == (not store.is_gone(old))
            if kept is not None:
                assert bool((kept.gradient == old).all())
                assert bool((kept.buffers == old).all())
                assert [(note.weight, note.logs) for note in kept.notes.values()] == [
                    (1.0, {"step": float(old)}),
                    (2.0, {"step": float(old)}),
                ]


def test_what_is_read_is_a_private_copy(store):
    complete(store, 0)
    kept = store.kept(0)
    complete(store, KEPT)
    assert bool((kept.gradient == 0).all())
    assert bool((kept.buffers == 0).all())
    assert kept.notes[1].logs == {"step": 0.0}


@pytest.mark.parametrize("what", ["note 0", "note 1", "block 0", "block 1"])
def test_what_is_overwritten_while_it_is_read_is_not_taken_for_whole(store, what, monkeypatch):
    complete(store, 4)
    copy = store.notes.copy

    def interrupted(step):
        kind, index = what.split()
        (leaf if kind == "note" else block)(store, 4 + KEPT, int(index))
        return copy(step)

    monkeypatch.setattr(store.notes, "copy", interrupted)
    assert store.kept(4) is None
    assert store.is_gone(4)


def test_a_step_that_is_not_complete_yet_is_neither_there_nor_gone(store):
    complete(store, 0)
    leaf(store, 1, 0)
    assert (store.kept(1), store.is_gone(1)) == (None, False)
    leaf(store, 1, 1)
    for index in range(len(store.bounds)):
        assert (store.kept(1), store.is_gone(1)) == (None, False)
        block(store, 1, index)
    assert store.kept(1) is not None
