"""The agent as the simulator plays it: what happens to processes becomes events, instructions become deeds.

A model of `agent.supervisor`, which is asyncio, signals and /proc. Each callback of its one thread is one action here,
and nothing comes in between within a callback. `core.detect` runs for real.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from relume.core import events as core
from relume.core.detect import Sample, Watch
from relume.simulate.channel import Channel
from relume.wire import messages

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World

TICK_S = 0.2
FENCE_POLL_S = 0.0005
DOOM_POLL_S = 0.005
IDLE_S = 1.0
STACK_WAIT_S = 0.3
LAST_WORDS_S = 5.0
AS_THE_AGENT_SEES = {"merge": "load", "slot": "load", "admission": "joining"}
"""Phases that the simulator tells apart and progress blocks do not."""
EXIT_NOTICE_S = (0.001, 0.15)
"""A pidfd fires when memory is torn down: the least, and how much longer it may take."""


@dataclass(slots=True)
class Seat:
    """What the agent knows of one worker; as `agent.worker.Worker`."""

    joined: bool = False
    condemned: bool = False
    self_fenced: bool = False
    raised: core.Cause | None = None
    reaped: bool = False
    fenced: bool = False
    suspected: bool = False


class Shell:
    """See the module's docstring."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler = world.scheduler
        self.watch = Watch(world.limits.hang_s)
        ranks = range(world.settings.workers)
        self.seats = [Seat() for _ in ranks]
        discipline = world.settings.discipline
        self.up = [Channel(self.scheduler, discipline, partial(self.hear, rank)) for rank in ranks]
        self.down = [Channel(self.scheduler, discipline, world.workers[rank].inbox.put) for rank in ranks]
        self.told: list[core.Event] = []

    def start(self) -> None:
        """Start the workers and the ticks."""
        for worker in self.world.workers:
            worker.start()
        self.scheduler.after(TICK_S, self.tick)

    # What happens -------------------------------------------------------------------------------------------

    def hear(self, rank: int, message: object) -> None:
        """Turn a worker's message into an event."""
        seat = self.seats[rank]
        if isinstance(message, messages.Join):
            seat.joined = True
            self.tell(core.Joined(rank, message.terms, message.shape, message.total))
        elif isinstance(message, messages.Promised):
            self.tell(core.Pledged(rank, message.ballot))
        elif isinstance(message, messages.Finished):
            self.tell(core.Done(rank, message.step, message.digest))
        elif isinstance(message, messages.Raised):
            seat.self_fenced = True
            seat.raised = core.Cause("raised", f"its script raised {message.error}", {"where": message.where})
            self.tell(core.Lost(rank, seat.raised))
        elif isinstance(message, messages.Leave):
            seat.self_fenced = True
            self.tell(core.Lost(rank, core.Cause("planned", message.reason)))

    def doomed(self, worker: Worker) -> None:
        """A deadly signal is on its way to a worker: the agent's look at /proc shows it before its pidfd does."""
        self.scheduler.after(DOOM_POLL_S * self.scheduler.chance(), self._see_doom, worker)

    def _see_doom(self, worker: Worker) -> None:
        seat = self.seats[worker.rank]
        if not seat.reaped and not seat.condemned:
            self._drain(worker.rank)
            self.tell(core.Lost(worker.rank, seat.raised or core.Cause("signal", "it was killed by signal 9")))

    def ended(self, worker: Worker, *, by_signal: bool) -> None:
        """A worker's process has ended; the pidfd tells that somewhat later."""
        del by_signal
        self.scheduler.after(EXIT_NOTICE_S[0] + EXIT_NOTICE_S[1] * self.scheduler.chance() ** 3, self._reap, worker)

    def _reap(self, worker: Worker) -> None:
        seat = self.seats[worker.rank]
        seat.reaped = True
        self._drain(worker.rank)
        if worker.status == 0 and seat.raised is None and not seat.condemned:
            self.tell(core.Exited(worker.rank))
        else:
            self.tell(core.Lost(worker.rank, self._cause_of(worker)))
        self._fenced(worker)

    def _cause_of(self, worker: Worker) -> core.Cause:
        raised = self.seats[worker.rank].raised
        if raised is not None:
            return raised
        if worker.status == -9:
            return core.Cause("signal", "it was killed by signal 9")
        return core.Cause("exit_code", f"its script ended with exit code {worker.status}")

    def _drain(self, rank: int) -> None:
        """What a worker sent before it died is read first. An unruly channel may bring it later."""
        if self.world.settings.discipline.ordered:
            self.up[rank].drain()

    def tick(self) -> None:
        """Look at everybody."""
        if self.world.over:
            return
        samples = []
        for worker in self.world.workers:
            seat = self.seats[worker.rank]
            if seat.joined and not seat.condemned and not seat.reaped:
                samples.append(self._look_at(worker))
        for rank, cause in self.watch.look(samples, self.scheduler.now):
            self._accuse(rank, cause)
        self._compare([sample.rank for sample in samples])
        self.tell(core.Tick())
        self.scheduler.after(TICK_S, self.tick)

    def _look_at(self, worker: Worker) -> Sample:
        idle_s = self.watch.idle_s(worker.rank, self.scheduler.now)
        if worker.left and idle_s > LAST_WORDS_S:
            self.tell(core.Done(worker.rank, self.world.arena.taken[worker.rank] + 1))
        self.tell(core.Progress(worker.rank, worker.step - (worker.phase in {"between", "tail"})))
        phase = "tail" if worker.left else AS_THE_AGENT_SEES.get(worker.phase, worker.phase)
        stopped = idle_s > IDLE_S and worker.process.frozen and worker.shows_stop
        return Sample(worker.rank, worker.counter, phase, worker.step, worker.shard, stopped)

    def _compare(self, ranks: list[int]) -> None:
        """Find replicas that differ, by what they showed at the begin of the same step."""
        shown: dict[int, set[str]] = {}
        for rank in ranks:
            for step, state in self.world.workers[rank].pulses:
                shown.setdefault(step, set()).add(state)
        for step, states in sorted(shown.items()):
            if len(states) > 1:
                self.tell(core.Diverged(f"before step {step}: {sorted(states)}"))

    def _accuse(self, rank: int, cause: core.Cause) -> None:
        seat = self.seats[rank]
        if cause.kind != "hung":
            self.tell(core.Lost(rank, cause))
        elif not seat.suspected:
            seat.suspected = True
            self.scheduler.after(STACK_WAIT_S, self._convict, rank, cause)

    def _convict(self, rank: int, cause: core.Cause) -> None:
        self.seats[rank].suspected = False
        if self.watch.idle_s(rank, self.scheduler.now) >= self.world.limits.hang_s:
            self.tell(core.Lost(rank, cause))

    # What is done about it ----------------------------------------------------------------------------------

    def tell(self, event: core.Event) -> None:
        """Tell the coordinator and do what it answers."""
        world = self.world
        if world.over:
            return
        for instruction in world.decide(event):
            self.obey(instruction)
        if world.settings.echoes:
            self._echo(event)

    def _echo(self, event: core.Event) -> None:
        """Let an old event come once more, late (rarely)."""
        self.told.append(event)
        if self.scheduler.chance() < self.world.settings.echoes:
            again = self.told[int(len(self.told) * self.scheduler.chance())]
            self.scheduler.after(self.scheduler.chance() * 0.1, self._tell_again, again)

    def _tell_again(self, event: core.Event) -> None:
        if not self.world.over:
            for instruction in self.world.decide(event):
                self.obey(instruction)

    def soon(self) -> float:
        """Return how long the agent's loop takes to come to its next callback."""
        return self.world.settings.lag_s * self.scheduler.chance()

    def obey(self, instruction: core.Instruction) -> None:
        """Do what the coordinator says."""
        world = self.world
        if isinstance(instruction, core.Reserve):
            room = core.NoMemory("it does not fit") if world.settings.no_memory else core.Reserved()
            self.scheduler.after(self.soon(), self.tell, room)
        elif isinstance(instruction, core.Fence):
            self.fence(world.workers[instruction.rank])
        elif isinstance(instruction, core.AskPromise):
            self.down[instruction.rank].send(messages.Ask(instruction.ballot))
        elif isinstance(instruction, core.Count):
            self.scheduler.after(self.soon(), self.tell, core.Counted(instruction.ballot, world.arena.inventory()))
        elif isinstance(instruction, core.InstallView):
            self.down[instruction.rank].send(messages.Install(instruction.view))
        elif isinstance(instruction, core.CloseRun):
            self.down[instruction.rank].send(messages.Close(instruction.view))
        elif isinstance(instruction, core.EndRun):
            world.end(instruction.outcome)

    def fence(self, worker: Worker) -> None:
        """Make sure that a worker can no longer write, and say so (Invariant 4)."""
        seat = self.seats[worker.rank]
        seat.condemned = True
        if seat.reaped or seat.self_fenced:
            self.scheduler.after(self.soon(), self._fenced, worker)
            self.scheduler.after(LAST_WORDS_S, worker.kill)
            return
        self.kill(worker)
        self.scheduler.after(self.soon(), self._poll_fence, worker)

    def kill(self, worker: Worker) -> None:
        """Kill it. The signal takes a moment to be seen by every thread, longer on busy cores."""
        worker.kill(worker.stuck_s or self.scheduler.chance() ** 3 * self.world.settings.kill_lag_s)

    def _poll_fence(self, worker: Worker) -> None:
        if self.seats[worker.rank].fenced:
            return
        if self.is_fenced(worker):
            self._fenced(worker)
        else:
            self.scheduler.after(FENCE_POLL_S, self._poll_fence, worker)

    def is_fenced(self, worker: Worker) -> bool:
        """Return whether no thread of it can run any more."""
        return not worker.process.alive

    def _fenced(self, worker: Worker) -> None:
        seat = self.seats[worker.rank]
        if not seat.fenced:
            seat.fenced = True
            self.tell(core.Fenced(worker.rank))
