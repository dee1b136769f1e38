"""The agent as the simulator plays it: what happens to processes becomes events, instructions become deeds.

A model of `agent.supervisor` and `agent.vigil`, which are asyncio, signals and /proc. Each callback of its one thread
is one action here, and nothing comes in between within a callback. `core.detect` runs for real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relume.core import events as core
from relume.core.detect import Sample, Watch
from relume.simulate.worker import Worker
from relume.wire import messages

if TYPE_CHECKING:
    from relume.simulate.world import World

TICK_S = 0.2
FENCE_POLL_S = 0.0005
DOOM_POLL_S = 0.005
IDLE_S = 1.0
STACK_WAIT_S = 0.3
LAST_WORDS_S = 5.0
AS_THE_AGENT_SEES = {
    "merge": "load",
    "slot": "load",
    "forming": "joining",
    "before": "between",
    "spare": "wait",
}
"""Phases that the simulator tells apart and progress blocks do not."""
NOT_BEGUN = frozenset({"between", "aside", "tail"})
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
        self.seats: dict[Worker, Seat] = {}
        self.waiting: dict[int, int] = {}
        """Lives that begin as soon as the one before is gone, by rank."""
        self.told: list[core.Event] = []

    def start(self) -> None:
        """Start the workers and the ticks."""
        settings = self.world.settings
        for rank in range(settings.workers + settings.spares):
            self.start_worker(rank, 0)
        self.scheduler.after(TICK_S, self.tick)

    # Starting -----------------------------------------------------------------------------------------------

    def start_worker(self, rank: int, life: int) -> None:
        """Start a process."""
        self.watch.forget(rank)
        worker = Worker(self.world, rank, life)
        self.seats[worker] = Seat()
        self.world.sits(worker)
        self.world.faults.born(worker)
        worker.start()

    def start_later(self, rank: int, life: int) -> None:
        """Start a further worker as soon as the seat is empty: whoever had it may write its own words until then."""
        before = self.world.at(rank)
        if before is not None and not self.is_gone(before):
            self.waiting[rank] = life
        else:
            self.start_worker(rank, life)

    def is_gone(self, worker: Worker) -> bool:
        """Return whether a process was waited for."""
        return self.seats[worker].reaped

    # What happens -------------------------------------------------------------------------------------------

    def hear(self, worker: Worker, message: object) -> None:
        """Turn a worker's message into an event."""
        seat, rank, life = self.seats[worker], worker.rank, worker.life
        match message:
            case messages.Join(terms, shape, total):
                seat.joined = True
                self.tell(core.Joined(rank, terms, shape, total, life))
            case messages.Promised(ballot):
                self.tell(core.Pledged(rank, ballot, life))
            case messages.Finished(step, digest):
                self.tell(core.Done(rank, step, digest, life))
            case messages.Level(step):
                self.tell(core.Level(rank, step, life))
            case messages.Accepted(number):
                self.tell(core.Accepted(rank, number, life))
            case messages.Refused(number, step):
                self.tell(core.Refused(rank, number, step, life))
            case messages.Leaving(reason):
                self.tell(core.Leaving(rank, reason, life))
            case messages.Raised(error, where):
                seat.self_fenced = True
                seat.raised = core.Cause("raised", f"its script raised {error}", {"where": where})
                self.tell(core.Lost(rank, seat.raised, life))
            case messages.Leave(reason):
                seat.self_fenced = True
                self.tell(core.Lost(rank, core.Cause("planned", reason), life))

    def doomed(self, worker: Worker) -> None:
        """A deadly signal is on its way to a worker: the agent's look at /proc shows it before its pidfd does."""
        self.scheduler.after(DOOM_POLL_S * self.scheduler.chance(), self._see_doom, worker)

    def _see_doom(self, worker: Worker) -> None:
        seat = self.seats[worker]
        if not seat.reaped and not seat.condemned:
            self._drain(worker)
            self.lose(worker, seat.raised or core.Cause("signal", "it was killed by signal 9"))

    def lose(self, worker: Worker, cause: core.Cause) -> None:
        """Tell of a loss."""
        self.tell(core.Lost(worker.rank, cause, worker.life))

    def ended(self, worker: Worker) -> None:
        """A worker's process has ended; the pidfd tells that somewhat later."""
        self.scheduler.after(EXIT_NOTICE_S[0] + EXIT_NOTICE_S[1] * self.scheduler.chance() ** 3, self._reap, worker)

    def _reap(self, worker: Worker) -> None:
        seat = self.seats[worker]
        seat.reaped = True
        self._drain(worker)
        if worker.status == 0 and seat.raised is None and not seat.condemned:
            self.tell(core.Exited(worker.rank, worker.life, self.world.arena.taken[worker.rank]))
        else:
            self.lose(worker, self._cause_of(worker))
        self._fenced(worker)
        if worker is self.world.at(worker.rank):
            life = self.waiting.pop(worker.rank, None)
            if life is not None and not self.world.over:
                self.start_later(worker.rank, life)

    def _cause_of(self, worker: Worker) -> core.Cause:
        raised = self.seats[worker].raised
        if raised is not None:
            return raised
        if worker.status == -9:
            return core.Cause("signal", "it was killed by signal 9")
        return core.Cause("exit_code", f"its script ended with exit code {worker.status}")

    def _drain(self, worker: Worker) -> None:
        """What a worker sent before it died is read first. An unruly channel may bring it later."""
        if self.world.settings.discipline.ordered:
            worker.up.drain()

    def tick(self) -> None:
        """Look at everybody."""
        if self.world.over:
            return
        samples = []
        for worker in list(self.world.newest):
            seat = self.seats[worker]
            if seat.joined and not seat.condemned and not seat.reaped:
                samples.append(self._look_at(worker))
        for rank, cause in self.watch.look(samples, self.scheduler.now):
            self._accuse(self.world.now_at(rank), cause)
        self._compare([self.world.now_at(sample.rank) for sample in samples])
        self.tell(core.Tick())
        self.scheduler.after(TICK_S, self.tick)

    def _look_at(self, worker: Worker) -> Sample:
        idle_s = self.watch.idle_s(worker.rank, self.scheduler.now)
        if worker.left and idle_s > LAST_WORDS_S:
            self.tell(core.Done(worker.rank, self.world.arena.taken[worker.rank] + 1, "", worker.life))
        if self.world.settings.insists and worker.finished is not None:
            self.tell(core.Done(worker.rank, worker.finished.step, worker.finished.digest, worker.life))
        phase = AS_THE_AGENT_SEES.get(worker.phase, worker.phase)
        self.tell(core.Progress(worker.rank, worker.step - (phase in NOT_BEGUN), worker.life))
        stopped = idle_s > IDLE_S and worker.process.frozen and worker.shows_stop
        phase = "tail" if worker.left else phase
        return Sample(worker.rank, worker.counter, phase, worker.step, worker.shard, stopped)

    def _compare(self, workers: list[Worker]) -> None:
        """Find replicas that differ, by what they showed at the begin of the same step.

        A joiner that differs from the members is the one that is wrong; among members nobody can say who is.
        """
        inside = set(self.world.core.party())
        shown: dict[int, dict[Worker, str]] = {}
        for worker in workers:
            for step, state in worker.pulses:
                shown.setdefault(step, {})[worker] = state
        for step, states in sorted(shown.items()):
            members = {state for worker, state in states.items() if worker.rank in inside}
            if len(members) > 1:
                self.tell(core.Diverged(f"before step {step}: {sorted(members)}"))
                return
            for worker, state in states.items():
                if members and worker.rank not in inside and state not in members:
                    self.lose(worker, core.Cause("profile", f"it came back wrong: before step {step} it holds {state}"))

    def _accuse(self, worker: Worker, cause: core.Cause) -> None:
        seat = self.seats[worker]
        if cause.kind != "hung":
            self.lose(worker, cause)
        elif not seat.suspected:
            seat.suspected = True
            self.scheduler.after(STACK_WAIT_S, self._convict, worker, cause, worker.counter)

    def _convict(self, worker: Worker, cause: core.Cause, counter: int) -> None:
        self.seats[worker].suspected = False
        if worker.counter == counter:  # else it moves again
            self.lose(worker, cause)

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
            again = self.told[-1 - int(len(self.told) * self.scheduler.chance() ** 3)]
            if not isinstance(again, core.Scale | core.Reserved):  # a person's wish and a deed's fact come once
                self.scheduler.after(0.7 * self.scheduler.chance() ** 2, self._tell_again, again)

    def _tell_again(self, event: core.Event) -> None:
        if not self.world.over:
            for instruction in self.world.decide(event):
                self.obey(instruction)

    def soon(self) -> float:
        """Return how long the agent's loop takes to come to its next callback."""
        return self.world.settings.lag_s * self.scheduler.chance()

    def obey(self, instruction: core.Instruction) -> None:  # noqa: C901 - one flat case per instruction
        """Do what the coordinator says."""
        world = self.world
        match instruction:
            case core.Reserve():
                room = core.NoMemory("it does not fit") if world.settings.no_memory else core.Reserved()
                self.scheduler.after(self.soon(), self.tell, room)
            case core.Fence(rank):
                self.fence(world.now_at(rank))
            case core.AskPromise(rank, ballot):
                self.send(rank, messages.Ask(ballot))
            case core.Count(ballot):
                inventory = world.arena.inventory(world.core.alive())
                self.scheduler.after(self.soon(), self.tell, core.Counted(ballot, inventory))
            case core.InstallView(rank, view):
                self.send(rank, messages.Install(view))
            case core.StartReplay(rank, end):
                self.send(rank, messages.Replay(end))
            case core.ProposeView(rank, view):
                self.send(rank, messages.Propose(view))
            case core.WithdrawView(rank, number):
                self.send(rank, messages.Withdraw(number))
            case core.CloseRun(rank, view):
                self.send(rank, messages.Close(view))
            case core.StartWorker(rank, life):
                self.start_later(rank, life)
            case core.Dismiss(rank):
                self.dismiss(rank)
            case core.EndRun(outcome, reason):
                world.end(outcome, reason)

    def send(self, rank: int, message: object) -> None:
        """Send `message` to whoever has the rank now."""
        self.world.now_at(rank).down.send(message)

    def dismiss(self, rank: int) -> None:
        """End a worker that is in no view."""
        if self.waiting.pop(rank, None) is None:
            worker = self.world.now_at(rank)
            self.seats[worker].condemned = True
            worker.kill()

    def fence(self, worker: Worker) -> None:
        """Make sure that a worker can no longer write, and say so (Invariant 4)."""
        seat = self.seats[worker]
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
        if self.seats[worker].fenced:
            return
        if self.is_fenced(worker):
            self._fenced(worker)
        else:
            self.scheduler.after(FENCE_POLL_S, self._poll_fence, worker)

    def is_fenced(self, worker: Worker) -> bool:
        """Return whether no thread of it can run any more."""
        return not worker.process.alive

    def _fenced(self, worker: Worker) -> None:
        seat = self.seats[worker]
        if not seat.fenced:
            seat.fenced = True
            self.tell(core.Fenced(worker.rank, worker.life))
