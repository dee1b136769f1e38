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
    Fault.HANG: SCRIPT,
    Fault.RAISE: SCRIPT,
    Fault.RAISE_ALL: SCRIPT,
    Fault.LEAVE: ("load", "forward", "backward", "update", "between", *ENGINE),
    Fault.EXIT: SCRIPT,
    Fault.FAIL: SCRIPT,
    Fault.BREAK: ("update", "between"),
}
PAIRS = [(fault, phase) for fault, phases in POSSIBLE.items() for phase in phases]


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


def draw(chance: random.Random, workers: int, steps: int) -> tuple[Plan, ...]:
    """Draw the faults of one history: often one or two, sometimes more than there are workers."""
    count = chance.choice([0, 1, 1, 1, 2, 2, 2, 3, 4, workers + 2])
    return tuple(_draw_one(chance, workers, steps) for _ in range(count))


def _draw_one(chance: random.Random, workers: int, steps: int) -> Plan:
    fault, phase = chance.choice(PAIRS)
    state = None
    if chance.random() < 0.25:
        state = chance.choice([State.BALLOT, State.COUNTING, State.COUNTING, State.CLOSED, State.FORMING])
        phase = None
    step = {"joining": -1, "admission": -1, "tail": steps - 1, None: -1}.get(phase)
    if step is None:
        step = chance.randrange(steps)
    if phase == "view":
        step = chance.choice([-1, step])
    nth = chance.choice([0, 0, 1, 2, 3, chance.randrange(12)])
    return Plan(fault, phase, state, step, nth, chance.choice([0.3, 1.0, 2.5, 6.0, 20.0]), chance.randint(2, workers + 1))


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
        by_hand = plan.fault not in {Fault.KILL, Fault.MASSACRE, Fault.SUSPECT, Fault.STOP, Fault.MUTE}
        return not by_hand or worker.pen.holder is not thread

    def _hit(self, worker: Worker, fault: Fault, phase: str, lasts_s: float = 0.0) -> None:
        self.harmed[worker.rank] = fault
        self.until_s = max(self.until_s, self.world.scheduler.now + lasts_s)
        self.world.trace.note(worker.rank, "FAULT:", fault.value, "in", phase)
        self.world.coverage.fault(fault, phase)

    def strike(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        """Do it."""
        world, fault = self.world, plan.fault
        self._hit(worker, fault, phase, plan.lasts_s)
        if fault is Fault.KILL:
            worker.kill(world.scheduler.chance() * world.settings.kill_lag_s if plan.many == 2 else 0.0)
        elif fault is Fault.MASSACRE:
            self._massacre(plan, worker)
        elif fault is Fault.SUSPECT:
            cause = Cause("silent", "somebody thinks that it is gone")
            world.scheduler.after(0.0, world.shell.tell, Lost(worker.rank, cause))
        elif fault in {Fault.STOP, Fault.MUTE}:
            worker.process.freeze()
            worker.shows_stop = fault is Fault.STOP
            world.scheduler.after(plan.lasts_s, worker.process.thaw)
        elif fault is Fault.HANG:
            thread.detour(_sleep(plan.lasts_s / worker.pace))
        elif fault in {Fault.EXIT, Fault.FAIL}:
            worker.exit(0 if fault is Fault.EXIT else 3)
        elif fault is Fault.BREAK:
            self._break(plan, worker, thread, phase)
        else:
            self._part(plan, worker, thread, phase)

    def _part(self, plan: Plan, worker: Worker, thread: Thread, phase: str) -> None:
        if plan.fault is Fault.LEAVE:
            if plan.many % 2:
                thread.turn(_one_after_the_other(worker.hands_over(), worker.burns()))
            else:
                thread.detour(worker.hands_over())  # a zombie: it goes on until it is fenced by force
        else:
            if plan.fault is Fault.RAISE_ALL:
                self._raise_all = (phase, worker.step)
            thread.turn(worker.raises("train.py:7" if plan.fault is Fault.RAISE_ALL else f"train.py:{worker.rank}"))

    def _massacre(self, plan: Plan, worker: Worker) -> None:
        others = [other for other in self.world.workers if other is not worker and not other.doomed]
        others = [other for other in others if other.process.alive]
        for other in self.world.scheduler.random.sample(others, min(plan.many - 1, len(others))):
            if other.rank not in self.harmed:
                self.harmed[other.rank] = plan.fault
            other.kill()
        worker.kill()

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
