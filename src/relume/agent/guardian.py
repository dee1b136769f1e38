"""The guardian: a tiny process that ends the workers when the agent is killed.

Workers see their agent die and end by themselves, with a line that says so. This is for the worker that cannot (its
interpreter is stuck in a C call, or stopped, or has not come to `relume.init` yet) and for what it has started. It
holds one end of a pipe, into which the agent writes each worker's rank and process group, `gone` for one whose worker
has ended (the number may come back as somebody else's), and `done` at its own clean end. End of file without `done`
means that the agent died. It imports nothing of relume, so that it starts in milliseconds and weighs little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

GRACE_S = 1.5


def main() -> None:
    """Read groups from standard input until it ends; then, unless told `done`, end them."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    agent, run_dir = sys.argv[1:]
    ranks: dict[int, str] = {}
    for line in sys.stdin:
        if line.strip() == "done":
            return
        word, group = line.split()
        if word == "gone":
            ranks.pop(int(group), None)
        else:
            ranks[int(group)] = word
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and _alive(ranks):
        time.sleep(0.05)
    left = _alive(ranks)
    for group in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        text = f"relume: worker {ranks[group]} (pid {group}) was ended by force: its agent (pid {agent}) died\n"
        with contextlib.suppress(OSError), (Path(run_dir) / f"worker-{ranks[group]}.log").open("a") as log:
            log.write(text)
    with contextlib.suppress(OSError):
        forced = f"{len(left)} of them by force"
        sys.stderr.write(f"relume: the agent (pid {agent}) died; its {len(ranks)} workers have ended, {forced}\n")


def _alive(groups: dict[int, str]) -> list[int]:
    """Return those of `groups` in which something runs: who is dead and not waited for does not count."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if state not in {"Z", "X"} and int(group) in groups:
                found.add(int(group))
    return sorted(found)


if __name__ == "__main__":
    main()
