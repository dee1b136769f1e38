"""The agent's hold on its warm template: a process that has the imports done, so that a worker is a fork of it.

`order` sends the template what a worker needs and returns at once; the newborn says its pid over its cord, is made the
leader of its process group, told to the caller, and only then let go. Whatever fails, the caller hears of it and starts
a fresh interpreter instead. What the newborn does is in `warm.py`; why it is done so, in docs/adr/0006.

This module does not know when a worker is to be replaced, nor what the descriptors are that it passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relume.agent.priority import lower_priority
from relume.agent.reaper import adopt_orphans, is_child
from relume.agent.spawn import Started
from relume.agent.warm import DESCRIPTORS_MAX, GO, READY, START

NICE = 10
"""The priority, below the agent's, of a template that is started again: its imports are to cost the workers nothing."""
BIRTH_S_MAX = 3.0
"""A birth takes 20 ms, on busy cores 110. A template that takes longer is stopped or stuck."""
RESTARTS_MAX = 3
RESTART_S = 2.0
_SAID_BYTES_MAX = 4000
_PER_WORKER = ("RELUME_", "TORCHELASTIC_")
_PER_WORKER_NAMES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"})
"""Variables that differ between workers and that no import reads. Any other was read by the template for good."""

Born = Callable[[Started | None], None]


