"""What goes wrong, to whom and when: faults are drawn before a history begins, and strike at exact instructions.

A fault waits for a moment: any worker about to do its nth instruction in a phase of a step, perhaps only while the
coordinator is in some state. So every instruction of every worker is a place where it may strike, and rare places are
met as often as common ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from relume.core.coordinator import State
from relume.core.events import Cause, Scale
from relume.simulate.memory import Who
from relume.simulate.processes import Thread, Way
from relume.simulate.worker import LINK

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World


class Fault(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    MASSACRE = "several killed at once"
    SUSPECT = "wrongly suspected"
    STOP = "stopped"
    MUTE = "does not answer"
    SILENCE = "several do not answer when one dies"
    STUCK = "stuck in the kernel"
    DRIFT = "changes its state"
    HANG = "hangs in the script"
    RAISE = "raises"
    RAISE_ALL = "all raise"
    LEAVE = "leaves by plan"
    EXIT = "exits with 0"
    FAIL = "exits with an error"
    BREAK = "breaks out of the loop"
    ALL = "all killed at once"
    NOTICE = "is told to go"
    SCALE = "the run is scaled"
    LOOP = "dies again and again"
    MISFIT = "comes back as another"


SCRIPT = ("joining", "load", "forward", "backward", "update", "before", "tail", "replay")
"""Phases in which the script's own code runs."""
ENGINE = ("slot", "merge", "publish", "wait", "sum", "take", "between", "mirror", "spare")
PHASES = (*SCRIPT, *ENGINE, "forming", "view", "admission")
"""`view` and `admission` are the background thread's; `forming` is the wait for an answer to `Join`; `spare` is a
joiner's wait when it is level."""
COMING = frozenset({"replay", "spare", "admission"})
"""Phases of those who come, and of those who let them in."""

POSSIBLE: dict[Fault, tuple[str, ...]] = {
    Fault.KILL: PHASES,
    Fault.MASSACRE: PHASES,
    Fault.SUSPECT: PHASES,
    Fault.STOP: PHASES,
    Fault.MUTE: PHASES,
    Fault.SILENCE: PHASES,
    Fault.STUCK: PHASES,
    Fault.HANG: SCRIPT,
    Fault.RAISE: SCRIPT,
    Fault.RAISE_ALL: SCRIPT,
    Fault.LEAVE: ("load", "forward", "backward", "update", "before", "merge", "publish", "wait", "sum", "take"),
    Fault.EXIT: SCRIPT,
    Fault.FAIL: SCRIPT,
    Fault.BREAK: ("update", "before"),
    Fault.DRIFT: ("update", "before"),
    Fault.ALL: PHASES,
    Fault.NOTICE: PHASES,
    Fault.SCALE: PHASES,
    Fault.LOOP: ("backward", "wait", "replay"),
    Fault.MISFIT: ("backward", "wait", "replay"),
}
FROM_OUTSIDE = frozenset(
    {
        Fault.KILL,
        Fault.MASSACRE,
        Fault.SUSPECT,
        Fault.STOP,
        Fault.MUTE,
        Fault.SILENCE,
        Fault.STUCK,
        Fault.ALL,
        Fault.NOTICE,
        Fault.SCALE,
        Fault.LOOP,
        Fault.MISFIT,
    }
)
HARMLESS = frozenset({Fault.NOTICE, Fault.SCALE})
"""A worker that is told to go, or by chance is where the run is scaled, may have other things happen to it, too."""
PAIRS = [(fault, phase) for fault, phases in POSSIBLE.items() for phase in phases]


FOR_EVER_S = 20.0
"""What lasts longer is found before, or it should be."""


@dataclass(slots=True)
class Plan:
    """One fault to come. `phase` None: any in which it is possible. `state` None: whatever the coordinator does."""

    fault: Fault
    phase: str | None
    state: State | None
    step: int
    nth: int
    lasts_s: float
    many: int = 2


