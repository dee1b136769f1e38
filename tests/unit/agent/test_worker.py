"""What is held against a worker: how its end is told, with the evidence."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from relume.agent import worker as worker_module
from relume.agent.worker import Worker, cause_of_exit, hung_cause
from relume.core.events import Cause
from relume.wire.framing import Decoder
from relume.wire.messages import Ask, Raised, ToWorker


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    worker = Worker(1, 0, os.getpid(), os.pidfd_open(os.getpid()), ours, {})
    yield worker, theirs
    worker.close()
    theirs.close()


@pytest.fixture
def worker(pair):
    return pair[0]


def killed(number):
    return number


def exited(code):
    return code << 8


def test_a_signal_is_told_by_name(worker, monkeypatch):
    monkeypatch.setattr(worker_module, "oom_kills", lambda: 0)
    cause = cause_of_exit(worker, killed(signal.SIGSEGV), 0)
    assert (cause.kind, cause.text) == ("signal", "it was killed by signal 11 (SIGSEGV)")
    assert cause.evidence["wait_status"] == "11"
    assert "signal 50 (unknown)" in cause_of_exit(worker, killed(50), 0).text


def test_a_kill_for_memory_is_told_as_that_with_the_evidence(worker, monkeypatch):
    """Scenario 16: the log of others says only "exit code -9"."""
    monkeypatch.setattr(worker_module, "oom_kills", lambda: 7)
    worker.resident_bytes = 3 << 30
    cause = cause_of_exit(worker, killed(signal.SIGKILL), 5)
    assert cause.kind == "out_of_memory"
    assert "SIGKILL, and 2 more out-of-memory kills on this host" in cause.text
    assert "last seen with 3072 MiB" in cause.text
    assert cause.evidence == {"wait_status": "9", "resident_mib": "3072", "oom_kills": "2"}
    assert cause_of_exit(worker, killed(signal.SIGKILL), 7).kind == "signal"
    assert cause_of_exit(worker, killed(signal.SIGTERM), 5).kind == "signal"


def test_an_exit_code_is_told_with_the_last_words(worker):
    """They come in any pieces."""
    for piece in (b"Traceback:\n  File x\nValue", b"Error: a mis", b"take\n", b"\n \n"):
        worker.hear(piece)
    cause = cause_of_exit(worker, exited(3), 0)
    assert (cause.kind, cause.text) == ("exit_code", "its script ended with exit code 3 (ValueError: a mistake)")
    assert "File x\nValueError: a mistake" in cause.evidence["stderr"]
    silent = Worker(0, 0, 1, -1, worker.connection, {})
    assert cause_of_exit(silent, exited(3), 0).text == "its script ended with exit code 3"


def test_only_the_end_of_what_it_said_is_kept(worker):
    for number in range(10_000):
        worker.hear(b"line %d\n" % number)
    evidence = cause_of_exit(worker, exited(1), 0).evidence["stderr"]
    assert evidence.endswith("line 9999\n")
    assert len(evidence) <= 4000


def test_an_error_that_was_told_is_the_cause_whatever_came_after(worker):
    worker.raised = Raised("ValueError: a mistake", "x.py:3", "...")
    cause = cause_of_exit(worker, exited(1), 0)
    assert (cause.kind, cause.text) == ("raised", "its script raised ValueError: a mistake at x.py:3")


def test_a_hang_is_told_with_the_innermost_frame():
    cause = Cause("hung", "it made no progress for 300.0 s", {"phase": "forward"})
    stack = 'noise\nStack (most recent call first):\n  File "x.py", line 3 in wait\n  File "y.py", line 4 in main\n'
    told = hung_cause(cause, stack)
    assert told.text == 'it made no progress for 300.0 s, at File "x.py", line 3 in wait'
    assert told.evidence == {"phase": "forward", "stack": stack}
    assert hung_cause(cause, "").text == cause.text
    assert "does not come back from the kernel" in hung_cause(cause, "noise\n").evidence["stack"]


def test_a_worker_that_reads_nothing_is_given_up_and_never_waited_for(pair):
    worker, _ = pair
    sent = 0
    while worker.send(Ask((1, sent))):
        sent += 1
        assert sent < 1_000_000
    assert len(worker.pending) > 1 << 20


def test_what_was_pending_is_sent_when_there_is_room(pair):
    worker, theirs = pair
    count = 0
    while not worker.pending:
        worker.send(Ask((1, count)))
        count += 1
    decoder: Decoder[ToWorker] = Decoder(ToWorker)
    received = []
    while len(received) < count:
        received += decoder.feed(theirs.recv(1 << 20))
        assert worker.flush()
    assert [ask.ballot[1] for ask in received] == list(range(count))


def test_a_worker_that_is_gone_takes_messages_like_any_other(pair):
    worker, theirs = pair
    theirs.close()
    assert worker.send(Ask((1, 1)))
    worker.close()
    assert worker.send(Ask((1, 1)))
    worker.close()
