"""A small world in which the real coordinator and planner meet random losses at random instants.

The workers are models: generators that follow the rules of the step (DESIGN.md) and stop at every point at which
something else may happen in between, a kill included. What they sum are not numbers but expressions, so that a sum
in the wrong order, of the wrong step or of something half written can be told from the right one. Messages are
delayed, doubled and out of order. `Laws` watches the coordinator; the world watches the results.

It is no simulator: no clock but ticks, no files, one host, and it proves nothing. It is quick, and finds much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from relume.arena.layout import RESULTS, SLOTS_EAGER, slots_max
from relume.core import ranges
from relume.core.coordinator import Coordinator, State
from relume.core.events import (
    AskPromise,
    Cause,
    CloseRun,
    Count,
    Counted,
    Done,
    EndRun,
    Event,
    Exited,
    Fence,
    Fenced,
    InstallView,
    Instruction,
    Joined,
    Lost,
    Pledged,
    Progress,
    Reserve,
    Reserved,
    Tick,
)
from relume.core.limits import Limits
from relume.core.plan import Inventory
from relume.core.ranges import Range
from relume.core.verdict import Outcome
from relume.core.view import owner, shards_of
from relume.reduce.tree import fold
from relume.wire.messages import Ballot, Shape, View
from tests.scenarios.laws import Broken, Laws

HALF_WRITTEN = "half written"
ACTIONS_MAX = 50_000

Steps = Generator[bool, None, None]
"""A worker's way: it yields True after something was done, and False if it can only wait."""


def tree(step: int, lo: int, hi: int) -> object:
    """Return the sum of the shards [lo, hi) as an expression, in the order that DESIGN.md gives."""
    if hi - lo == 1:
        return (step, lo)
    half = 1
    while half * 2 < hi - lo:
        half *= 2
    return (tree(step, lo, lo + half), tree(step, lo + half, hi))


@dataclass(eq=False)
class Place:
    """A slot or a block: what stands there, and the seal that says what it is."""

    seal: tuple[int, Range] | int | None = None
    content: object = None


@dataclass
class Arena:
    """What outlives every worker."""

    workers: int
    shards: int
    blocks: int

    def __post_init__(self) -> None:
        self.slots = [[Place() for _ in range(slots_max(self.shards))] for _ in range(self.workers)]
        self.results = [[Place() for _ in range(self.blocks)] for _ in range(RESULTS)]
        self.taken = [-1] * self.workers

    def complete(self, step: int) -> bool:
        """Return whether every block of `step` is sealed."""
        return all(block.seal == step for block in self.results[step % RESULTS])

    def sealed(self, step: int) -> Iterator[tuple[int, Range, Place]]:
        """Yield every sealed node of `step`."""
        for rank, slots in enumerate(self.slots):
            for slot in slots:
                if isinstance(slot.seal, tuple) and slot.seal[0] == step:
                    yield rank, slot.seal[1], slot

    def inventory(self) -> Inventory:
        """Read the seals, as the agent does."""
        steps = {block.seal for blocks in self.results for block in blocks if isinstance(block.seal, int)}
        complete = max((step for step in steps if self.complete(step)), default=-1)
        sealed: dict[int, list[Range]] = {}
        for rank, node, _ in self.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        return Inventory(complete, sealed)


