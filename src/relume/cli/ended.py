"""What SIGTERM means to a command that has started others: the same as Ctrl-C, but for the exit code."""

from __future__ import annotations

INTERRUPTED, TERMINATED = 130, 143


def terminate(number: int, frame: object) -> None:
    """End as Ctrl-C does, so that what was started is ended too: a signal handler."""
    del frame
    raise KeyboardInterrupt(number)


def code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code: Ctrl-C itself carries no number."""
    return TERMINATED if interrupt.args else INTERRUPTED
