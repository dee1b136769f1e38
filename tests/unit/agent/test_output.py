"""Workers' output on the terminal: whole lines, prefixed, bounded, and never in the agent's way."""

from __future__ import annotations

import io
import os
import time

from relume.agent import output
from relume.agent.output import LINE_BYTES_MAX, Terminal


def shown(*pieces, colour=False):
    """Feed (rank, stream, data) pieces; return what stands on both streams."""
    out, err = io.BytesIO(), io.BytesIO()
    terminal = Terminal(out, err, colour=colour)
    for rank, stream, data in pieces:
        terminal.feed(rank, stream, data)
    terminal.close()
    return out.getvalue().decode(), err.getvalue().decode()


def test_lines_have_their_rank_in_front():
    assert shown((0, "out", b"a\nb\n"), (1, "err", b"c\n")) == ("[0] a\n[0] b\n", "[1] c\n")


def test_a_line_is_shown_when_it_is_whole():
    pieces = [(0, "out", b"one "), (1, "out", b"two\n"), (0, "out", b"line\nand a half")]
    assert shown(*pieces)[0] == "[1] two\n[0] one line\n[0] and a half\n"


def test_the_two_streams_of_a_worker_do_not_mix_in_a_line():
    assert shown((0, "out", b"out"), (0, "err", b"err\n"), (0, "out", b"put\n")) == ("[0] output\n", "[0] err\n")


def test_a_line_that_never_ends_is_shown_in_pieces():
    text, _ = shown(*[(0, "out", b"\rloss 0.1" * 100)] * 50)
    assert text.count("[0] ") > 3
    assert text.count("loss") == 5000
    assert max(map(len, text.splitlines(keepends=True))) <= LINE_BYTES_MAX + 1000


def test_colours_tell_workers_apart():
    text, _ = shown((0, "out", b"a\n"), (1, "out", b"a\n"), colour=True)
    first, second = text.splitlines()
    assert first != second.replace("[1]", "[0]")


def test_a_terminal_that_takes_nothing_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(output, "LINES_MAX", 100)
    read, write = os.pipe()
    with os.fdopen(write, "wb", buffering=0) as stream:
        terminal = Terminal(stream, stream, colour=False)
        began = time.monotonic()
        for _ in range(3000):
            terminal.feed(0, "out", b"x" * 99 + b"\n")
        assert time.monotonic() - began < 1.0
        os.set_blocking(read, False)
        taken = b""
        while b"lines were not shown" not in taken and time.monotonic() - began < 10:
            try:
                taken += os.read(read, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
                if not any(pump._queue.qsize() for pump in terminal._pumps.values()) and b"not shown" not in taken:
                    terminal.close()
        assert b"lines were not shown; they are in the run's folder" in taken
    os.close(read)


def test_a_terminal_that_is_gone_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as stream:
        terminal = Terminal(stream, stream, colour=False)
        terminal.feed(0, "out", b"a\n")
        terminal.say("b")
        terminal.close()
