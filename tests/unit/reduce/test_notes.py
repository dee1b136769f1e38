"""A leaf's note comes out as it went in, beside its neighbours', or is refused with the reason."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.arena.layout import NOTE_LOG_BYTES, RESULTS, DataLayout
from relume.errors import StepError
from relume.reduce.notes import Note, Notes
from relume.wire.messages import Shape


def notes_for(parameters=11, shards=5):
    layout = DataLayout(Shape(64, 0, parameters, shards), 1)
    return Notes(memoryview(bytearray(layout.size)), layout)


def bits(value):
    return struct.pack("<d", value)


def same(one, other):
    return (
        bits(one.weight) == bits(other.weight)
        and one.present.tolist() == other.present.tolist()
        and {name: bits(value) for name, value in one.logs.items()}
        == {name: bits(value) for name, value in other.logs.items()}
    )


@st.composite
def any_note(draw, parameters):
    present = np.array(draw(st.lists(st.booleans(), min_size=parameters, max_size=parameters)), dtype=bool)
    weight = draw(st.floats(0, allow_nan=False))
    return Note(weight, present, draw(st.dictionaries(st.text(max_size=8), st.floats(), max_size=6)))


@given(st.integers(0, 40), st.data())
def test_notes_stand_side_by_side_and_keep_their_bits(parameters, data):
    notes = notes_for(parameters, shards=3)
    places = [(result, shard) for result in range(RESULTS) for shard in range(3)]
    written = {}
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=9)):
        written[place] = data.draw(any_note(parameters))
        notes.write(*place, written[place])
    for place, note in written.items():
        assert same(notes.read(*place), note)


def test_a_shard_that_is_absent_reads_as_such():
    notes = notes_for()
    notes.write(0, 2, Note(3.0, np.ones(11, dtype=bool), {"loss": 1.5}))
    notes.write(0, 2, Note(0.0, np.zeros(11, dtype=bool), {}))
    note = notes.read(0, 2)
    assert (note.weight, note.present.any(), note.logs) == (0.0, False, {})


def test_what_is_read_is_a_copy():
    notes = notes_for()
    notes.write(0, 0, Note(1.0, np.ones(11, dtype=bool), {}))
    before = notes.read(0, 0)
    notes.write(0, 0, Note(2.0, np.zeros(11, dtype=bool), {}))
    assert before.present.all(), "the bits must not change under whoever has read them"


def test_whole_numbers_are_numbers_too():
    notes = notes_for()
    notes.write(1, 1, Note(1.0, np.ones(11, dtype=bool), {"hits": 7}))
    logged = notes.read(1, 1).logs["hits"]
    assert isinstance(logged, float)
    assert logged == 7.0


def test_as_much_as_fits_may_be_logged_and_not_a_byte_more():
    notes = notes_for()
    everywhere = np.ones(11, dtype=bool)
    notes.write(0, 1, Note(1.0, everywhere, {"a": 1.0}))
    name = "x" * (NOTE_LOG_BYTES - 1 - 3 - 9)  # the map's header, the name's, and a number
    fits = Note(1.0, everywhere, {name: 0.5})
    notes.write(0, 0, fits)
    with pytest.raises(StepError, match=r"at most 4096 fit. Log fewer names in step.log"):
        notes.write(0, 0, Note(2.0, ~everywhere, {name + "x": 0.5}))
    assert same(notes.read(0, 0), fits), "what is refused is not half written"
    assert notes.read(0, 1).logs == {"a": 1.0}, "the neighbour is not touched"


def test_no_trainable_parameter_at_all():
    notes = notes_for(parameters=0)
    notes.write(0, 0, Note(2.0, np.zeros(0, dtype=bool), {"loss": 1.0}))
    note = notes.read(0, 0)
    assert (note.weight, note.present.size, note.logs) == (2.0, 0, {"loss": 1.0})


@pytest.mark.parametrize("kept", [2, 5])
def test_a_note_is_kept_under_its_own_seal_until_another_is_written_there(kept):
    layout = DataLayout(Shape(64, 0, 11, 2), 1, kept)
    notes = Notes(memoryview(bytearray(layout.size)), layout)
    everywhere = np.ones(11, dtype=bool)
    for step in range(20):
        for shard in range(2):
            assert not notes.sealed(step)
            notes.unseal(step, shard)
            assert step < kept or not notes.sealed(step - kept), "whoever reads the old ones can tell"
            notes.write(step, shard, Note(step + shard / 2, everywhere, {"step": step}))
            notes.seal(step, shard)
        assert [old for old in range(step + 1) if notes.sealed(old)] == list(range(max(0, step - kept + 1), step + 1))
        copies = {old: notes.copy(old) for old in range(max(0, step - kept + 1), step + 1)}
        for old, copied in copies.items():
            found = notes.decode(copied)
            assert [(found[shard].weight, found[shard].logs) for shard in range(2)] == [
                (old, {"step": float(old)}),
                (old + 0.5, {"step": float(old)}),
            ]
