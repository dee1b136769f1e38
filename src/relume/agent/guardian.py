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
TAIL_BYTES = 1000


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
    for group, rank in ranks.items():
        how = "was ended by force" if group in left else "has ended"
        with contextlib.suppress(OSError):
            _tell(
                Path(run_dir) / f"worker-{rank}.log", f"worker {rank} (pid {group}) {how}: its agent (pid {agent}) died"
            )
    with contextlib.suppress(OSError):
        forced = f"{len(left)} of them by force"
        sys.stderr.write(f"relume: the agent (pid {agent}) died; its {len(ranks)} workers have ended, {forced}\n")


def _tell(log: Path, text: str) -> None:
    """Say it in the worker's log, unless the worker has done so itself."""
    with log.open("a+b") as file:
        file.seek(max(0, file.tell() - TAIL_BYTES))
        if b"its agent is gone" not in file.read():
            file.write(f"relume: {text}\n".encode())


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
