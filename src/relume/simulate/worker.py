"""One simulated worker: a process with a main thread that lives through the script, and a background thread.

It is one life of its rank. Its progress words (`phase`, `step`, `shard`, `counter`, `left`) are what the agent and the
faults can see. What it holds is `content`: the step before which its state stands, and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from relume.simulate import symbols
from relume.simulate.channel import Channel
from relume.simulate.engine import COMPUTE_S, Engine
from relume.simulate.memory import Who
from relume.simulate.mirroring import Mirroring
from relume.simulate.processes import Bell, Inbox, Lock, Process, Way
from relume.simulate.replay import Copy, Joiner
from relume.simulate.slots import Slots
from relume.simulate.standing import NEVER, TOUCH_S, Standing
from relume.wire.messages import Finished, FromWorker, Join, Leave, Leaving, Raised, Shape

if TYPE_CHECKING:
    from relume.simulate.world import World

WAIT_S = 1.0
"""Every wait looks again after this long; as `train.standing.WAIT_S`."""
BELL_LATENCY_S = 0.0003
START_S = 0.05
LAST_WORDS_S = 1.0
SLOWEST = 40.0
MAIN, LINK = "main", "link"
Content = tuple[int, str]


class Worker:
    """See the module's docstring."""

    def __init__(self, world: World, rank: int, life: int = 0) -> None:
        settings, scheduler = world.settings, world.scheduler
        self.world = world
        self.rank, self.life = rank, life
        self.who = Who(rank, life)
        self.arena = world.arena
        self.pace = settings.pace(rank, life)
        self.process = Process(scheduler, self.takes)
        self.process.moment = partial(world.faults.moment, self)
        self.pen = Lock(scheduler)
        self.bell = Bell(scheduler, world.parts.wait_s, BELL_LATENCY_S, settings.deaf)
        self.inbox = Inbox()
        self.up = Channel(scheduler, settings.discipline, partial(world.shell.hear, self))
        self.down = Channel(scheduler, settings.discipline, self.inbox.put)
        self.standing: Standing = world.parts.standing(self)
        self.slots: Slots = world.parts.slots(self)
        self.engine: Engine = world.parts.engine(self)
        self.mirroring: Mirroring = world.parts.mirroring(self)
        self.joiner: Joiner = world.parts.joiner(self)
        self.phase, self.step, self.shard, self.counter, self.left = "joining", -1, -1, 0, False
        self.hears = "view"
        """What the background thread is about, as a phase."""
        self.content: Content = (0, "")
        self.pulses: list[tuple[int, str]] = [(-1, "")] * 2
        """What it showed of its state at the begin of its two newest steps."""
        self.finished: Finished | None = None
        self.doomed = False
        self.shows_stop = False
        self.odd = False
        """Its terms differ from the others'."""
        self.stuck_s = 0.0
        """The kernel holds on to it for so long (a device that hangs), even when it is killed."""
        self.status: int | None = None
        """How its process ended: an exit code, or -9."""

    def start(self) -> None:
        """Start the process."""
        self.world.trace.note(self.rank, "starts as life", self.life)
        self.world.check.starts(self)
        self.arena.begin_life(self.rank)
        self.process.start(MAIN, self.live())
        self.process.start(LINK, self.standing.listen())

    def takes(self, nominal_s: float) -> float:
        """Return how long something takes this time: mostly about as long as it should, sometimes much longer."""
        chance, settings = self.world.scheduler.chance, self.world.settings
        pace = min(SLOWEST, self.pace * settings.late) if self.joiner.replaying else self.pace
        length_s = nominal_s * pace * (0.2 + 1.6 * chance())
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
        for other in self.world.newest:
            if other is not self:
                other.bell.ring()

    def send(self, message: FromWorker) -> None:
        """Send `message` to the agent."""
        self.world.trace.note(self.rank, "sends", message)
        self.up.send(message)

    def says_level(self, step: int) -> None:
        """Note that it is about to say that it is level."""
        self.world.check.level(self, step)

    # What it holds ------------------------------------------------------------------------------------------

    def state(self) -> Content:
        """Return all protected state."""
        return self.content

    def drifts(self) -> None:
        """The script changes its state on this worker alone."""
        self.content = (self.content[0], f"{self.content[1]}, changed by {self.rank}")

    def takes_in(self, step: int, copy: Copy) -> None:
        """Take the result of `step`."""
        right = symbols.result(step, self.arena.shards)
        before, wrong = self.content
        self.arena.take(self.who, step, copy)
        if before != step or copy != ((right,) * self.arena.cells, right[1], step):
            wrong += f", wrong since {step}"
        self.content = (step + 1, wrong)

    def loads(self, step: int, content: Content) -> None:
        """Load a mirror."""
        self.content = content
        self.step = step
        self.arena.load(self.who, step, content)

    def read_note(self, step: int, shard: int) -> None:
        """Read the note of a leaf of one's own."""
        note = self.arena.notes[step % self.arena.kept][shard]
        self.world.check.own_note(self.rank, (step, shard), note)

    # The script ---------------------------------------------------------------------------------------------

    def live(self) -> Way:
        """Join, take part in every step, leave."""
        settings = self.world.settings
        self.enter("joining")
        yield START_S
        shape = Shape(settings.blocks * settings.pieces, 0, 1, settings.shards)
        odd = self.odd or (self.rank == settings.diverges and not self.life)
        self.send(Join(("odd",) if odd else ("same",), shape, settings.steps))
        self.enter("forming")
        yield TOUCH_S
        yield from self.standing.joined()
        step = yield from self.joiner.start()
        while True:
            if step < settings.steps:
                self.step = step
                self.enter("between")
                yield TOUCH_S
            step, copy, over = yield from self.boundary(step, left=False)
            if over:
                break
            self.enter("before")
            self.pulses[step % 2] = (step, str(self.state()))
            yield TOUCH_S
            if copy is not None:
                yield from self.joiner.retake(step, copy)
            else:
                yield from self.engine.step(step)
            self.enter("update")
            yield COMPUTE_S * (settings.heavy if copy is None else 1.0)
            step += 1
        yield from self.leave_loop(step)

    def boundary(self, step: int, *, left: bool) -> Generator[Any, Any, tuple[int, Copy | None, bool]]:
        """Stand before `step`. Returns the step, what is kept of it if it is to be replayed, whether the loop ends."""
        joiner, total = self.joiner, self.world.settings.steps
        if joiner.replaying:
            step, copy = yield from joiner.arrive(step, left=left)
            if joiner.gone:
                yield from self.leave_for_good()
            if self.phase == "spare":
                self.enter("between")
            if joiner.replaying:
                return step, copy, copy is None
        if (yield from self.standing.begin(step)) is None:
            yield from self.leave_for_good()
        over = left or step >= total
        if over:
            yield from self.mirroring.at_end(step)
        else:
            yield from self.mirroring.at_boundary(step)
        return step, None, over

    def leave_for_good(self) -> Way:
        """A view without this worker begins: it goes, by plan, and says nothing more."""
        yield from self.standing.promise(NEVER)
        self.world.check.leaves(self)
        self.enter("tail")
        yield TOUCH_S
        self.exit(0)
        yield TOUCH_S

    def leave_loop(self, step: int) -> Way:
        """Say that the loop has ended before `step`, and wait until all have; then do what the script does below."""
        self.enter("wait")
        self.finished = Finished(step, str(self.state()))
        self.send(self.finished)
        while self.standing.closed is None:
            yield from self.standing.wait()
        self.enter("tail")
        yield COMPUTE_S
        yield TOUCH_S
        self.exit(0)

    def breaks(self, step: int) -> Way:
        """The script left its loop before `step` by itself."""
        _, _, over = yield from self.boundary(step, left=True)
        assert over
        yield from self.leave_loop(step)

    def exit(self, status: int) -> None:
        """The process ends by itself."""
        self.world.trace.note(self.rank, "exits", status)
        self.process.end()
        self.status = status
        self.world.shell.ended(self)

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
            self.world.shell.ended(self)

    def noticed(self) -> None:
        """SIGTERM: told to go. Before its loop begins that is the end; later it tells, and works on."""
        if self.phase == "joining":
            self.kill()
        else:
            self.send(Leaving("SIGTERM"))

    def raises(self, where: str) -> Way:
        """The script raised: fence oneself, tell, clean up, exit."""
        yield from self.standing.promise(NEVER)
        yield TOUCH_S
        self.send(Raised("ValueError: simulated", where, "traceback"))
        yield LAST_WORDS_S * self.world.scheduler.chance() * 8.0
        self.exit(1)
        yield TOUCH_S

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
