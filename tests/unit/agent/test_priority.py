"""What may be lowered, and that nothing is where it could not be restored."""

from __future__ import annotations

import os
import subprocess

import pytest

from relume.agent import priority


@pytest.fixture
def process():
    process = subprocess.Popen(["sleep", "60"], process_group=0)
    yield process
    process.kill()
    process.wait()


def test_trying_changes_nothing_here():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    priority.may_lower.cache_clear()
    assert priority.may_lower() in {True, False}
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_without_the_right_to_restore_nothing_is_lowered(process, monkeypatch):
    monkeypatch.setattr(priority, "may_lower", lambda: False)
    base = os.getpriority(os.PRIO_PROCESS, process.pid)
    priority.lower_priority(process.pid, 5)
    priority.restore_priority(process.pid)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == base


def test_the_right_is_tried_and_not_guessed(monkeypatch):
    """An unprivileged container's root has the capability by name, and the kernel refuses all the same."""
    real = os.setpriority

    def refuse(which, who, value):
        if value < os.getpriority(which, who):
            raise PermissionError
        real(which, who, value)

    monkeypatch.setattr(os, "setpriority", refuse)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    priority.may_lower.cache_clear()
    try:
        assert not priority.may_lower()
    finally:
        priority.may_lower.cache_clear()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_process_that_is_gone_is_no_error(process):
    process.kill()
    process.wait()
    priority.lower_priority(process.pid, 5)
    priority.restore_priority(process.pid)
