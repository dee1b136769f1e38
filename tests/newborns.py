"""Running one script as a fresh interpreter and as a fork of a warm template, to see that it cannot tell which.

A template is made for one command, but reads the script anew for each worker: so one template serves many scripts of
the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import relume
from relume.agent.spawn import FreshInterpreter, Started, environment, python_command
from relume.agent.template import Template
from relume.agent.warm import START

WAIT_S = 60.0
LIGHT = START.replace("from relume.agent.warm import main", "from relume.agent import warm; warm.IMPORTS = ()")
LIGHT = LIGHT.replace("\nmain()", "\nwarm.main()")
SOURCES = str(Path(relume.__file__).parents[1])


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    status: int
    out: str
    err: str


@contextlib.contextmanager
def warm_in(folder: Path, words: Sequence[str], *, imports: bool = True) -> Iterator[Warm]:
    """Have a template for `script.py`, and this process in the script's `folder` meanwhile, as an agent would be."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path("script.py").touch()
        with Warm(words, imports=imports) as warm:
            yield warm
    finally:
        os.chdir(here)


class Warm:
    """`with Warm(["script.py", "argument"]) as warm:` has a template that is ready, in a loop of its own.

    Without `imports` it imports nothing and is ready in a tenth of a second.
    """

    def __init__(self, words: Sequence[str], *, imports: bool = True) -> None:
        self.command = python_command(words)
        self.troubles: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.template = Template(self.command, self.environment(), self.troubles.append)
        if not imports:
            self.template._program = LIGHT

    def __enter__(self) -> Self:
        self.template.start(self.loop)
        self.until(lambda: self.template.ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.template.close()
        self.loop.close()

    def environment(self, **variables: str) -> dict[str, str]:
        """Return what a worker's environment would be."""
        made = environment(1, 2, threads=1, port=1, run={"PYTHONPATH": SOURCES, **variables})
        made.pop("PYTEST_CURRENT_TEST", None)  # another in every test, while a template outlives several
        return made

    def until(self, holds: Any) -> None:
        """Serve the loop until `holds()`."""
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, self.troubles
            self.loop.run_until_complete(asyncio.sleep(0.002))

    def started(self, descriptors: Sequence[int] = (), nice: int = 0, **variables: str) -> Started:
        """Have a worker born; it runs by the time this returns."""
        born: list[Started | None] = []
        self.template.order(self.command, self.environment(**variables), descriptors, born.append, nice=nice)
        self.until(lambda: born)
        assert born[0] is not None, self.troubles
        return born[0]

    def run(self, descriptors: Sequence[int] = (), **variables: str) -> Ended:
        """Have a worker born and return how it ended."""
        return finish(self.started(descriptors, **variables))

    def run_cold(self, descriptors: Sequence[int] = (), **variables: str) -> Ended:
        """Return how a fresh interpreter ended, given the same."""
        return finish(FreshInterpreter().spawn(self.command, self.environment(**variables), descriptors))


def finish(started: Started) -> Ended:
    """Read what a process writes until it ends, and wait for it. Neither may be more than a pipe holds."""
    with os.fdopen(started.out) as out, os.fdopen(started.err) as err:
        texts = out.read(), err.read()
    return Ended(os.waitpid(started.pid, 0)[1], *texts)