def draw(chance: random.Random, workers: int, steps: int, seed: int) -> tuple[Plan, ...]:
    """Draw the faults of one history: often one or two, sometimes more than there are workers.

    Most of the histories begin with the pair of fault and phase whose turn it is, so that all of them come up.
    """
    count = chance.choice([0, 1, 1, 1, 2, 2, 2, 3, 4, workers + 2])
    plans = [_draw_one(chance, workers, steps) for _ in range(count)]
    if plans and chance.random() < 0.6:
        plans[0] = _plan(chance, *PAIRS[seed % len(PAIRS)], workers, steps)
    if any(plan.state in {State.BALLOT, State.COUNTING} for plan in plans):  # there has to be one
        after_a_step = any(plan.fault is Fault.DRIFT for plan in plans)
        killer = chance.choice([Fault.KILL, Fault.STUCK]) if after_a_step else Fault.KILL
        plans.append(_plan(chance, killer, "update" if after_a_step else chance.choice(PHASES), workers, steps))
    if any(plan.state is State.PAUSED for plan in plans):
        plans.append(_plan(chance, Fault.ALL, chance.choice(PHASES), workers, steps))
    if any(plan.phase in COMING for plan in plans):  # somebody has to come
        phase = chance.choice(["load", "wait", "sum", "before"])
        plans.append(Plan(Fault.KILL, phase, None, chance.randrange(2), 0, 0.0))
    return tuple(plans)


def draw_rare(chance: random.Random, steps: int) -> tuple[Plan, ...]:
    """Draw what would nearly never meet: something that happens within the ballot, count or pause after a death."""
    step = chance.randrange(min(4, steps - 2))
    state = chance.choice([State.BALLOT, State.COUNTING, State.PAUSED])
    death = Plan(Fault.STUCK if state is State.BALLOT else Fault.KILL, "update", None, step, 0, 1.0, 3)
    fault = chance.choice([Fault.DRIFT, Fault.NOTICE, Fault.SCALE, Fault.EXIT, None])
    if fault is None:  # the others come to the end of the loop
        death.phase, death.step, death.nth = chance.choice(["update", "wait"]), steps - 1, chance.choice([0, 2, 4, 6])
        return (death,)
    if fault is Fault.DRIFT:  # it shows at the next step's begin, and that is where somebody dies
        death.phase, death.step = chance.choice(["load", "forward"]), step + 1
        return (Plan(fault, "update", None, step, 0, 0.0), death)
    phase = chance.choice(["wait", "between", "forming", "spare"]) if fault is Fault.NOTICE else None
    return (death, Plan(fault, phase, state, -1, 0, 0.0, chance.randint(2, 5)))


def _draw_one(chance: random.Random, workers: int, steps: int) -> Plan:
    lot = chance.random()
    if lot < 0.2:  # while the coordinator is about something
        fault = chance.choice([*Fault, Fault.EXIT, Fault.EXIT, *[Fault.DRIFT] * 4, *[Fault.NOTICE, Fault.SCALE] * 2])
        states = [State.BALLOT, State.COUNTING, State.COUNTING, State.PAUSED, State.PAUSED, State.CLOSED, State.FORMING]
        return _plan(chance, fault, None, workers, steps, chance.choice(states))
    if lot < 0.4:  # kills are what all this is about, and a merge is rare and delicate
        fault = chance.choice([Fault.KILL, Fault.KILL, Fault.MASSACRE, Fault.ALL])
        return _plan(chance, fault, chance.choice(PHASES), workers, steps)
    if lot < 0.5:
        return _plan(chance, chance.choice([f for f in Fault if "merge" in POSSIBLE[f]]), "merge", workers, steps)
    if lot < 0.58:  # when somebody is about to be let in, or is on the way
        phase = chance.choice(["admission", "admission", "mirror", "replay"])
        return _plan(chance, chance.choice([Fault.KILL, Fault.MASSACRE]), phase, workers, steps)
    if lot < 0.66:
        fault = chance.choice([Fault.NOTICE, Fault.SCALE])
        return _plan(chance, fault, chance.choice(PHASES), workers, steps)
    return _plan(chance, *chance.choice(PAIRS), workers, steps)


