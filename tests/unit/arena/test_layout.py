"""Nothing in the arena stands over anything else, whatever the fleet and the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.layout import (
    ALIGNMENT,
    BLOCK_BYTES_MIN,
    BLOCKS_MAX,
    HEADER_WORDS,
    MIRROR_WORDS,
    MIRRORS,
    NOTE_LOG_BYTES,
    PAGE,
    PROGRESS_WORDS,
    RECORDER_ENTRIES,
    RECORDER_ENTRY_WORDS,
    RESULTS,
    SLOT_WORDS,
    SLOTS_EAGER,
    WORD,
    ControlLayout,
    DataLayout,
    block_bounds,
    round_up,
    slots_max,
)
from relume.core.ranges import SHARDS_MAX
from relume.wire.messages import Shape

shapes = st.builds(
    Shape,
    gradient_bytes=st.integers(0, 1 << 34).map(lambda size: round_up(size, ALIGNMENT)),
    buffer_bytes=st.integers(0, 1 << 30),
    parameters=st.integers(0, 100_000),
    shards=st.one_of(st.integers(1, 40), st.integers(1, SHARDS_MAX)),
)
fleets = st.integers(1, 64)
rings = st.integers(RESULTS, 40)


def apart(regions, size):
    """Regions (start, bytes, name) in any order lie within `size` and do not touch each other's bytes."""
    end, before = 0, "the start"
    for start, length, name in sorted(regions):
        assert start >= end, f"{name} at {start} stands over {before}, which ends at {end}"
        end, before = start + length, name
    assert end <= size, f"{before} ends at {end}, beyond {size}"


@given(fleets, rings)
def test_words_of_the_control_part_have_one_meaning_each(workers, kept):
    layout = ControlLayout(workers, kept)
    regions = [(0, HEADER_WORDS, "header")]
    regions += [(layout.blocks(i), BLOCKS_MAX, f"blocks {i}") for i in range(kept)]
    regions += [(layout.mirror(i), MIRROR_WORDS, f"mirror {i}") for i in range(MIRRORS)]
    for rank in range(workers):
        regions += [
            (layout.progress(rank), PROGRESS_WORDS, f"progress {rank}"),
            (layout.seals(rank), SLOT_WORDS, f"seals {rank}"),
            (layout.recorder(rank), RECORDER_ENTRIES * RECORDER_ENTRY_WORDS, f"recorder {rank}"),
        ]
    assert layout.size % PAGE == 0
    apart(regions, layout.size // WORD)


@given(shapes, fleets, rings, st.data())
def test_bytes_of_the_data_part_have_one_meaning_each(shape, workers, kept, data):
    layout = DataLayout(shape, workers, kept)
    regions = []
    for i in range(kept):
        regions.append((layout.result(i), shape.gradient_bytes, f"result {i}"))
        regions.append((layout.buffers(i), shape.buffer_bytes, f"buffers {i}"))
        some = data.draw(st.sets(st.integers(0, shape.shards - 1), max_size=6)) | {0, shape.shards - 1}
        regions += [(layout.note(i, s), layout.note_size, f"note {s} of result {i}") for s in some]
    slots = slots_max(shape.shards)
    for rank in {0, workers // 2, workers - 1}:
        for index in {0, 1, slots // 2, slots - 1}:
            start = layout.slot(rank, index)
            assert start % PAGE == 0
            assert start >= layout.slots_start
            regions.append((start, shape.gradient_bytes, f"slot {index} of {rank}"))
    for start, _, name in regions:
        if "note" not in name:
            assert start % PAGE == 0, f"{name} starts on no page"
    apart(regions, layout.size)
    assert layout.note(0, 0) % WORD == 0
    assert layout.eager_bytes(layout.workers) <= layout.size


@given(shapes)
def test_a_note_has_room_for_all_that_it_may_hold(shape):
    layout = DataLayout(shape, 1)
    assert layout.note_size >= 8 + 8 + 8 + -(-shape.parameters // 8) + NOTE_LOG_BYTES
    assert layout.note_size % WORD == 0


@given(st.integers(0, 1 << 36).map(lambda size: round_up(size, ALIGNMENT)))
def test_blocks_are_all_of_the_gradient_once(size):
    bounds = block_bounds(size)
    assert 1 <= len(bounds) <= BLOCKS_MAX, "there is always one, so that an empty gradient can be complete"
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == size
    for start, end in bounds[:-1]:
        assert start % ALIGNMENT == end % ALIGNMENT == 0
        assert end - start >= BLOCK_BYTES_MIN


def test_slots_are_enough_for_what_does_not_merge():
    for shards in range(1, 253):
        # At worst every second leaf, and the one that is being computed.
        assert slots_max(shards) >= max(SLOTS_EAGER, -(-shards // 2) + (shards > 2))
    assert slots_max(SHARDS_MAX) == SLOT_WORDS


@pytest.mark.parametrize("shards", [0, -1, SHARDS_MAX + 1])
def test_a_number_of_shards_that_no_seal_can_name_is_refused(shards):
    with pytest.raises(ValueError, match=f"between 1 and {SHARDS_MAX}"):
        DataLayout(Shape(64, 0, 1, shards), 2)


def test_every_worker_and_the_agent_see_one_layout():
    shape = Shape(12_800, 640, 7, 6)
    assert DataLayout(shape, 3) == DataLayout(Shape(12_800, 640, 7, 6), 3)
