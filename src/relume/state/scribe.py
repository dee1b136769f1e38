"""The scribe: a process that copies the mirror to the disk, and a checkpoint into the mirror.

Started by the agent (see `agent/scribe.py`), with the arena's descriptors. It does one errand at a time, at low
priority, and dies with its agent. It never writes anything in the arena but, asked to before any worker is there, a
whole mirror. Its words on the command line: the agent's pid, the folder, how many to keep, then `control=FD`,
`mirrors=FD,FD`, `seats=N` and `kept=N`, by which it finds the mirror, and `nice=N`.

For tests only, RELUME_SCRIBE_TRAP says what happens to it where: `publish:kill`, `tensors:stop`, `latest:raise`
(stages: load, and those of `disk.save`), once per process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from relume.arena import memory
from relume.arena.layout import ControlLayout
from relume.errors import RelumeError
from relume.state import disk, errands, folder
from relume.state.mirror import Mirror
from relume.state.refusal import NotWritten

TRAP_VARIABLE = "RELUME_SCRIBE_TRAP"
_PR_SET_PDEATHSIG = 1


class Scribe:
    """Does errands for one folder; `reached` is told each stage."""

    def __init__(self, directory: Path, keep: int, mirror: Mirror, reached: Callable[[str], None]) -> None:
        self._directory, self._keep, self._mirror, self._reached = directory, keep, mirror, reached
        self._lock: folder.Lock | None = None
        self._broken: set[int] = set()

    def do(self, request: errands.Request) -> errands.Reply:
        """Do what is asked; whatever goes wrong is an answer."""
        step = self._mirror.newest()
        try:
            return self._save(request) if isinstance(request, errands.Save) else self._load()
        except NotWritten as error:
            return errands.Failed(step, error.kind, str(error))
        except RelumeError as error:
            return errands.Failed(step, "mirror", str(error))
        except OSError as error:
            return errands.Failed(step, "refused", f"{self._directory} cannot be used ({error.strerror})")
        except Exception as error:  # noqa: BLE001 - a defect here must not become a restart for ever
            return errands.Failed(step, "defect", f"{type(error).__name__}: {error}")

    def _save(self, request: errands.Save) -> errands.Reply:
        folder.make(self._directory)
        self._hold()
        self._reached("mirror")
        step, skeleton, tensors = self._mirror.parts()
        written = disk.save(self._directory, step, (skeleton, tensors), request.facts, reached=self._reached)
        self._broken.discard(step)
        with contextlib.suppress(OSError):  # the checkpoint stands, whatever cannot be tidied up
            folder.tidy(self._directory, self._keep, self._broken)
        return errands.Saved(step, str(written.path), written.size, written.seconds, written.note)

    def _load(self) -> errands.Reply:
        self._hold()
        self._reached("load")
        passed: list[errands.PassedOver] = []
        loaded = disk.newest(self._directory, lambda path, why: passed.append(errands.PassedOver(str(path), why)))
        self._broken = {step for step in folder.steps(self._directory) if loaded is None or step > loaded.step}
        if loaded is None:
            return errands.NothingLoaded(tuple(passed))
        parts = loaded.skeleton, loaded.tensors
        self._mirror.write_parts(loaded.step, parts, lambda chunk, chunks: True, lambda action: action())  # noqa: ARG005
        return errands.Loaded(loaded.step, str(loaded.path), loaded.manifest.facts, tuple(passed))

    def _hold(self) -> None:
        if self._lock is not None:
            return
        try:
            self._lock = folder.Lock(self._directory)
        except BlockingIOError as error:
            text = f"another run writes its checkpoints into {self._directory}: give each its own --checkpoint-dir"
            raise NotWritten("shared", text) from error


def main(words: Sequence[str]) -> int:
    """Serve the agent until it closes the pipe."""
    agent, directory, keep, *found = words
    _die_with(int(agent))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends a run comes to the agent, and there is a last one to write
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that may not grow is an error like a full disk
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whoever prints, prints there
    told = dict(word.split("=") for word in found)
    os.nice(int(told["nice"]))
    scribe = Scribe(Path(directory), int(keep), _mirror(told), trap(os.environ))
    answers.write(errands.line(errands.Ready()))
    for line in sys.stdin.buffer:
        answers.write(errands.line(scribe.do(errands.request(line))))
    return 0


def trap(environment: dict[str, str] | os._Environ[str]) -> Callable[[str], None]:
    """Return what is done at each stage: nothing, unless a test wants it."""
    where, _, action = environment.get(TRAP_VARIABLE, "").partition(":")
    armed = [where] if where else []

    def reached(stage: str) -> None:
        if stage in armed:
            armed.clear()
            if action == "raise":
                raise OSError(5, "Input/output error")
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

    return reached


def _mirror(found: dict[str, str]) -> Mirror:
    layout = ControlLayout(int(found["seats"]), int(found["kept"]))
    words = memoryview(memory.attach(int(found["control"]), layout.size)).cast("Q")
    first, second = map(int, found["mirrors"].split(","))
    return Mirror(words, layout, (first, second), int(found.get("every", "0")))


def _die_with(agent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:  # it died before that was said
        os._exit(1)
