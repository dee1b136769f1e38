"""Watching workers that say nothing: killed ones before their pidfd fires, stopped ones, and ones that hang.

The vigil looks and tells; `core.detect` judges who hangs. Whoever is judged to hang is first made to show its main
thread's stack, so that the incident can say where (scenario 2).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relume.agent.arena import Arena
from relume.agent.fence import doom, is_stopped
from relume.agent.reaper import reap_orphans
from relume.agent.worker import Worker, hung_cause
from relume.arena.progress import ASPECTS, STACK_SIGNAL, Moment, Pulse
from relume.core import events as core
from relume.core.detect import Sample, Watch
from relume.core.verdict import divergence

TICK_S = 0.2
DOOM_POLL_S = 0.005
"""For four workers, looking so often takes about 1 % of a busy core. Mostly a death is heard of before (`arena.knell`);
this is for the dying whose threads wait for a core to die on, up to 20 ms where there are many more than cores, and
for those who have no knell."""
STACK_WAIT_S = 0.3
IDLE_S = 1.0
BLIND_S = 2.0
"""A tick that comes this late means that the agent was stopped itself (a paused container), and the workers with it."""
GRACE_S = 1.0
"""After such a time nothing is held against anybody's silence for so long: what they had to say is on its way."""
LEFT_S = 5.0
"""A worker that left its loop, by a `break` or by an error that its script still handles, settles it by itself if it
gets there within this time; else we do."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Whom the vigil tells and asks.

    `tell` takes events; `doomed(worker, status)` is called for a worker that a signal has killed; `inside()` returns
    the ranks of the members.
    """

    tell: Callable[[core.Event], None]
    doomed: Callable[[Worker, int], None]
    inside: Callable[[], list[int]]


class Vigil:
    """See the module's docstring."""

    def __init__(self, hang_timeout_s: float, workers: Mapping[int, Worker], arena: Arena, ears: Ears) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._workers = workers
        self._arena = arena
        self._tell, self._on_doomed, self._inside = ears.tell, ears.doomed, ears.inside
        self._watch = Watch(hang_timeout_s)

    def forget(self, rank: int) -> None:
        """A new worker has the rank: nothing that was seen of the one before is held against it."""
        self._watch.forget(rank)

    def idle_s(self, rank: int) -> float:
        """Return for how long `rank` has not moved."""
        return self._watch.idle_s(rank, time.monotonic())

    async def keep(self) -> None:
        """Look until cancelled."""
        ticked_s = time.monotonic()
        patient_until_s = 0.0
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(DOOM_POLL_S)
            if time.monotonic() - slept_s > BLIND_S:
                self._watch = Watch(self._hang_timeout_s)  # time that nobody watched is held against nobody
                patient_until_s = time.monotonic() + GRACE_S
            self.look_for_doomed()
            if time.monotonic() - ticked_s >= TICK_S:
                ticked_s = time.monotonic()
                self._look_at_all()
                reap_orphans()
                if ticked_s >= patient_until_s:
                    self._tell(core.Tick())

    def look_for_doomed(self) -> None:
        """Do not wait for the pidfd of a worker that a signal has killed: its memory is torn down first."""
        for worker in list(self._workers.values()):
            if worker.wait_status is None and not worker.condemned and (status := doom(worker.stat)):
                self._on_doomed(worker, status)

    def _look_at_all(self) -> None:
        samples = []
        for worker in list(self._workers.values()):
            if worker.wait_status is None:
                worker.sample_memory()
                if worker.joined and not worker.condemned:
                    samples.append(self._look_at(worker, self._arena.moment(worker.rank)))
        for rank, cause in self._watch.look(samples, time.monotonic()):
            self._accuse(self._workers[rank], cause)
        self._compare([sample.rank for sample in samples])

    def _lose(self, worker: Worker, cause: core.Cause) -> None:
        self._tell(core.Lost(worker.rank, cause, worker.life))

    def _compare(self, ranks: list[int]) -> None:
        """Find replicas that differ: by what they showed at the begin of the same step (scenario 5).

        A joiner that differs from the members is the one that is wrong; among members nobody can say who is.
        """
        inside = set(self._inside())
        shown: dict[int, dict[int, Pulse]] = {}
        for rank in ranks:
            for pulse in self._arena.pulses(rank):
                shown.setdefault(pulse.step, {})[rank] = pulse
        for step, pulses in sorted(shown.items()):
            for what, name in ASPECTS:
                digests = {rank: f"{getattr(pulse, name):x}" for rank, pulse in pulses.items()}
                members = {rank: digest for rank, digest in digests.items() if rank in inside}
                if len(set(members.values())) > 1:
                    self._tell(core.Diverged(divergence(f"before step {step}", what, members)))
                    return
                for rank in digests.keys() - members.keys():
                    if members and digests[rank] not in members.values():
                        text = f"it came back wrong: before step {step}, {what} is not what the others have"
                        self._lose(self._workers[rank], core.Cause("profile", text))

    def _look_at(self, worker: Worker, moment: Moment) -> Sample:
        idle_s = self.idle_s(worker.rank)
        if moment.left and idle_s > LEFT_S:
            self._tell(core.Done(worker.rank, moment.taken + 1, "", worker.life))
        self._tell(core.Progress(worker.rank, begun(moment), worker.life))
        phase = "tail" if moment.left else moment.phase
        stopped = idle_s > IDLE_S and is_stopped(worker.pid)
        return Sample(worker.rank, moment.counter, phase, moment.step, moment.shard, stopped)

    def _accuse(self, worker: Worker, cause: core.Cause) -> None:
        if cause.kind != "hung":
            self._lose(worker, cause)
        elif worker.stack is None:
            worker.stack = bytearray()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, STACK_SIGNAL)
            counter = self._arena.moment(worker.rank).counter
            asyncio.get_running_loop().call_later(STACK_WAIT_S, self._convict, worker, cause, counter)

    def _convict(self, worker: Worker, cause: core.Cause, counter: int) -> None:
        stack, worker.stack = worker.stack, None
        if worker.wait_status is not None or self._arena.moment(worker.rank).counter != counter:
            return  # it is gone, or moves again
        self._lose(worker, hung_cause(cause, bytes(stack or b"").decode(errors="replace")))


def begun(moment: Moment) -> int:
    """Return the newest step that a worker has begun."""
    return moment.step - (moment.phase in {"between", "aside", "tail"})
