"""What holds for every test: it leaves no process behind, and its randomness can be repeated."""

from __future__ import annotations

import hashlib
import os
import secrets

import hypothesis
import pytest

from tests import processes

SEED_VARIABLE = "RELUME_TEST_SEED"
SESSION_SEED = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(31))

# torch's first call of anything takes long, so a deadline per example would fail for no fault of the code. Loading a
# profile also undoes Hypothesis's own for CI, which draws the same examples every time where new ones are wanted most.
hypothesis.settings.register_profile("relume", deadline=None, print_blob=True)
hypothesis.settings.load_profile("relume")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Hand the session's seed to Hypothesis, unless the command line has one for it."""
    processes.mark_environment()
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = SESSION_SEED


def pytest_report_header():
    """Say how to repeat this session's randomness."""
    return f"random tests: {SEED_VARIABLE}={SESSION_SEED}"


def pytest_terminal_summary(terminalreporter):
    """Say it again where a person looks after a failure."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"random tests repeat with {SEED_VARIABLE}={SESSION_SEED}")


@pytest.fixture
def seed(request):
    """Return this test's own seed: a function of the session's seed and the test's name, printed when it fails."""
    digest = hashlib.sha256(f"{SESSION_SEED}|{request.node.nodeid}".encode()).digest()
    value = int.from_bytes(digest[:4], "little")
    print(f"seed {value}: repeat with {SEED_VARIABLE}={SESSION_SEED}")
    return value


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_no_process():
    """Hold the fixtures that live longer than a test to the same rule."""
    yield from _leaves_no_process("the session")


@pytest.fixture(autouse=True)
def _test_leaves_no_process(request):
    yield from _leaves_no_process(request.node.nodeid)


def _leaves_no_process(who):
    before = {process.identity for process in processes.table().values()}
    yield
    left = processes.leftovers(before)
    if left:
        lines = "\n".join(f"  {process}" for process in left)
        processes.kill(left)  # so that the next test is not blamed, and nothing outlives pytest
        message = f"{who} left {len(left)} running after {processes.GRACE_S:g} s (killed now):"
        pytest.fail(f"{message}\n{lines}", pytrace=False)
