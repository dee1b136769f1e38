"""The background thread: it answers the agent within milliseconds whatever the script is doing.

It promises ballots under the pen, answers proposals, installs views, and sees the agent die. A worker does not outlive
its agent: it says so in its log and ends with everything it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from relume.arena.prompt import be_prompt
from relume.errors import FrameError
from relume.train import leaving
from relume.train.standing import Standing
from relume.wire.framing import Decoder, encode
from relume.wire.messages import Ask, Close, Install, Promised, Propose, Replay, Stop, ToWorker, Withdraw

SWITCH_S = 0.0005
"""For so long the main thread may keep the interpreter from the background thread, which others wait for. Python's own
bound is 5 ms. It costs nothing as long as no second thread of the process has something to do."""


class Link:
    """The connection to the agent. `trap` is called with the name of each point that a trap may wait at.

    `first` is called in the background thread before it listens. `stopped`: the run is over, and the script ends by its
    own means, with nobody to wait for.
    """

    def __init__(self, connection: socket.socket, standing: Standing, log: Path | None) -> None:
        self._socket = connection
        self._standing = standing
        self._log = log
        self._lock = threading.Lock()
        self._leaving = False
        self.stopped = False
        self.trap: Callable[[str], None] = lambda _: None
        self.first: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._listen, name="relume-link", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._thread.start()

    def send(self, message: msgspec.Struct) -> None:
        """Send `message`; an agent that is gone is met by the background thread, not here."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(encode(message))

    def leave(self) -> None:
        """Close the connection: from here on the agent's end is no reason to die."""
        self._leaving = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._socket.close()

    def _listen(self) -> None:
        be_prompt()
        self.first()
        decoder: Decoder[ToWorker] = Decoder(ToWorker)
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if self._leaving:
                return
            if not data:
                self._die_with_agent()
            try:
                for message in decoder.feed(data):
                    self._handle(message)
            except FrameError as error:
                self._end(f"its agent sent what is no message: {error}")

    def _handle(self, message: ToWorker) -> None:
        if isinstance(message, Ask):
            self.trap("view")
            self._standing.promise(message.ballot)
            self.trap("view")
            self.send(Promised(message.ballot))
        elif isinstance(message, Install):
            self.trap("view")
            self._standing.install(message.view)
        elif isinstance(message, Propose):
            self.trap("admission")
            answer = self._standing.propose(message.view)
            self.trap("admission")
            if answer is not None:
                self.send(answer)
        elif isinstance(message, Withdraw):
            self._standing.withdraw(message.number)
        elif isinstance(message, Replay):
            self._standing.go_replay(message)
        elif isinstance(message, Close):
            self._standing.close(message.view)
        elif isinstance(message, Stop):
            self._stop(message.reason)

    def _stop(self, reason: str) -> None:
        """End, by the script's own means if it has said what SIGTERM means to it."""
        if leaving.has_own_handler():
            self.stopped = True
            self._standing.retire()
            self._say(reason)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._end(reason)

    def _die_with_agent(self) -> None:
        self._end("its agent is gone, so that nobody could replace or fence it")

    def _end(self, reason: str) -> None:
        self._say(reason)
        # The whole group, so that data loaders and other children go too.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _say(self, reason: str) -> None:
        """Tell people why this worker ends; no reason given is none that they do not know (a person's Ctrl-C)."""
        if not reason:
            return
        line = f"relume: worker {self._standing.rank} (pid {os.getpid()}) ends: {reason}\n"
        if self._log is not None:
            with contextlib.suppress(OSError), self._log.open("a") as log:
                log.write(line)
        with contextlib.suppress(OSError, ValueError):
            sys.__stderr__.write(line) if sys.__stderr__ else None
