"""What is done to a fleet from outside: SIGKILL at a time that no worker knows of, and requests to its agent.

How old the run is, in steps, is read from the records that the workers write; between two steps it is told by the clock
and the pace so far. The time of a kill is noted right before the signal.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from relume.agent.status import ask_scale
from relume.chaos.evidence import Who
from relume.chaos.scene import Scene
from relume.chaos.schedule import Action, KillAll, Pick, Rescale

LOOK_S = 0.005
"""How often the records are looked at."""
GENERATIONS_MAX = 3
"""A worker is the agent's child, or that of the template that it was forked from."""
_step = re.compile(rb'"step":\s*(\d+)')


class Killer:
    """Carries out `actions` on the fleet whose agent is the process `agent`."""

    def __init__(self, run_dir: Path, record_dir: Path, agent: int, actions: Sequence[Action]) -> None:
        self._scene = Scene.of(run_dir)
        self._pace = Pace(record_dir)
        self._agent = agent
        self._actions = sorted(actions, key=lambda action: action.at_step)
        self.killed_ns: dict[Who, int] = {}
        self.all_killed: list[dict[Who, int]] = []
        """Of each `KillAll`, when it killed whom."""
        self.scaled: list[tuple[int, int]] = []
        """When somebody asked for how many workers."""
        self.errors: list[str] = []

    def work(self, alive: Callable[[], bool], deadline: float) -> None:
        """Return when all is done, the run is over (`alive` says so) or the monotonic time is `deadline`."""
        for action in self._actions:
            done = False
            while not done:
                if not alive() or time.monotonic() > deadline:
                    self.errors.append(f"the run was over before the {_named(action)} at step {action.at_step:.1f}")
                    break
                if self._pace.age() >= action.at_step:
                    self._scene.look()
                    done = self._do(action)
                if not done:
                    time.sleep(LOOK_S)

    def _do(self, action: Action) -> bool:
        """Carry it out; False if it is not possible yet."""
        if isinstance(action, Rescale | KillAll) and not self._scene.whole:
            return False
        if isinstance(action, Rescale):
            self._rescale(action.workers)
        elif isinstance(action, KillAll):
            self.all_killed.append(self._kill(self._scene.there))
        elif isinstance(action, Pick):
            victims = self._pick(action)
            if not victims:
                return False
            self.killed_ns |= self._kill(victims)
        else:
            newest = self._scene.newest
            self.killed_ns |= self._kill([(rank, newest.get(rank, 0)) for rank in action.ranks])
        return True

    def _pick(self, action: Pick) -> list[Who]:
        """Return whom to kill now; nobody as long as that would leave nobody to go on."""
        live = [who for who in self._scene.live if who not in self.killed_ns]
        fit = [who for who in live if who[0] not in action.spared]
        if len(fit) < action.count or (len(live) <= action.count and self._scene.workers > 1):
            return []
        return random.Random(action.dice).sample(fit, action.count)

    def _kill(self, victims: Sequence[Who]) -> dict[Who, int]:
        killed_ns: dict[Who, int] = {}
        for rank, life in victims:
            pid = self._scene.pids.get((rank, life), 0)
            if not _is_of(pid, self._agent):
                self.errors.append(f"worker {rank} (pid {pid}) was gone before it could be killed from outside")
                continue
            killed_ns[rank, life] = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
        return killed_ns

    def _rescale(self, workers: int) -> None:
        at_ns = time.monotonic_ns()
        reply = ask_scale(self._scene.run, workers)
        if reply is None or reply.refused:
            why = "it did not answer" if reply is None else reply.refused
            self.errors.append(f"the agent was asked for {workers} workers: {why}")
        else:
            self.scaled.append((at_ns, workers))


class Pace:
    """How many steps old a run is, from the records that grow in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._steps = 0
        self._first: tuple[int, float] | None = None
        self._since = 0.0

    def age(self) -> float:
        """Return the age in steps: those that somebody recorded, and as much of the next as the pace suggests."""
        now = time.monotonic()
        steps = max((self._recorded(path) for path in self._folder.glob("record-*.jsonl")), default=0)
        if steps > self._steps:
            self._steps, self._since = steps, now
            self._first = self._first or (steps, now)
        if self._first is None or self._steps == self._first[0]:
            return float(self._steps)
        step_s = (self._since - self._first[1]) / (self._steps - self._first[0])
        return self._steps + min(0.999, (now - self._since) / step_s)

    def _recorded(self, path: Path) -> int:
        """Return how many steps are done as far as `path` tells. A joiner's file does not begin with the first."""
        size, steps = self._sizes.get(path, (0, 0))
        if path.stat().st_size > size:
            with path.open("rb") as file:
                file.seek(size)
                new = file.read()
            whole = new.rfind(b"\n") + 1  # the rest is read again when its newline is there
            found = [int(step) for step in _step.findall(new[:whole])]
            size, steps = size + whole, max([steps, *(step + 1 for step in found)])
            self._sizes[path] = size, steps
        return steps


def _is_of(pid: int, agent: int) -> bool:
    """True if `pid` is a process that still runs, and the agent's."""
    for generation in range(GENERATIONS_MAX):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return False
        if generation == 0 and fields[0] in {"Z", "X"}:
            return False
        pid = int(fields[1])
        if pid == agent:
            return True
    return False


def _named(action: Action) -> str:
    if isinstance(action, KillAll):
        return "kill of all workers"
    if isinstance(action, Rescale):
        return f"scaling to {action.workers} workers"
    if isinstance(action, Pick):
        return f"kill of {action.count} from outside"
    who = "worker" if len(action.ranks) == 1 else "workers"
    return f"kill of {who} {', '.join(map(str, action.ranks))}"
