"""One worker as its agent sees it: process, socket, output, and what is held against it.

`stack` collects what a worker says to STACK_SIGNAL while it is suspected to hang.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

from relume.arena.progress import Moment
from relume.core.events import Cause
from relume.wire.framing import Decoder, encode
from relume.wire.messages import FromWorker, Level, Raised, ToWorker

_SEND_BUFFER_MAX = 1 << 20
_TAIL_BYTES = 4000
_STATE_ERRORS = ("StateError: ", "relume.errors.StateError: ")


@dataclass(slots=True)
class Worker:
    """See the module's docstring. `wait_status` is what waitpid gave, None while it runs.

    `life`: how many had its rank before; `warm`: it is a fork of the template. `stat` is a descriptor of its
    /proc/PID/stat, which the agent reads all the time. `last` is its progress as it was when it had ended: a successor
    writes into the same block. `level`: what it said when it had come to the present. `away`: it goes by plan, or was
    sent away.
    """

    rank: int
    life: int
    pid: int
    pidfd: int
    connection: socket.socket
    pipes: dict[int, str]
    warm: bool = False
    decoder: Decoder[FromWorker] = field(default_factory=lambda: Decoder(FromWorker))
    pending: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    wait_status: int | None = None
    raised: Raised | None = None
    joined: bool = False
    condemned: bool = False
    self_fenced: bool = False
    fenced: bool = False
    resident_bytes: int = 0
    stat: int = -1
    stack: bytearray | None = None
    cause: Cause | None = None
    last: Moment | None = None
    level: Level | None = None
    away: bool = False

    def send(self, message: ToWorker) -> bool:
        """Send `message` without ever blocking; False if the worker takes nothing any more."""
        self.pending += encode(message)
        return self.flush()

    def flush(self) -> bool:
        """Send what is pending, as far as the socket takes it."""
        while self.pending:
            try:
                sent = self.connection.send(self.pending)
            except BlockingIOError:
                return len(self.pending) <= _SEND_BUFFER_MAX
            except OSError:
                self.pending.clear()
                return True  # its end is near and will be seen by its pidfd
            del self.pending[:sent]
        return True

    def hear(self, data: bytes) -> None:
        """Keep what the worker wrote to standard error: its last words are evidence, and so is a stack."""
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        if self.stack is not None:
            self.stack += data

    def sample_memory(self) -> None:
        """Remember how big the process is, as evidence should the kernel kill it for memory."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            self.resident_bytes = pages * os.sysconf("SC_PAGESIZE")

    def close_link(self) -> None:
        """Close what nothing comes from any more once the process is waited for."""
        self.connection.close()
        for descriptor in (self.pidfd, self.stat):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self.stat = -1

    def close(self) -> None:
        """Close every descriptor."""
        self.close_link()
        for descriptor in self.pipes:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.pipes.clear()


def oom_kills() -> int:
    """Return how many processes this kernel has killed for memory since it started."""
    try:
        with Path("/proc/vmstat").open() as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def cause_of_exit(worker: Worker, status: int, oom_kills_before: int) -> Cause:
    """Say why a worker's process ended, with the evidence (scenario 16)."""
    if worker.raised is not None:
        return raised_cause(worker.raised)
    evidence = {"wait_status": str(status), "resident_mib": f"{worker.resident_bytes / 2**20:.0f}"}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        killed = oom_kills() - oom_kills_before
        if number == signal.SIGKILL and killed > 0:
            evidence["oom_kills"] = str(killed)
            text = f"the kernel killed it for memory (SIGKILL, and {killed} more out-of-memory kills on this host); "
            return Cause("out_of_memory", text + f"it was last seen with {evidence['resident_mib']} MiB", evidence)
        return Cause("signal", f"it was killed by signal {number} ({_signal_name(number)})", evidence)
    code = os.waitstatus_to_exitcode(status)
    tail = worker.tail.decode(errors="replace")
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
    text = f"its script ended with exit code {code}" + (f" ({last.strip()[:300]})" if last else "")
    return Cause("exit_code", text, {**evidence, "stderr": tail})


def raised_cause(raised: Raised) -> Cause:
    """Return the cause for a script that raised."""
    if raised.error.startswith(_STATE_ERRORS):  # the mirror's fault, or the hurry's, and not the script's
        return Cause("state", f"it could not come back: {raised.error.partition(': ')[2]}", {"where": raised.where})
    place = f" at {raised.where}" if raised.where else ""
    return Cause("raised", f"its script raised {raised.error}{place}", {"where": raised.where})


def hung_cause(cause: Cause, stack: str) -> Cause:
    """Return the cause for a worker that hangs, with its main thread's stack (scenario 2)."""
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    if not frames:
        text = "it showed no stack: its main thread does not come back from the kernel"
        return Cause(cause.kind, cause.text, {**cause.evidence, "stack": text})
    return Cause(cause.kind, f"{cause.text}, at {frames[0]}", {**cause.evidence, "stack": stack[-8000:]})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
