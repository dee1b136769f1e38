"""A small world in which the real coordinator and planner meet random events at random instants.

The workers are models: generators that follow the rules of the step (DESIGN.md) and stop at every point at which
something else may happen in between, a kill included. What they sum are not numbers but expressions, so that a sum
in the wrong order, of the wrong step or of something half written can be told from the right one. Messages are
delayed, doubled and out of order. Workers die, are replaced, replay what the arena keeps, are admitted and told to go;
the fleet is scaled. `Laws` watches the coordinator; the world watches the results.

It is no simulator: no clock but ticks, no files, one host, and it proves nothing. It is quick, and finds much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from relume.arena.layout import SLOTS_EAGER, slots_max
from relume.core import ranges
from relume.core.coordinator import Coordinator, State
from relume.core.events import (
    Accepted,
    AskPromise,
    Cause,
    CloseRun,
    Count,
    Counted,
    Dismiss,
    Done,
    EndRun,
    Event,
    Exited,
    Fence,
    Fenced,
    InstallView,
    Instruction,
    Joined,
    Leaving,
    Level,
    Lost,
    Pledged,
    Progress,
    ProposeView,
    Refused,
    Reserve,
    Reserved,
    Scale,
    StartReplay,
    StartWorker,
    Tick,
    WithdrawView,
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
ACTIONS_MAX = 100_000
IDLE_TICKS_MAX = 200
"""Of ten seconds each: longer than any limit of the core."""
EVERY = 2
KEPT = EVERY + 2

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
    """What outlives every worker. `mirror` is the step of the newest mirror; what it holds is what all hold then."""

    seats: int
    shards: int
    blocks: int
    mirror: int = 0

    def __post_init__(self) -> None:
        self.slots = [[Place() for _ in range(slots_max(self.shards))] for _ in range(self.seats)]
        self.results = [[Place() for _ in range(self.blocks)] for _ in range(KEPT)]
        self.taken = [-1] * self.seats

    def complete(self, step: int) -> bool:
        """Return whether every block of `step` is sealed."""
        return all(block.seal == step for block in self.results[step % KEPT])

    def newest(self) -> int:
        """Return the newest step that is complete, -1 if there is none."""
        steps = {block.seal for blocks in self.results for block in blocks if isinstance(block.seal, int)}
        return max((step for step in steps if self.complete(step)), default=-1)

    def sealed(self, step: int) -> Iterator[tuple[int, Range, Place]]:
        """Yield every sealed node of `step`."""
        for rank, slots in enumerate(self.slots):
            for slot in slots:
                if isinstance(slot.seal, tuple) and slot.seal[0] == step:
                    yield rank, slot.seal[1], slot

    def inventory(self) -> Inventory:
        """Read the seals, as the agent does."""
        complete = self.newest()
        sealed: dict[int, list[Range]] = {}
        for rank, node, _ in self.sealed(complete + 1):
            sealed.setdefault(rank, []).append(node)
        return Inventory(complete, sealed, dict(enumerate(self.taken)))


@dataclass(eq=False)
class Standing:
    """What a worker has promised and heard: `train.standing` without threads."""

    rank: int
    hurried: bool = False
    """Break rule 10: begin a step whatever is proposed for it."""
    view: View | None = None
    promise: Ballot = (0, 0)
    withdrawn: Ballot = (0, 0)
    accepted: dict[Ballot, View] = field(default_factory=dict)
    planned: dict[Ballot, View] = field(default_factory=dict)
    begun: int = -1
    replay: int | None = None
    closed: bool = False

    @property
    def promised(self) -> bool:
        """Whether a ballot is promised whose view is not there yet."""
        return self.view is None or self.view.number < self.promise

    def hear(self, message: Instruction) -> tuple[Ballot, int | None] | None:
        """Do what the background thread does; answer a proposal: its number, and the step begun if it is refused."""
        if isinstance(message, AskPromise):
            self.promise = max(self.promise, message.ballot)
            self.accepted = {number: view for number, view in self.accepted.items() if number > message.ballot}
        elif isinstance(message, InstallView):
            self._install(message.view)
        elif isinstance(message, ProposeView):
            return self._propose(message.view)
        elif isinstance(message, WithdrawView):
            self.withdrawn = max(self.withdrawn, message.number)
            self.accepted = {number: view for number, view in self.accepted.items() if number > message.number}
        elif isinstance(message, StartReplay):
            self.replay = message.end if self.replay is None else max(self.replay, message.end)
        elif isinstance(message, CloseRun):
            self.closed = True
        return None

    def _propose(self, view: View) -> tuple[Ballot, int | None] | None:
        newest = max([(0, 0) if self.view is None else self.view.number, *self.planned])
        if view.number not in self.accepted:
            if view.number <= max(self.promise, self.withdrawn, newest):
                return None
            if self.begun >= view.step:
                return view.number, self.begun
            self.accepted[view.number] = view
        return view.number, None

    def _install(self, view: View) -> None:
        if view.number < self.promise or (self.view is not None and view.number <= self.view.number):
            return
        if view.number in self.planned:
            return
        if self.accepted.pop(view.number, None) is not None:
            self.planned[view.number] = view
        else:
            self.view = view
            self.planned = {number: other for number, other in self.planned.items() if number > view.number}

    def may_begin(self, step: int) -> bool:
        """Whether `step` can be begun now; if so, and something was planned for it, that is in force."""
        if not self.hurried and any(view.step <= step for view in self.accepted.values()):
            return False
        due = [number for number, view in self.planned.items() if view.step <= step]
        if due:
            self.view = self.planned[max(due)]
            self.planned = {number: view for number, view in self.planned.items() if number > max(due)}
        return not self.promised

    def admitted(self, step: int) -> bool:
        """Whether one that replays is in force from `step`."""
        if not self.may_begin(step):
            return False
        return self.view is not None and self.view.step <= step and self.rank in self.view.members


@dataclass(eq=False)
class Worker:
    """One life of a worker: its way through the steps, and what its background thread does about messages."""

    rank: int
    life: int
    arena: Arena
    steps: int
    say: Callable[[Event], None]
    broken: str = ""
    """The rule that it breaks. careless: write whatever is promised (3). blind: trust a result unread (Invariant 8)."""
    pen: bool = False
    dead: bool = False
    stopped: bool = False
    stopped_for_s: float = 0.0
    idle: bool = False
    step: int = -1
    doing: str = ""

    def __post_init__(self) -> None:
        self.way = self._life()
        self.standing = Standing(self.rank, hurried=self.broken == "hurried")

    @property
    def view(self) -> View | None:
        """The view in force."""
        return self.standing.view

    @property
    def promised(self) -> bool:
        """Whether a ballot is promised whose view is not there yet."""
        return self.broken != "careless" and self.standing.promised

    def hear(self, message: Instruction) -> None:
        """Do what the background thread does; not while the main thread holds the pen."""
        answer = self.standing.hear(message)
        if isinstance(message, AskPromise):
            self.say(Pledged(self.rank, message.ballot, self.life))
        elif answer is not None:
            number, begun = answer
            if begun is None:
                self.say(Accepted(self.rank, number, self.life))
            else:
                self.say(Refused(self.rank, number, begun, self.life))

    # The main thread --------------------------------------------------------------------------------------------

    def _life(self) -> Steps:  # noqa: C901 - its whole way, told in order
        standing = self.standing
        yield True
        self.say(Joined(self.rank, ("same",), Shape(64, 0, 1, self.arena.shards), self.steps, self.life))
        while standing.promised and standing.replay is None:
            yield False
        replaying = standing.replay is not None or (self.view is not None and self.view.step > 0)
        step = self._load() if replaying else 0
        while True:
            self.step = step
            if replaying:
                step, what = yield from self._arrive(step)
                if what == "gone":
                    break
                if what == "replayed":
                    step += 1
                    continue
                if what == "ended":
                    step = self.steps
                replaying = what == "ended"
            while not replaying and not standing.may_begin(step):
                yield False
            standing.begun = step
            assert self.view is not None or replaying
            if not replaying and self.view is not None and self.rank not in self.view.members:
                break
            if not replaying and (step >= self.steps or step % EVERY == 0):
                yield from self._write(lambda step=step: setattr(self.arena, "mirror", max(self.arena.mirror, step)))
            if step >= self.steps:
                yield from self._end()
                break
            yield True
            yield from self._compute(step)
            if not (yield from self._take(step)):
                break
            step += 1
        yield True
        self.dead = True
        self.say(Exited(self.rank, self.life, self.arena.taken[self.rank]))

    def _end(self) -> Steps:
        self.say(Done(self.rank, self.steps, "", self.life))
        while not self.standing.closed:
            yield False

    # Coming back ------------------------------------------------------------------------------------------------

    def _load(self) -> int:
        self.arena.taken[self.rank] = self.arena.mirror - 1
        return self.arena.mirror

    def _arrive(self, step: int) -> Generator[bool, None, tuple[int, str]]:
        """`train.replay`: stand before `step` and find out how to go on."""
        arena, standing, said = self.arena, self.standing, False
        while True:
            self.step = step
            if standing.admitted(step):
                return step, "live"
            if standing.replay is not None and 0 <= standing.replay <= step:
                return step, "ended"
            if standing.closed:
                return step, "gone"
            newest = arena.newest()
            if step < self.steps and arena.complete(step) and (yield from self._replay(step)):
                return step, "replayed"
            if newest < step:
                if not said:
                    self.say(Level(self.rank, step, self.life))
                said = True
            elif arena.mirror > step:
                step, said = self._load(), False
                yield True
                continue
            yield False

    def _replay(self, step: int) -> Generator[bool, None, bool]:
        self.doing = "replay"
        blocks = self.arena.results[step % KEPT]
        seen = []
        for block in blocks:
            yield True
            seen.append(block.content)
        if self.broken != "blind" and not self.arena.complete(step):
            return False  # it was written over meanwhile
        expected = tree(step, 0, self.arena.shards)
        if seen != [(expected, expected)] * len(blocks):
            raise Broken(f"worker {self.rank}.{self.life} replays {seen} as step {step}")
        self.arena.taken[self.rank] = step
        return True

    # A step -----------------------------------------------------------------------------------------------------

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
        done = ranges.leaves(node for rank, node, _ in self.arena.sealed(step) if rank == self.rank)
        while not self.arena.complete(step):
            if self.arena.newest() > step:
                return  # overtaken: `_take` finds out whether that may be
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
        arena, blocks = self.arena, self.arena.results[step % KEPT]
        mine = [b for b in blocks if owner(view, blocks.index(b), len(blocks)) == self.rank and b.seal != step]
        late = any(arena.taken[member] < step - 1 for member in view.members)  # rule 6
        sources = {node: slot for _, node, slot in arena.sealed(step)}
        nodes = ranges.cover(sources, arena.shards)
        if not mine or late or nodes is None:
            yield False
            return
        for block in mine:
            self.doing = "sum"
            block.seal = None  # whoever replays what stood here can tell
            parts = []
            for _ in range(2):  # two pieces
                yield True
                if self.promised or (self.view is not view and self.broken != "careless"):
                    return
                parts.append(fold({node: sources[node].content for node in nodes}, arena.shards, lambda a, b: (a, b)))
                block.content = (*parts, HALF_WRITTEN)
            yield True
            if self.promised or (self.view is not view and self.broken != "careless"):
                return
            block.content, block.seal = tuple(parts), step

    def _take(self, step: int) -> Generator[bool, None, bool]:
        """Take `step`; False if it is gone: nobody waits for one that leaves with the next step (rule 6)."""
        yield from self._write(lambda: None)
        self.doing = "take"
        expected = tree(step, 0, self.arena.shards)
        blocks = self.arena.results[step % KEPT]
        seen = []
        for block in blocks:
            yield True
            seen.append(block.content)
        if not self.arena.complete(step) and not self._stays(step + 1):
            return False
        if seen != [(expected, expected)] * len(blocks):
            raise Broken(f"worker {self.rank} takes {seen} in step {step}, which should be {expected}")
        self.arena.taken[self.rank] = step
        return True

    def _stays(self, step: int) -> bool:
        """Whether no view without this one is known to be in force, or to begin by `step`."""
        views = [view for view in self.standing.planned.values() if view.step <= step]
        return all(self.rank in view.members for view in (self.view, *views) if view is not None)


@dataclass
class World:
    """One run under one seed. `faults` is how many times something is tried: a loss, a notice, another size."""

    seed: int
    workers: int
    shards: int
    blocks: int
    steps: int
    faults: int
    spares: int = 0
    restarts: int = 0
    minimum: int = 1
    broken: str = ""
    """The rule that is broken: one of a worker's, or `hasty` (4): say that a worker is fenced before it is."""
    now: float = 1.0
    _inbox: list[tuple[Worker, Instruction]] = field(default_factory=list)
    _outbox: list[Event] = field(default_factory=list)
    _doubles: list[Event] = field(default_factory=list)
    _to_fence: list[Worker] = field(default_factory=list)
    _to_start: list[StartWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        seats = self.workers + self.spares + self.random.randint(0, 2)
        settings = {"min_workers": self.minimum, "seats": seats, "spares": self.spares, "max_restarts": self.restarts}
        self.core = Coordinator(self.workers, 1, Limits.derive(300.0), **settings)
        self.laws = Laws(self.workers, **settings)
        self.arena = Arena(seats, self.shards, self.blocks)
        self.fleet = {rank: self._worker(rank, 0) for rank in range(self.workers + self.spares)}
        self.outcome: str | None = None
        self.harms = 0
        self.danger = self.random.choice([0.01, 0.03, 0.2])
        self.ambush = self.random.choice(["", "", "leaf", "merge", "sum", "take", "replay"])
        self.paces = self.random.choices([0.02, 0.3, 1.0], k=2 * seats)

    def _worker(self, rank: int, life: int) -> Worker:
        return Worker(rank, life, self.arena, self.steps, self._say, self.broken)

    def run(self) -> str:
        """Live until the end and return the outcome. Raises `Broken`."""
        ticks = 0
        for _ in range(ACTIONS_MAX):
            if self.outcome is not None:
                self._check_end()
                return self.outcome
            actions = list(self._possible())
            if actions:
                ticks = 0
                weights, deeds = zip(*actions, strict=True)
                self.random.choices(deeds, weights)[0]()
            else:
                ticks += 1
                if ticks > IDLE_TICKS_MAX:
                    raise Broken(f"nothing moves any more: {self.core}")
                self._tick(10.0 if ticks > 1 else 0.6)
        raise Broken(f"no end after {ACTIONS_MAX} actions")

    # What may happen next -----------------------------------------------------------------------------------------

    def _possible(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what may happen next, with its weight: every worker and every link has a pace of its own."""
        ambushed = not self.ambush or any(worker.doing == self.ambush for worker in self.fleet.values())
        if self.harms < self.faults and ambushed and self.random.random() < self.danger:
            yield 1.0, self._harm
            return
        for worker in self.fleet.values():
            if not (worker.dead or worker.stopped or worker.idle):
                yield self.paces[worker.rank], lambda worker=worker: self._advance(worker)  # type: ignore[misc]
        for place, (worker, _) in enumerate(self._inbox):
            if worker.dead or not (worker.pen or worker.stopped):
                yield self.paces[~worker.rank], lambda place=place: self._deliver(place)  # type: ignore[misc]
        for place in range(len(self._outbox)):
            yield self.paces[0], lambda place=place: self._tell(self._outbox.pop(place))  # type: ignore[misc]
        for place in range(len(self._to_fence)):
            yield self.paces[-1], lambda place=place: self._fence(self._to_fence.pop(place))  # type: ignore[misc]
        for place, start in enumerate(self._to_start):
            if start.rank not in self.fleet or self.fleet[start.rank].dead:
                yield 0.1, lambda place=place: self._start(self._to_start.pop(place))  # type: ignore[misc]

    def _advance(self, worker: Worker) -> None:
        moved = next(worker.way, None)
        worker.idle = not moved
        if moved:
            self._wake()
            if self.random.random() < 0.05:
                self._outbox.append(Progress(worker.rank, worker.step, worker.life))
            if self._doubles and self.random.random() < 0.05:
                self._tell(self.random.choice(self._doubles))
            if self.random.random() < 0.01:
                self._tick(self.random.choice([0.2, 1.0]))

    def _deliver(self, place: int) -> None:
        worker, message = self._inbox[place]
        if self.random.random() < 0.9:
            del self._inbox[place]  # else it comes once more
        if not worker.dead:
            worker.hear(message)
            self._wake()

    def _harm(self) -> None:
        self.harms += 1
        kind = self.random.choice(["kill", "kill", "suspect", "stop", "leave", "notice", "notice", "scale", "all"])
        if kind == "scale":
            self._outbox.append(Scale(self.random.randint(self.minimum, self.arena.seats - self.spares)))
        for worker in list(self.fleet.values()) if kind == "all" else [self.random.choice(list(self.fleet.values()))]:
            if not (worker.dead or worker.stopped):
                self._harm_one(worker, kind)

    def _harm_one(self, worker: Worker, kind: str) -> None:
        if kind == "notice":
            self._say(Leaving(worker.rank, "SIGTERM", worker.life))
        elif kind in {"kill", "all", "suspect"}:
            worker.dead = worker.dead or kind != "suspect"
            self._outbox.append(Lost(worker.rank, Cause("signal", kind), worker.life))
        elif kind == "leave" and not worker.pen:
            worker.standing.promise = (1 << 62, 0)
            worker.stopped = True  # in user code, or burning
            self._outbox.append(Lost(worker.rank, Cause("planned", kind), worker.life))
        elif kind == "stop":
            worker.stopped = True
            if self.random.random() < 0.5:  # else it is found out by a ballot, or by the watch below
                self._outbox.append(Lost(worker.rank, Cause("stopped", kind), worker.life))
        self._wake()

    def _fence(self, worker: Worker) -> None:
        worker.dead = True
        self._wake()
        self._outbox.append(Fenced(worker.rank, worker.life))

    def _start(self, start: StartWorker) -> None:
        self.arena.taken[start.rank] = -1
        self.fleet[start.rank] = self._worker(start.rank, start.life)

    def _wake(self) -> None:
        for worker in self.fleet.values():
            worker.idle = False

    # The agent ----------------------------------------------------------------------------------------------------

    def _say(self, event: Event) -> None:
        self._outbox.append(event)
        self._doubles.append(event)

    def _tick(self, seconds: float) -> None:
        self.now += seconds
        self._tell(Tick())
        for worker in list(self.fleet.values()):  # the watch
            worker.stopped_for_s = worker.stopped_for_s + seconds if worker.stopped else 0.0
            if worker.stopped_for_s > 5.0 and self.laws.alive((worker.rank, worker.life)):
                self._tell(Lost(worker.rank, Cause("stopped", "it is stopped"), worker.life))

    def _tell(self, event: Event) -> None:
        if self.outcome is not None:
            return
        if isinstance(event, Exited) and (event.rank, event.life) in self.laws.out:
            return  # the agent tells of a condemned worker's end otherwise
        answer = self.core.handle(event, self.now)
        self.now += 0.001
        self.laws.observe(event, answer)
        for instruction in answer:
            self._obey(instruction)

    def _obey(self, instruction: Instruction) -> None:  # noqa: C901 - one flat case per instruction
        match instruction:
            case Reserve():
                self._outbox.append(Reserved())
            case Fence(rank) if self.broken == "hasty":
                self._outbox.append(Fenced(rank, self.fleet[rank].life))
            case Fence(rank):
                if any(start.rank == rank for start in self._to_start):
                    self._outbox.append(Fenced(rank, self.core.life(rank)))
                    self._to_start = [start for start in self._to_start if start.rank != rank]
                else:
                    self._to_fence.append(self.fleet[rank])
            case StartWorker():
                self._to_start.append(instruction)
            case Dismiss(rank):
                if any(start.rank == rank for start in self._to_start):
                    self._to_start = [start for start in self._to_start if start.rank != rank]
                else:
                    self.fleet[rank].dead = True
            case Count(ballot):
                self._outbox.append(Counted(ballot, self.arena.inventory()))
            case AskPromise() | InstallView() | CloseRun() | ProposeView() | WithdrawView() | StartReplay():
                self._inbox.append((self.fleet[instruction.rank], instruction))
            case EndRun(outcome):
                self.outcome = outcome

    def _check_end(self) -> None:
        if self.core.state is not State.ENDED:
            raise Broken(f"ended as {self.outcome} in {self.core.state}")
        whole = [rank for rank, taken in enumerate(self.arena.taken) if taken == self.steps - 1]
        exited = [worker.rank for worker in self.fleet.values() if worker.dead and worker.standing.closed]
        if self.outcome == Outcome.COMPLETED and not set(exited) <= set(whole):
            raise Broken(f"{exited} left well, and only {whole} have taken every step")
        if self.outcome == Outcome.ALL_LOST and any(self.laws.alive(who) for who in self.laws.level):
            raise Broken(f"only {self.laws.out} are lost")