@dataclass(slots=True, eq=False)
class _Birth:
    """An order that nobody has answered yet."""

    cord: socket.socket
    out: int
    err: int
    born: Born
    nice: int
    limit: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close everything: a newborn that is there after all sees its cord end, and ends."""
        self.cord.close()
        os.close(self.out)
        os.close(self.err)


class Template:
    """One template at a time, for one command. Everything happens in the loop that `start` is given."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], trouble: Callable[[str], None] = lambda _: None
    ) -> None:
        """Take what workers are started with (`relume.agent.spawn`); `trouble` gets sentences for people."""
        self.ready = False
        self.pid = 0
        self._command = list(command)
        self._environment = dict(environment)
        self._trouble = trouble
        self._program = START
        self._orders: socket.socket | None = None
        self._pidfd = self._output = -1
        self._said = b""
        self._births: set[_Birth] = set()
        self._restarts = 0
        self._again: asyncio.TimerHandle | None = None

    # The template ---------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, nice: int = 0) -> None:
        """Start the template, which is `ready` some seconds later. It never is for what it cannot run."""
        self._loop = loop
        if not runs(self._command):
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, said = os.pipe2(os.O_CLOEXEC)
        words = self._command[2:]
        try:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", self._program, import_path(words), str(theirs.fileno()), *words],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                process_group=0,
            )
        except OSError as error:
            ours.close()
            os.close(output)
            self._trouble(f"the warm template cannot be started ({error.strerror}): replaced workers start cold")
            return
        finally:
            theirs.close()
            os.close(said)
        process.returncode = 0  # it is waited for in `_on_exit` and nowhere else
        self.pid, self._orders, self._output, self._said = process.pid, ours, output, b""
        lower_priority(self.pid, nice)
        self._pidfd = os.pidfd_open(self.pid)
        ours.settimeout(0.0)
        os.set_blocking(output, False)
        loop.add_reader(ours, self._on_word)
        loop.add_reader(output, self._on_output)
        loop.add_reader(self._pidfd, self._on_exit)

    def close(self) -> None:
        """End the template and every birth under way, whose callers are told nothing. Waits for the deaths."""
        if self._again is not None:
            self._again.cancel()
        for birth in list(self._births):
            self._end(birth)
            birth.close()
        if self.pid:
            self._bury()
            self._forget()

    def _on_word(self) -> None:
        assert self._orders is not None
        try:
            word = self._orders.recv(len(READY))
        except OSError:
            word = b""
        self.ready = word == READY
        if not word:
            self._loop.remove_reader(self._orders)  # it has ended or is about to

    def _on_output(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        self._said = (self._said + data)[-_SAID_BYTES_MAX:]
        if not data:
            self._loop.remove_reader(self._output)

    def _on_exit(self) -> None:
        was_ready, status = self.ready, self._bury()
        self._on_output()
        said = self._said.decode(errors="replace").strip().splitlines()
        self._forget()
        again = self._restarts < RESTARTS_MAX and (was_ready or os.WIFSIGNALED(status))
        how = f"wait status {status}" + (f": {said[-1]}" if said else "")
        then = "it is started again" if again else "replaced workers start cold from here on"
        self._trouble(f"the warm template has ended ({how}); {then}")
        if again:
            self._again = self._loop.call_later(RESTART_S * 2**self._restarts, self.start, self._loop, NICE)
            self._restarts += 1

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # those not yet born are in its group

    def _bury(self) -> int:
        """Kill and wait for the template and for those not yet born; return the template's wait status."""
        self._kill()
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)
        return status

    def _forget(self) -> None:
        assert self._orders is not None
        for descriptor in (self._orders.fileno(), self._pidfd, self._output):
            self._loop.remove_reader(descriptor)
        self._orders.close()
        os.close(self._pidfd)
        os.close(self._output)
        self.ready, self.pid, self._orders, self._pidfd, self._output = False, 0, None, -1, -1

    # Births ---------------------------------------------------------------------------------------------------

    def order(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        descriptors: Sequence[int],
        born: Born,
        *,
        nice: int = 0,
    ) -> None:
        """Have a worker forked that inherits `descriptors` under the numbers that they have here.

        Returns at once. `born` is called from the loop, within `BIRTH_S_MAX`: with the started process, a child of this
        one and leader of its group, `nice` below this process in priority, which does nothing before `born` returns; or
        with None if nothing came of it. The descriptors may be closed as soon as this returns.

        Raises:
            OSError: it cannot be ordered: start it in another way.
        """
        if not self.ready or self._orders is None or list(command) != self._command:
            raise OSError(errno.EAGAIN, "there is no warm template for this command")
        differing = [name for name in {**self._environment, **environment} if self._is_frozen(name, environment)]
        if differing:
            raise OSError(errno.EINVAL, f"the warm template has another {', '.join(sorted(differing))}")
        if len(descriptors) + 3 > DESCRIPTORS_MAX:
            raise OSError(errno.E2BIG, "too many descriptors for one message")
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(theirs)
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(ours.close)
            (out, out_write), (err, err_write) = _pipe(stack, undo), _pipe(stack, undo)
            payload = json.dumps({"environment": environment, "numbers": [1, 2, *descriptors]}).encode()
            adopt_orphans(on=True)
            socket.send_fds(self._orders, [payload], [theirs.fileno(), out_write, err_write, *descriptors])
            undo.pop_all()
        ours.settimeout(0.0)
        birth = _Birth(ours, out, err, born, nice)
        self._births.add(birth)
        birth.limit = self._loop.call_later(BIRTH_S_MAX, self._on_late, birth)
        self._loop.add_reader(ours, self._on_cord, birth)

    def _is_frozen(self, name: str, environment: dict[str, str]) -> bool:
        per_worker = name.startswith(_PER_WORKER) or name in _PER_WORKER_NAMES
        return not per_worker and self._environment.get(name) != environment.get(name)

    def _on_cord(self, birth: _Birth) -> None:
        try:
            word = birth.cord.recv(_SAID_BYTES_MAX)
        except OSError:
            word = b""
        if not word.isdigit() or not is_child(int(word)):
            self.ready = self.ready and not word  # what it gives a reason for would fail the next time, too
            self._trouble(f"no worker came of the warm template ({word.decode(errors='replace') or 'it said nothing'})")
            self._fail(birth)
            return
        pid = int(word)
        with contextlib.suppress(OSError):  # it may be dead by now, and will be seen to be
            os.setpgid(pid, pid)
        lower_priority(pid, birth.nice)
        self._end(birth)
        with birth.cord:
            birth.born(Started(pid, birth.out, birth.err))
            with contextlib.suppress(OSError):
                birth.cord.send(GO)

    def _on_late(self, birth: _Birth) -> None:
        self._trouble(f"the warm template did not make a worker within {BIRTH_S_MAX:g} s")
        if self.pid:
            self._kill()
        self._fail(birth)

    def _fail(self, birth: _Birth) -> None:
        self._end(birth)
        birth.close()
        birth.born(None)

    def _end(self, birth: _Birth) -> None:
        self._loop.remove_reader(birth.cord)
        if birth.limit is not None:
            birth.limit.cancel()
        self._births.discard(birth)
        if not self._births:
            adopt_orphans(on=False)


def _pipe(stack: contextlib.ExitStack, undo: contextlib.ExitStack) -> tuple[int, int]:
    """Return a pipe whose write end closes with `stack`, and whose read end closes with `undo`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, write)
    undo.callback(os.close, read)
    return read, write


def runs(command: Sequence[str]) -> bool:
    """True for what `python_command` makes of a script's source file, or of a module. Anything else starts cold."""
    if list(command[:2]) != [sys.executable, "-u"] or len(command) < 3:
        return False
    words = command[2:]
    if words[0] == "-m":
        return len(words) > 1
    path = Path(words[0])
    return path.suffix != ".pyc" and path.is_file() and not zipfile.is_zipfile(path)


def import_path(words: Sequence[str]) -> str:
    """Return what `python` puts in front of `sys.path` for this script or module."""
    return str(Path.cwd() if words[0] == "-m" else Path(words[0]).resolve().parent)
