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
from relume.core.events import Cause, Lost
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


SCRIPT = ("joining", "load", "forward", "backward", "update", "between", "tail")
"""Phases in which the script's own code runs."""
ENGINE = ("slot", "merge", "publish", "wait", "sum", "take")
PHASES = (*SCRIPT, *ENGINE, "admission", "view")
"""`view` is the background thread's; `admission` is the wait for the first view."""

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
    Fault.LEAVE: ("load", "forward", "backward", "update", "between", "merge", "publish", "wait", "sum", "take"),
    Fault.EXIT: SCRIPT,
    Fault.FAIL: SCRIPT,
    Fault.BREAK: ("update", "between"),
    Fault.DRIFT: ("update", "between"),
}
FROM_OUTSIDE = frozenset(
    {Fault.KILL, Fault.MASSACRE, Fault.SUSPECT, Fault.STOP, Fault.MUTE, Fault.SILENCE, Fault.STUCK}
)
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

    Half of the histories begin with the pair of fault and phase whose turn it is, so that all of them come up.
    """
    count = chance.choice([0, 1, 1, 1, 2, 2, 2, 3, 4, workers + 2])
    plans = [_draw_one(chance, workers, steps) for _ in range(count)]
    if plans and chance.random() < 0.5:
        plans[0] = _plan(chance, *PAIRS[seed % len(PAIRS)], workers, steps)
    if any(plan.state in {State.BALLOT, State.COUNTING} for plan in plans):  # there has to be one
        after_a_step = any(plan.fault is Fault.DRIFT for plan in plans)
        killer = chance.choice([Fault.KILL, Fault.STUCK]) if after_a_step else Fault.KILL
        plans.append(_plan(chance, killer, "update" if after_a_step else chance.choice(PHASES), workers, steps))
    return tuple(plans)


def draw_rare(chance: random.Random, workers: int, steps: int) -> tuple[Plan, ...]:
    """Draw a meeting of two things that would nearly never meet: something that happens within a ballot or a count."""
    fault, state = chance.choice(
        [(Fault.DRIFT, State.BALLOT), (Fault.DRIFT, State.COUNTING), (Fault.EXIT, State.COUNTING)]
    )
    first = Plan(Fault.KILL, "update", None, chance.randrange(steps - 1), 0, 0.0)
    if state is State.BALLOT:
        first = Plan(Fault.STUCK, "update", None, first.step, 0, 1.0)
    then = _plan(chance, fault, None, workers, steps, state)
    then.nth = 0
    return (first, then)


def _draw_one(chance: random.Random, workers: int, steps: int) -> Plan:
    lot = chance.random()
    if lot < 0.2:  # while the coordinator is about something
        fault = chance.choice([*Fault, Fault.EXIT, Fault.EXIT, *[Fault.DRIFT] * 4])
        state = chance.choice([State.BALLOT, State.COUNTING, State.COUNTING, State.CLOSED, State.FORMING])
        return _plan(chance, fault, None, workers, steps, state)
    if lot < 0.4:  # kills are what all this is about, and a merge is rare and delicate
        return _plan(chance, chance.choice([Fault.KILL, Fault.MASSACRE]), chance.choice(PHASES), workers, steps)
    if lot < 0.5:
        return _plan(chance, chance.choice([f for f in Fault if "merge" in POSSIBLE[f]]), "merge", workers, steps)
    return _plan(chance, *chance.choice(PAIRS), workers, steps)


def _plan(  # noqa: PLR0913, PLR0917 - a plan is that much
    chance: random.Random, fault: Fault, phase: str | None, workers: int, steps: int, state: State | None = None
) -> Plan:
    step = chance.randrange(steps)
    if phase in {None, "joining", "admission"} or (phase == "view" and chance.random() < 0.5):
        step = -1
    elif phase == "tail":
        step = steps - 1
    nth = chance.choice([0, 0, 0, 1, 2, 3, chance.randrange(12)])
    lasts_s = chance.choice([0.3, 1.0, 2.0 + 1.5 * chance.random(), 6.0, 20.0])  # those in the middle are at a limit
    return Plan(fault, phase, state, step, nth, lasts_s, chance.randint(2, workers + 1))


class Faults:
    """Lets the drawn faults strike. `harmed` are the workers that were hit; `until_s` is when the last one is over."""

    def __init__(self, world: World, plans: tuple[Plan, ...]) -> None:
        self.world = world
        self.pending = list(plans)
        self.harmed: dict[int, Fault] = {}
        self.until_s = 0.0
        self._raise_all: tuple[str, int] | None = None

    def moment(self, worker: Worker, thread: Thread) -> None:
        """Called before each instruction of `worker`."""
        phase = "view" if thread.name == LINK else worker.phase
        for plan in self.pending:
            if plan.phase is not None and plan.phase != phase:
                continue
            if self._is_due(plan, worker, thread, phase):
                plan.nth -= 1
                if plan.nth < 0:
                    self.pending.remove(plan)
                    self.strike(plan, worker, thread, phase)
                    return
        if self._raise_all == (phase, worker.step) and worker.rank not in self.harmed:
            self._hit(worker, Fault.RAISE_ALL, phase)
            thread.turn(worker.raises("train.py:7"))

    def _is_due(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> bool:
        world = self.world
        if phase not in POSSIBLE[plan.fault] or worker.step < plan.step or worker.doomed:
            return False
        if plan.state is not None and world.core.state is not plan.state:
            return False
        if worker.rank in self.harmed or world.shell.seats[worker.rank].condemned:
            return False
        # Code of the script never runs under the pen, and nobody leaves while it holds the pen.
        return plan.fault in FROM_OUTSIDE or worker.pen.holder is not thread

    def _hit(self, worker: Worker, fault: Fault, phase: str, lasts_s: float = 0.0) -> None:
        self.harmed[worker.rank] = fault
        self.until_s = max(self.until_s, self.world.scheduler.now + min(lasts_s, FOR_EVER_S))
        self.world.trace.note(worker.rank, "FAULT:", fault.value, "in", phase)
        self.world.coverage.fault(fault, phase)

    def strike(self, plan: Plan, worker: Worker, thread: Thread | None, phase: str) -> None:
        """Do it. `thread` is about to do its next instruction; what comes from outside does not need it."""
        world = self.world
        self._hit(worker, plan.fault, phase, plan.lasts_s)
        if plan.fault is Fault.KILL:
            worker.kill(world.scheduler.chance() * world.settings.kill_lag_s if plan.many == 2 else 0.0)
        elif plan.fault is Fault.MASSACRE:
            self._massacre(plan, worker)
        elif plan.fault is Fault.SILENCE:
            self._silence(plan, worker)
        elif plan.fault is Fault.SUSPECT:
            cause = Cause("silent", "somebody thinks that it is gone")
            world.scheduler.after(0.0, world.shell.tell, Lost(worker.rank, cause))
        elif plan.fault in {Fault.STOP, Fault.MUTE, Fault.STUCK}:
            self._freeze(plan, worker)
        else:
            assert thread is not None
            self._by_itself(plan, worker, thread, phase)

    def _by_itself(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        """What a worker's own script does."""
        if plan.fault is Fault.DRIFT:
            worker.drifted = True
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
        others = [o for o in self.world.workers if o is not worker and o.process.alive and not o.doomed]
        others = self.world.scheduler.random.sample(others, min(plan.many - 1, len(others)))
        for other in others:
            self.harmed.setdefault(other.rank, plan.fault)
        return others

    def _break(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        ends = worker.step + 1
        if phase == "between":
            ends, worker.step = worker.step, worker.step - 1
        worker.left = True
        lingers_s = plan.lasts_s if plan.many % 2 else 0.0
        thread.turn(_one_after_the_other(_sleep(lingers_s / worker.pace), worker.leave_loop(ends)))


def _sleep(seconds: float) -> Way:
    yield seconds


def _one_after_the_other(*ways: Way) -> Way:
    for way in ways:
        yield from way