@dataclass(eq=False)
class Worker:
    """One worker: its way through the steps, and what its background thread does about messages."""

    rank: int
    arena: Arena
    steps: int
    say: Callable[[Event], None]
    careless: bool = False
    """Break rule 3: write whatever is promised."""
    view: View | None = None
    promise: Ballot = (0, 0)
    pen: bool = False
    closed: bool = False
    dead: bool = False
    stopped: bool = False
    idle: bool = False
    step: int = -1
    doing: str = ""

    def __post_init__(self) -> None:
        self.way = self._life()

    @property
    def promised(self) -> bool:
        """Whether a ballot is promised whose view is not there yet."""
        return not self.careless and (self.view is None or self.view.number < self.promise)

    def hear(self, message: Instruction) -> None:
        """Do what the background thread does; not while the main thread holds the pen."""
        if isinstance(message, AskPromise):
            self.promise = max(self.promise, message.ballot)
            self.say(Pledged(self.rank, message.ballot))
        elif isinstance(message, InstallView):
            if message.view.number >= self.promise:
                self.view = message.view
        elif isinstance(message, CloseRun):
            self.closed = True

    # The main thread --------------------------------------------------------------------------------------------

    def _life(self) -> Steps:
        yield True
        self.say(Joined(self.rank, ("same",), Shape(64, 0, 1, self.arena.shards)))
        while self.view is None:
            yield False
        for step in range(self.steps):
            self.step = step
            yield True
            yield from self._compute(step)
            yield from self._take(step)
        self.say(Done(self.rank, self.steps))
        while not self.closed:
            yield False
        yield True
        self.dead = True
        self.say(Exited(self.rank))

    def _write(self, *actions: Callable[[], None]) -> Steps:
        """Take the pen as soon as nothing is promised; a kill may come between two writes, a promise not."""
        while self.promised:
            yield False
        self.pen = True
        for action in actions:
            action()
            yield True
        self.pen = False

    def _compute(self, step: int) -> Steps:
        done: set[int] = set()
        while not self.arena.complete(step):
            if self.promised:
                yield False
                continue
            view = self.view
            assert view is not None
            mine = shards_of(view, self.rank, step) if view.step <= step else ()
            shard = next((shard for shard in mine if shard not in done), None)
            if shard is not None:
                yield from self._leaf(step, shard)
                done.add(shard)
            else:
                yield from self._sum(step, view)

    def _leaf(self, step: int, shard: int) -> Steps:
        self.doing = "leaf"
        slot = yield from self._acquire(step)
        slot.content = HALF_WRITTEN
        yield True
        slot.content = (step, shard)
        yield True
        yield from self._write(lambda: setattr(slot, "seal", (step, (shard, shard + 1))))

    def _acquire(self, step: int) -> Generator[bool, None, Place]:
        slots = self.arena.slots[self.rank]
        held = {slot.seal[1]: slot for slot in slots if isinstance(slot.seal, tuple) and slot.seal[0] == step}
        free = [slot for slot in slots if slot not in held.values()]
        eager = any(slot in free for slot in slots[:SLOTS_EAGER])
        for left in () if eager else sorted(held):
            right = ranges.sibling(left, self.arena.shards)
            if right in held and right[0] == left[1]:
                yield from self._merge(step, (left[0], right[1]), held[left], held[right])
                return held[right]
        if not free:
            raise Broken(f"worker {self.rank} has no slot left beside {sorted(held)}")
        yield from self._write(lambda: setattr(free[0], "seal", None))
        return free[0]

    def _merge(self, step: int, node: Range, into: Place, other: Place) -> Steps:
        """Rule 8."""
        self.doing = "merge"
        yield from self._write(lambda: setattr(into, "seal", None))
        left, into.content = into.content, HALF_WRITTEN
        yield True
        into.content = (left, other.content)
        yield True
        yield from self._write(lambda: setattr(into, "seal", (step, node)), lambda: setattr(other, "seal", None))

    def _sum(self, step: int, view: View) -> Steps:
        arena, blocks = self.arena, self.arena.results[step % RESULTS]
        mine = [b for b in blocks if owner(view, blocks.index(b), len(blocks)) == self.rank and b.seal != step]
        late = any(arena.taken[member] < step - 1 for member in view.members)  # rule 6
        sources = {node: slot for _, node, slot in arena.sealed(step)}
        nodes = ranges.cover(sources, arena.shards)
        if not mine or late or nodes is None:
            yield False
            return
        for block in mine:
            self.doing = "sum"
            parts = []
            for _ in range(2):  # two pieces
                yield True
                if self.promised or (self.view is not view and not self.careless):
                    return
                parts.append(fold({node: sources[node].content for node in nodes}, arena.shards, lambda a, b: (a, b)))
                block.content = (*parts, HALF_WRITTEN)
            yield True
            if self.promised or (self.view is not view and not self.careless):
                return
            block.content, block.seal = tuple(parts), step

    def _take(self, step: int) -> Steps:
        yield from self._write(lambda: None)
        self.doing = "take"
        expected = tree(step, 0, self.arena.shards)
        for block in self.arena.results[step % RESULTS]:
            yield True
            if block.content != (expected, expected) or block.seal != step:
                raise Broken(f"worker {self.rank} takes {block} in step {step}, which should be {expected}")
        self.arena.taken[self.rank] = step


