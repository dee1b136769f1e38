"""One simulated worker: a process with a main thread that lives through the script, and a background thread.

Its progress words (`phase`, `step`, `shard`, `counter`, `left`) are what the agent and the faults can see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relume.simulate.engine import COMPUTE_S, Engine
from relume.simulate.processes import Bell, Inbox, Lock, Process, Way
from relume.simulate.slots import Slots
from relume.simulate.standing import NEVER, TOUCH_S, Standing
from relume.wire.messages import Finished, FromWorker, Join, Leave, Raised, Shape

if TYPE_CHECKING:
    from relume.simulate.world import World

WAIT_S = 1.0
"""Every wait looks again after this long; as `train.standing.WAIT_S`."""
BELL_LATENCY_S = 0.0003
START_S = 0.05
LAST_WORDS_S = 1.0
MAIN, LINK = "main", "link"


class Worker:
    """See the module's docstring. `ends_before`: this worker's script leaves the loop before that step."""

    def __init__(self, world: World, rank: int) -> None:
        settings = world.settings
        self.world = world
        self.rank = rank
        self.arena = world.arena
        self.pace = settings.paces[rank]
        self.process = Process(world.scheduler, self.takes)
        self.pen = Lock(world.scheduler)
        self.bell = Bell(world.scheduler, world.parts.wait_s, BELL_LATENCY_S, settings.deaf)
        self.inbox = Inbox()
        self.standing: Standing = world.parts.standing(self)
        self.slots: Slots = world.parts.slots(self)
        self.engine: Engine = world.parts.engine(self)
        self.phase, self.step, self.shard, self.counter, self.left = "joining", -1, -1, 0, False
        self.pulses: list[tuple[int, str]] = [(-1, "")] * 2
        """What it showed of its state at the begin of its two newest steps."""
        self.drifted = False
        self.doomed = False
        self.shows_stop = False
        self.stuck_s = 0.0
        """The kernel holds on to it for so long (a device that hangs), even when it is killed."""
        self.status: int | None = None
        """How its process ended: an exit code, or -9."""

    def start(self) -> None:
        """Start the process."""
        self.process.start(MAIN, self.life())
        self.process.start(LINK, self.standing.listen())

    def takes(self, nominal_s: float) -> float:
        """Return how long something takes this time: mostly about as long as it should, sometimes much longer."""
        chance, settings = self.world.scheduler.chance, self.world.settings
        length_s = nominal_s * self.pace * (0.2 + 1.6 * chance())
        return length_s + settings.stall_s * chance() if chance() < settings.stalls else length_s

    # What others see ----------------------------------------------------------------------------------------

    def enter(self, phase: str, shard: int = -1) -> None:
        """Note that the main thread is now in `phase`."""
        self.phase = phase
        self.counter += 1
        self.shard = shard
        self.world.trace.note(self.rank, phase, self.step, shard)

    def advance(self) -> None:
        """Note that something moved."""
        self.counter += 1

    def ring_others(self) -> None:
        """Tell the others that there is something new to read."""
        for other in self.world.workers:
            if other is not self:
                other.bell.ring()

    def send(self, message: FromWorker) -> None:
        """Send `message` to the agent."""
        self.world.trace.note(self.rank, "sends", message)
        self.world.shell.up[self.rank].send(message)

    def state(self, step: int) -> str:
        """Return the digest of all protected state before `step`."""
        return f"state before {step}" + (f", changed by {self.rank}" if self.drifted else "")

    def read_note(self, step: int, shard: int) -> None:
        """Read the note of a leaf of one's own."""
        note = self.arena.notes[step % len(self.arena.notes)][shard]
        self.world.check.own_note(self.rank, (step, shard), note)

    # The script ---------------------------------------------------------------------------------------------

    def life(self) -> Way:
        """Join, take part in every step, leave."""
        settings = self.world.settings
        self.enter("joining")
        yield START_S
        shape = Shape(settings.blocks * settings.pieces, 0, 1, settings.shards)
        self.send(Join(("odd",) if self.rank == settings.diverges else ("same",), shape, settings.steps))
        self.enter("admission")
        yield TOUCH_S
        yield from self.standing.settled()
        for step in range(settings.steps):
            self.step = step
            self.enter("between")
            yield TOUCH_S
            self.pulses[step % 2] = (step, self.state(step))
            yield TOUCH_S
            yield from self.engine.step(step)
            self.enter("update")
            yield COMPUTE_S
        yield from self.leave_loop(settings.steps)

    def leave_loop(self, step: int) -> Way:
        """Say that the loop has ended before `step`, and wait until all have; then do what the script does below."""
        self.enter("wait")
        self.send(Finished(step, self.state(step)))
        while self.standing.closed is None:
            yield self.bell
        self.enter("tail")
        yield COMPUTE_S
        yield TOUCH_S
        self.exit(0)

    def exit(self, status: int) -> None:
        """The process ends by itself."""
        self.world.trace.note(self.rank, "exits", status)
        self.process.end()
        self.status = status
        self.world.shell.ended(self, by_signal=False)

    # What faults make of it ---------------------------------------------------------------------------------

    def kill(self, lag_s: float = 0.0) -> None:
        """SIGKILL. It takes `lag_s` until the last of its threads has seen it."""
        if self.doomed or not self.process.alive:
            return
        self.doomed = True
        if lag_s:
            self.world.scheduler.after(lag_s, self._die)
        else:
            self._die()
        self.world.shell.doomed(self)

    def _die(self) -> None:
        if self.process.alive:
            self.world.trace.note(self.rank, "dies")
            self.process.end()
            self.status = -9
            self.world.shell.ended(self, by_signal=True)

    def raises(self, where: str) -> Way:
        """The script raised: fence oneself, tell, clean up, exit."""
        yield from self.standing.promise(NEVER)
        yield TOUCH_S
        self.send(Raised("ValueError: simulated", where, "traceback"))
        yield LAST_WORDS_S * self.world.scheduler.chance() * 8.0
        self.exit(1)

    def hands_over(self) -> Way:
        """Leave by plan: fence oneself, and tell."""
        yield from self.standing.promise(NEVER)
        yield TOUCH_S
        self.send(Leave("its shards were handed over by plan"))

    def burns(self) -> Way:
        """Compute for ever."""
        while True:
            self.counter += 1
            yield 1.0
