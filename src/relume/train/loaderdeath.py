"""The death of a loader process alone (the kernel's choice when memory runs out, as a rule), told where it matters.

Where that is: when a shard is asked for. torch tells of its own loader processes from a signal handler, which raises in
whatever line the main thread is at: in the user's forward, or in the engine while it holds the pen. So ours are none of
torch's.

This module does not know what the dead process was doing.
"""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess

ADVICE = (
    "A loader process ended without being told to. Killed by signal 9, it was most likely the kernel's choice when "
    "memory ran out: use fewer num_workers, a smaller prefetch_factor, or keep the data in arrays or files rather than "
    "in many Python objects. A bus error means that /dev/shm is full (docker run --shm-size=...). Anything else is in "
    "what the process printed, and num_workers=0 shows it best."
)

REAP_S = 1.0
"""How long the kernel may take from the closing of a process's files to its end."""


def death_of(process: BaseProcess) -> RuntimeError:
    """Return what is to be raised for `process`, which has ended or is about to: torch's type, and torch's words."""
    code = _exit_code(process)
    how = f"exited with code {code}"
    if code is None:
        how = "hung up"
    elif code < 0:
        how = f"was killed by signal {-code}"
    error = RuntimeError(f"DataLoader worker (pid {process.pid}) {how}")
    error.add_note(ADVICE)
    return error


def _exit_code(process: BaseProcess) -> int | None:
    """Return the exit code once it is known: two threads may reap a process, and the other is told."""
    deadline = time.monotonic() + REAP_S
    process.join(REAP_S)
    while (code := process.exitcode) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return code
