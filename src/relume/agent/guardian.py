"""The guardian: a tiny process that ends the workers when the agent is killed.

Workers see their agent die and end by themselves, with a line that says so. This is for the worker that cannot (its
interpreter is stuck in a C call, or stopped) and for what it has started. It holds one end of a pipe: the agent writes
each worker's process group into it, and `done` at its own clean end; end of file without `done` means that the agent
died. It imports nothing of relume, so that it starts in milliseconds and weighs little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

GRACE_S = 1.5


def main() -> None:
    """Read groups from standard input until it ends; then, unless told `done`, end them."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    agent, groups = sys.argv[1], []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and any(map(_alive, groups)):
        time.sleep(0.05)
    left = [group for group in groups if _alive(group)]
    for group in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(OSError):
        text = (
            f"relume: the agent (pid {agent}) died; its {len(groups)} workers have ended, {len(left)} of them by force"
        )
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