@dataclass
class World:
    """One run under one seed. `faults` is how many losses are tried."""

    seed: int
    workers: int
    shards: int
    blocks: int
    steps: int
    faults: int
    careless: bool = False
    hasty: bool = False
    """Break rule 4: say that a worker is fenced before it is."""
    now: float = 1.0
    _inbox: list[tuple[int, Instruction]] = field(default_factory=list)
    _outbox: list[Event] = field(default_factory=list)
    _doubles: list[Event] = field(default_factory=list)
    _to_fence: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.core = Coordinator(self.workers, 1, Limits.derive(300.0))
        self.laws = Laws(self.workers)
        self.arena = Arena(self.workers, self.shards, self.blocks)
        self.fleet = [Worker(r, self.arena, self.steps, self._say, self.careless) for r in range(self.workers)]
        self.outcome: str | None = None
        self.losses = 0
        self.danger = self.random.choice([0.01, 0.03, 0.2])
        self.ambush = self.random.choice(["", "", "leaf", "merge", "sum", "take"])
        self.paces = self.random.choices([0.02, 0.3, 1.0], k=2 * self.workers)

    def run(self) -> str:
        """Live until the end and return the outcome. Raises `Broken`."""
        ticks = 0
        for _ in range(ACTIONS_MAX):
            if self.outcome is not None:
                self._check_end()
                return self.outcome
            actions = list(self._possible())
            if actions:
                weights, deeds = zip(*actions, strict=True)
                self.random.choices(deeds, weights)[0]()
            else:
                ticks += 1
                if ticks > self.workers + 2:
                    raise Broken(f"nothing moves any more: {self.core}")
                self.now += 10.0
                self._tell(Tick())
        raise Broken(f"no end after {ACTIONS_MAX} actions")

    # What may happen next -----------------------------------------------------------------------------------------

    def _possible(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what may happen next, with its weight: every worker and every link has a pace of its own."""
        ambushed = not self.ambush or any(worker.doing == self.ambush for worker in self.fleet)
        if self.losses < self.faults and ambushed and self.random.random() < self.danger:
            yield 1.0, self._harm
            return
        for worker in self.fleet:
            if not (worker.dead or worker.stopped or worker.idle):
                yield self.paces[worker.rank], lambda worker=worker: self._advance(worker)  # type: ignore[misc]
        for place, (rank, _) in enumerate(self._inbox):
            worker = self.fleet[rank]
            if worker.dead or not (worker.pen or worker.stopped):
                yield self.paces[~rank], lambda place=place: self._deliver(place)  # type: ignore[misc]
        for place in range(len(self._outbox)):
            yield self.paces[0], lambda place=place: self._tell(self._outbox.pop(place))  # type: ignore[misc]
        for place in range(len(self._to_fence)):
            yield self.paces[-1], lambda place=place: self._fence(self._to_fence.pop(place))  # type: ignore[misc]

    def _advance(self, worker: Worker) -> None:
        moved = next(worker.way, None)
        worker.idle = not moved
        if moved:
            self._wake()
            if self.random.random() < 0.05:
                self._outbox.append(Progress(worker.rank, worker.step))
            if self._doubles and self.random.random() < 0.05:
                self._tell(self.random.choice(self._doubles))

    def _deliver(self, place: int) -> None:
        rank, message = self._inbox[place]
        if self.random.random() < 0.9:
            del self._inbox[place]  # else it comes once more
        if not self.fleet[rank].dead:
            self.fleet[rank].hear(message)
            self._wake()

    def _harm(self) -> None:
        self.losses += 1
        worker = self.random.choice(self.fleet)
        if worker.dead or worker.stopped:
            return
        kind = self.random.choice(["kill", "suspect", "stop", "leave"])
        if kind == "kill":
            worker.dead = True
        elif kind == "leave":
            if worker.pen:
                return
            worker.promise = (1 << 62, 0)
            worker.stopped = True  # in user code, or burning
        elif kind == "stop":
            worker.stopped = True
            if self.random.random() < 0.5:
                return  # found out by a ballot, or by the watch below if there is none
        self._outbox.append(Lost(worker.rank, Cause("signal", kind)))
        self._wake()

    def _fence(self, rank: int) -> None:
        self.fleet[rank].dead = True
        self._wake()
        self._outbox.append(Fenced(rank))

    def _wake(self) -> None:
        for worker in self.fleet:
            worker.idle = False

    # The agent ----------------------------------------------------------------------------------------------------

    def _say(self, event: Event) -> None:
        self._outbox.append(event)
        self._doubles.append(event)

    def _tell(self, event: Event) -> None:
        if self.outcome is not None:
            return
        if isinstance(event, Exited) and event.rank in self.laws.out:
            return  # the agent tells of a condemned worker's end otherwise
        answer = self.core.handle(event, self.now)
        self.now += 0.001
        self.laws.observe(event, answer)
        for instruction in answer:
            self._obey(instruction)
        if isinstance(event, Tick) and not answer:
            for worker in self.fleet:
                if worker.stopped and worker.rank not in self.laws.out:  # the watch
                    self._tell(Lost(worker.rank, Cause("stopped", "it is stopped")))

    def _obey(self, instruction: Instruction) -> None:
        if isinstance(instruction, Reserve):
            self._outbox.append(Reserved())
        elif isinstance(instruction, Fence):
            if self.hasty:
                self._outbox.append(Fenced(instruction.rank))
            else:
                self._to_fence.append(instruction.rank)
        elif isinstance(instruction, AskPromise | InstallView | CloseRun):
            self._inbox.append((instruction.rank, instruction))
        elif isinstance(instruction, Count):
            self._outbox.append(Counted(instruction.ballot, self.arena.inventory()))
        elif isinstance(instruction, EndRun):
            self.outcome = instruction.outcome

    def _check_end(self) -> None:
        if self.core.state is not State.ENDED:
            raise Broken(f"ended as {self.outcome} in {self.core.state}")
        whole = [rank for rank in range(self.workers) if self.arena.taken[rank] == self.steps - 1]
        exited = [worker.rank for worker in self.fleet if worker.dead and worker.closed]
        if self.outcome == Outcome.COMPLETED and not set(exited) <= set(whole):
            raise Broken(f"{exited} left well, and only {whole} have taken every step")
        if self.outcome == Outcome.ALL_LOST and len(self.laws.out) < self.workers:
            raise Broken(f"only {self.laws.out} are lost")
