"""A seal says what stands in a place, and nothing of who put it there (Invariant 3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.layout import BLOCKS_MAX, RESULTS, SLOT_WORDS, ControlLayout
from relume.core.ranges import SHARDS_MAX
from relume.reduce.seals import UNSEALED, Seals, pack, unpack

ranges = st.integers(0, SHARDS_MAX - 1).flatmap(
    lambda lo: st.integers(lo + 1, SHARDS_MAX).map(lambda hi: (lo, hi)),
)


@pytest.fixture
def make():
    def one(workers=3, blocks=4):
        layout = ControlLayout(workers)
        return Seals(memoryview(bytearray(layout.size)).cast("Q"), layout, blocks)

    return one


@given(step=st.integers(0, (1 << 40) - 2), node=ranges)
def test_a_seal_reads_as_it_was_written_and_is_never_unsealed(step, node):
    word = pack(step, node)
    assert unpack(word) == (step, node)
    assert UNSEALED < word < 1 << 64


@given(st.tuples(st.integers(0, 1 << 20), ranges), st.tuples(st.integers(0, 1 << 20), ranges))
def test_different_content_has_different_seals(one, other):
    assert (pack(*one) == pack(*other)) == (one == other)


def test_an_empty_arena_holds_nothing(make):
    seals = make()
    assert seals.newest_complete() == -1
    assert not seals.complete(0)
    assert list(seals.sealed(0)) == []


def test_every_workers_nodes_of_a_step_are_seen_the_dead_and_the_late_included(make):
    seals = make()
    seals.slot(0)[0] = pack(7, (0, 2))
    seals.slot(2)[SLOT_WORDS - 1] = pack(7, (4, 5))
    seals.slot(1)[1] = pack(6, (2, 4))  # left over from the step before
    seals.slot(1)[0] = pack(8, (2, 3))
    assert list(seals.sealed(7)) == [(0, 0, (0, 2)), (2, SLOT_WORDS - 1, (4, 5))]


def test_a_step_is_complete_when_its_last_block_is_sealed(make):
    seals = make(blocks=3)
    for step in range(6):
        for block in (2, 0, 1):
            assert not seals.complete(step)
            assert seals.newest_complete() == step - 1, "half of a step is none, and the one before is not forgotten"
            seals.seal_blocks(step, range(block, block + 1))
            assert seals.unsealed(step, [block]) == []
        assert seals.complete(step)
        assert seals.newest_complete() == step
        assert seals.unsealed(step + RESULTS, [0]) == [0]


def test_words_of_blocks_that_do_not_exist_do_not_count(make):
    seals = make(blocks=BLOCKS_MAX)
    for block in range(BLOCKS_MAX - 1):
        seals.seal_blocks(0, range(block, block + 1))
    assert seals.newest_complete() == -1
    few = make(blocks=1)
    few.seal_blocks(0, range(1))
    assert few.newest_complete() == 0


@given(st.data())
def test_two_processes_see_the_same(data):
    layout = ControlLayout(2)
    words = memoryview(bytearray(layout.size)).cast("Q")
    mine, theirs = Seals(words, layout, 5), Seals(words, layout, 5)
    step = data.draw(st.integers(0, 100))
    for block in data.draw(st.sets(st.integers(0, 4))):
        mine.seal_blocks(step, range(block, block + 1))
    assert theirs.unsealed(step, [*range(5)]) == mine.unsealed(step, [*range(5)])
    assert theirs.newest_complete() == (step if mine.complete(step) else -1)


@pytest.mark.parametrize("kept", [2, 5, 12])
def test_a_result_is_there_until_another_is_written_in_its_place(kept):
    layout = ControlLayout(2, kept)
    seals = Seals(memoryview(bytearray(layout.size)).cast("Q"), layout, 3)
    for step in range(40):
        for block in range(3):
            seals.seal_blocks(step, range(block, block + 1))
        complete = [old for old in range(step + 1) if seals.complete(old)]
        assert complete == list(range(max(0, step - kept + 1), step + 1))
        assert seals.newest_complete() == step
        assert [seals.overtaken(old) for old in range(step + 2)] == [old <= step - kept for old in range(step + 2)]
    seals.unseal_blocks(40, range(1, 2))
    assert not seals.overtaken(40 - kept), "nothing newer stands there yet"
    assert not seals.complete(40 - kept)
    assert all(seals.complete(old) for old in range(40 - kept + 1, 40))
    assert seals.newest_complete() == 39
