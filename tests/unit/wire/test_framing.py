"""Bytes in, messages out: however a stream is cut, and whatever a peer sends."""

from __future__ import annotations

import itertools
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.errors import FrameError, WireError
from relume.wire import framing
from relume.wire.framing import FRAME_BYTES_MAX, Decoder, encode
from relume.wire.messages import Ask, Finished, FromWorker, Leave, Promised, Raised, Remark, ToWorker

MESSAGES = [
    Promised((1, 2)),
    Finished(7, "0123456789abcdef"),
    Leave("by plan"),
    Raised("ValueError: no", "train.py:3", "Traceback\n" * 50),
    Remark("nonfinite", "loss = nan", 3),
]


def pieces(data, cuts):
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.sampled_from(MESSAGES), max_size=6), st.data())
def test_a_stream_means_the_same_however_it_is_cut(messages, data):
    stream = b"".join(map(encode, messages))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    decoder = Decoder[FromWorker](FromWorker)
    assert [message for piece in pieces(stream, cuts) for message in decoder.feed(piece)] == messages


def test_byte_by_byte_nothing_comes_before_the_last_byte():
    stream, decoder = encode(MESSAGES[0]), Decoder[FromWorker](FromWorker)
    assert [decoder.feed(bytes([byte])) for byte in stream[:-1]] == [[]] * (len(stream) - 1)
    assert decoder.feed(stream[-1:]) == [MESSAGES[0]]


@given(st.binary(max_size=400), st.sampled_from([FromWorker, ToWorker]))
def test_garbage_is_refused_or_waited_for_and_nothing_worse(garbage, kind):
    decoder = Decoder(kind)
    try:
        messages = decoder.feed(garbage)
    except FrameError:
        return
    assert all(isinstance(message, msgspec.Struct) for message in messages)


@given(st.binary(max_size=200))
def test_a_frame_that_holds_garbage_is_refused_with_its_reason(body):
    decoder = Decoder[FromWorker](FromWorker)
    with pytest.raises(FrameError, match="is no message of this protocol"):
        decoder.feed(struct.pack(">I", len(body)) + body)


@given(st.integers(0, 10), st.sampled_from(MESSAGES), st.data())
def test_a_message_with_a_byte_changed_is_a_message_or_refused(seed, message, data):
    stream = bytearray(encode(message))
    place = data.draw(st.integers(4, len(stream) - 1))
    stream[place] = data.draw(st.integers(0, 255))
    try:
        Decoder[FromWorker](FromWorker).feed(bytes(stream))
    except WireError:
        return


def test_what_comes_after_a_refused_frame_can_still_be_read():
    decoder = Decoder[FromWorker](FromWorker)
    with pytest.raises(FrameError):
        decoder.feed(struct.pack(">I", 3) + b"abc" + encode(MESSAGES[1]))
    assert decoder.feed(b"") == [MESSAGES[1]]


def test_a_peer_that_announces_too_much_is_refused_before_it_has_sent_it():
    with pytest.raises(FrameError, match=f"the limit is {FRAME_BYTES_MAX}"):
        Decoder(FromWorker).feed(struct.pack(">I", FRAME_BYTES_MAX + 1))
    with pytest.raises(FrameError, match="a frame of 1195725856 bytes"):
        Decoder(FromWorker).feed(b"GET / HTTP/1.1\r\n")


def test_a_message_at_the_limit_passes_and_one_above_it_is_not_sent(monkeypatch):
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 1000)
    spare = 1000 - len(encode(Leave(""))) + 4 - 2  # a string's longer header
    assert Decoder(FromWorker).feed(encode(Leave("x" * spare))) == [Leave("x" * spare)]
    with pytest.raises(FrameError, match=r"a Leave of 1001 bytes exceeds the limit of 1000"):
        encode(Leave("x" * (spare + 1)))


def test_a_message_of_the_other_direction_is_refused():
    with pytest.raises(FrameError):
        Decoder(FromWorker).feed(encode(Ask((1, 2))))
    with pytest.raises(FrameError):
        Decoder(ToWorker).feed(encode(Promised((1, 2))))


def test_depth_is_no_way_to_bring_the_reader_down():
    body = b"\x82\xa4type\xa8Promised\xa1x" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(FrameError):
        Decoder(FromWorker).feed(struct.pack(">I", len(body)) + body)
