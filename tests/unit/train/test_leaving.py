"""SIGTERM is a notice to go, unless the script has made it something else."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from relume.train import leaving


@pytest.fixture(autouse=True)
def _as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_notice_is_told_from_another_thread_and_undone():
    told, who = threading.Event(), []
    undo = leaving.install(lambda: (who.append(threading.get_ident()), told.set()))
    assert not leaving.has_own_handler()
    os.kill(os.getpid(), signal.SIGTERM)
    assert told.wait(5.0)
    assert who != [threading.main_thread().ident], "the main thread may be in the middle of a message"
    undo()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not leaving.has_own_handler()


@pytest.mark.parametrize("handler", [lambda number, frame: None, signal.SIG_IGN])
def test_a_handler_that_is_there_stays(handler):
    signal.signal(signal.SIGTERM, handler)
    undo = leaving.install(pytest.fail)
    assert signal.getsignal(signal.SIGTERM) is handler
    undo()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert leaving.has_own_handler()


def test_a_handler_that_comes_later_counts_and_is_not_taken_away():
    undo = leaving.install(pytest.fail)
    own = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    assert leaving.has_own_handler()
    undo()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_forked_child_ends_of_it_as_if_there_were_no_handler():
    undo = leaving.install(pytest.fail)
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    undo()