def _plan(  # noqa: PLR0913, PLR0917 - a plan is that much
    chance: random.Random, fault: Fault, phase: str | None, workers: int, steps: int, state: State | None = None
) -> Plan:
    step = chance.randrange(steps) if chance.random() < 0.5 else chance.randrange(min(steps, 4))
    if phase in {None, "joining", "forming"} or (phase in {"view", "admission"} and chance.random() < 0.5):
        step = -1
    elif phase == "tail":
        step = steps - 1
    elif phase in COMING:
        step = min(step, chance.randrange(steps))
    nth = chance.choice([0, 0, 0, 1, 2, 3, chance.randrange(12)])
    lasts_s = chance.choice([0.3, 1.0, 2.0 + 1.5 * chance.random(), 6.0, 20.0])  # those in the middle are at a limit
    return Plan(fault, phase, state, step, nth, lasts_s, chance.randint(2, workers + 1))


class Faults:
    """Lets the drawn faults strike. `harmed` are the workers that were hit; `until_s` is when the last one is over."""

    def __init__(self, world: World, plans: tuple[Plan, ...]) -> None:
        self.world = world
        self.pending = list(plans)
        self.harmed: dict[Who, Fault] = {}
        self.told_to_go: set[Who] = set()
        self.until_s = 0.0
        self.scaled = False
        self._raise_all: tuple[str, int] | None = None
        self._looping: dict[int, int] = {}
        self._misfits: dict[int, int] = {}

    def moment(self, worker: Worker, thread: Thread) -> None:
        """Called before each instruction of `worker`."""
        phase = worker.hears if thread.name == LINK else worker.phase
        for plan in self.pending:
            if plan.phase is not None and plan.phase != phase:
                continue
            if self._is_due(plan, worker, thread, phase):
                plan.nth -= 1
                if plan.nth < 0:
                    self.pending.remove(plan)
                    self.strike(plan, worker, thread, phase)
                    return
        if self._raise_all == (phase, worker.step) and worker.who not in self.harmed:
            if worker.pen.holder is not thread:
                self._hit(worker, Fault.RAISE_ALL, phase)
                thread.turn(worker.raises("train.py:7"))
        elif phase == "joining" and self._looping.get(worker.rank, 0) and worker.who not in self.harmed:
            self._looping[worker.rank] -= 1
            self._hit(worker, Fault.LOOP, phase)
            worker.kill()

    def born(self, worker: Worker) -> None:
        """A process is about to start."""
        if self._misfits.get(worker.rank, 0) and worker.life:
            self._misfits[worker.rank] -= 1
            worker.odd = True
            self._hit(worker, Fault.MISFIT, "joining", 0.0)

    def _is_due(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> bool:
        world = self.world
        if phase not in POSSIBLE[plan.fault] or worker.step < plan.step or worker.doomed:
            return False
        if plan.state is not None and world.core.state is not plan.state:
            return False
        if worker.who in self.harmed or world.shell.seats[worker].condemned:
            return False
        # Code of the script never runs under the pen, and nobody leaves while it holds the pen.
        return plan.fault in FROM_OUTSIDE or worker.pen.holder is not thread

    def _hit(self, worker: Worker, fault: Fault, phase: str, lasts_s: float = 0.0) -> None:
        if fault not in HARMLESS:
            self.harmed[worker.who] = fault
        self.until_s = max(self.until_s, self.world.scheduler.now + min(lasts_s, FOR_EVER_S))
        self.world.trace.note(worker.rank, "FAULT:", fault.value, "in", phase)
        self.world.coverage.fault(fault, phase)

    def strike(self, plan: Plan, worker: Worker, thread: Thread | None, phase: str) -> None:
        """Do it. `thread` is about to do its next instruction; what comes from outside does not need it."""
        self._hit(worker, plan.fault, phase, plan.lasts_s)
        if plan.fault in FROM_OUTSIDE:
            self._from_outside(plan, worker)
        else:
            assert thread is not None
            self._by_itself(plan, worker, thread, phase)

    def _from_outside(self, plan: Plan, worker: Worker) -> None:
        """What others do to a worker."""
        world = self.world
        if plan.fault is Fault.KILL:
            worker.kill(world.scheduler.chance() * world.settings.kill_lag_s if plan.many == 2 else 0.0)
        elif plan.fault in {Fault.MASSACRE, Fault.ALL}:
            self._massacre(plan, worker)
        elif plan.fault is Fault.SILENCE:
            self._silence(plan, worker)
        elif plan.fault is Fault.SUSPECT:
            world.scheduler.after(0.0, world.shell.lose, worker, Cause("silent", "somebody thinks that it is gone"))
        elif plan.fault is Fault.NOTICE:
            self.told_to_go.add(worker.who)
            if worker.phase == "joining":
                self.harmed[worker.who] = Fault.KILL
            worker.noticed()
        elif plan.fault is Fault.SCALE:
            self._scale(plan)
        elif plan.fault is Fault.LOOP:
            self._looping[worker.rank] = plan.many
            worker.kill()
        elif plan.fault is Fault.MISFIT:
            self._misfits[worker.rank] = plan.many - 1
            worker.kill()
        else:
            self._freeze(plan, worker)

    def _scale(self, plan: Plan) -> None:
        """Somebody asks for another number of workers, which the agent grants or refuses."""
        world = self.world
        workers = max(world.core.min_workers, (plan.many * 7 + int(plan.lasts_s * 10)) % (world.core.seats + 1), 1)
        refused = world.core.state in {State.FORMING, State.CLOSED, State.ENDED}
        too_many = workers > world.core.seats - world.core.spares
        too_many = too_many or (workers > world.core.workers and not world.settings.every)
        if not refused and not too_many:
            self.scaled = True
            world.scheduler.after(0.0, world.shell.tell, Scale(workers))

    def _by_itself(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        """What a worker's own script does."""
        if plan.fault is Fault.DRIFT:
            worker.drifts()
        elif plan.fault is Fault.HANG:
            thread.detour(_sleep(plan.lasts_s / worker.pace))
        elif plan.fault in {Fault.EXIT, Fault.FAIL}:
            worker.exit(0 if plan.fault is Fault.EXIT else 3)
        elif plan.fault is Fault.BREAK:
            self._break(plan, worker, thread, phase)
        elif plan.fault is Fault.LEAVE and plan.many % 2:
            thread.turn(_one_after_the_other(worker.hands_over(), worker.burns()))
        elif plan.fault is Fault.LEAVE:
            thread.detour(worker.hands_over())  # a zombie: it goes on until it is fenced by force
        else:
            if plan.fault is Fault.RAISE_ALL:
                self._raise_all = (phase, worker.step)
            thread.turn(worker.raises("train.py:7" if plan.fault is Fault.RAISE_ALL else f"train.py:{worker.rank}"))

    def _freeze(self, plan: Plan, worker: Worker) -> None:
        worker.process.freeze()
        worker.shows_stop = plan.fault is Fault.STOP
        self.world.scheduler.after(plan.lasts_s, worker.process.thaw)
        if plan.fault is Fault.STUCK:
            worker.stuck_s = plan.lasts_s
            self.world.scheduler.after(0.0, self.world.shell.kill, worker)

    def _massacre(self, plan: Plan, worker: Worker) -> None:
        for other in self._others(plan, worker):
            other.kill()
        worker.kill()

    def _silence(self, plan: Plan, worker: Worker) -> None:
        for other in self._others(plan, worker):
            other.process.freeze()
            self.world.scheduler.after(plan.lasts_s, other.process.thaw)
        worker.kill()

    def _others(self, plan: Plan, worker: Worker) -> list[Worker]:
        others = [o for o in self.world.newest if o is not worker and o.process.alive and not o.doomed]
        if plan.fault is not Fault.ALL:
            others = self.world.scheduler.random.sample(others, min(plan.many - 1, len(others)))
        for other in others:
            self.harmed.setdefault(other.who, plan.fault)
        return others

    def _break(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        ends = worker.step + 1
        if phase == "before":
            ends, worker.step = worker.step, worker.step - 1
        worker.left = True
        lingers_s = plan.lasts_s if plan.many % 2 else 0.0
        thread.turn(_one_after_the_other(_sleep(lingers_s / worker.pace), worker.breaks(ends)))


def _sleep(seconds: float) -> Way:
    yield seconds


def _one_after_the_other(*ways: Way) -> Way:
    for way in ways:
        yield from way
