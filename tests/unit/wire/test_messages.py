"""Every message comes out of its frame as it went in, and the events' schema is what people were promised."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.wire import events, messages
from relume.wire.framing import Decoder, encode

numbers = st.integers(-(1 << 40), 1 << 40)
ballots = st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 40))
texts = st.text(max_size=20)
shapes = st.builds(messages.Shape, numbers, numbers, numbers, numbers)
views = st.builds(
    messages.View,
    ballots,
    st.lists(st.integers(0, 99), min_size=1, max_size=5).map(tuple),
    numbers,
    numbers,
    st.lists(st.lists(st.integers(0, 4095), max_size=4).map(tuple), max_size=5).map(tuple),
)
ANY = {
    messages.Hello: st.builds(messages.Hello, numbers, numbers, numbers, st.dictionaries(texts, texts, max_size=4)),
    messages.Join: st.builds(messages.Join, st.lists(texts, max_size=5).map(tuple), shapes, numbers),
    messages.Promised: st.builds(messages.Promised, ballots),
    messages.Finished: st.builds(messages.Finished, numbers, texts),
    messages.Raised: st.builds(messages.Raised, texts, texts, texts),
    messages.Remark: st.builds(messages.Remark, texts, texts, numbers),
    messages.Level: st.builds(messages.Level, numbers, numbers, texts),
    messages.Accepted: st.builds(messages.Accepted, ballots),
    messages.Refused: st.builds(messages.Refused, ballots, numbers),
    messages.Leaving: st.builds(messages.Leaving, texts),
    messages.Leave: st.builds(messages.Leave, texts),
    messages.Ask: st.builds(messages.Ask, ballots),
    messages.Install: st.builds(messages.Install, views),
    messages.Replay: st.builds(messages.Replay, numbers),
    messages.Propose: st.builds(messages.Propose, views),
    messages.Withdraw: st.builds(messages.Withdraw, ballots),
    messages.Close: st.builds(messages.Close, views),
    messages.Stop: st.builds(messages.Stop, texts, st.booleans()),
}


def test_every_message_is_tried_here():
    assert set(ANY) == {*typing.get_args(messages.FromWorker), *typing.get_args(messages.ToWorker)}


@given(st.sampled_from(sorted(ANY, key=lambda kind: kind.__name__)).flatmap(lambda kind: ANY[kind]))
def test_a_message_survives_its_frame(message):
    from_worker = isinstance(message, typing.get_args(messages.FromWorker))
    decoder = Decoder(messages.FromWorker if from_worker else messages.ToWorker)
    [back] = decoder.feed(encode(message))
    assert back == message
    assert type(back) is type(message)


def test_the_main_worker_is_the_lowest_rank_alive():
    assert messages.View((1, 3), (2, 5, 7), 0, 1, ((0,), (), ())).main == 2


def test_messages_do_not_change_once_they_are_made():
    with pytest.raises(AttributeError):
        messages.Ask((1, 2)).ballot = (1, 3)


FIELDS = {
    "run_started": {"run", "agent_pid", "workers", "command"},
    "worker_started": {"rank", "pid"},
    "arena_reserved": {"bytes", "gradient_bytes", "shards"},
    "view_installed": {"view", "step", "members", "assigned"},
    "incident": {
        "rank", "pid", "cause", "text", "evidence", "wait_status", "phase", "step", "shard", "view", "moved", "rung",
        "killed_ns", "lost_ns", "fenced_ns", "promised_ns", "installed_ns",
    },
    "script_raised": {"rank", "error", "where", "traceback"},
    "remark": {"rank", "topic", "text", "step"},
    "run_ended": {"outcome", "reason", "exit_code"},
}  # fmt: skip
"""What programs that read events.jsonl rely on in version 1: more may come, nothing may go."""


def test_events_keep_the_names_that_programs_read():
    kinds = {kind.__struct_config__.tag: set(kind.__struct_fields__) for kind in typing.get_args(events.Event)}
    assert events.SCHEMA == 1
    assert set(FIELDS) <= set(kinds)
    for kind, fields in FIELDS.items():
        assert fields <= kinds[kind], f"{kind} has lost {fields - kinds[kind]}"


def test_a_line_of_events_is_plain_json_and_reads_back():
    ended = events.RunEnded("completed", "every step is done", 0)
    line = msgspec.json.encode(events.Line(events.SCHEMA, 1.5, 7, ended))
    assert msgspec.json.decode(line) == {
        "v": 1,
        "time": 1.5,
        "mono_ns": 7,
        "event": {"kind": "run_ended", "outcome": "completed", "reason": "every step is done", "exit_code": 0},
    }
    assert msgspec.json.decode(line, type=events.Line).event == ended
