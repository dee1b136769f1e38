"""The simulator's models are like the real things: numbers, slots, the order of the sum, promises, when to mirror."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.agent import vigil
from relume.arena import layout
from relume.arena.progress import PHASES
from relume.reduce.layout import GradientLayout
from relume.reduce.seals import UNSEALED, unpack
from relume.reduce.slots import Slots
from relume.reduce.tree import fold
from relume.simulate import faults, memory, shell, symbols, worker
from relume.simulate.memory import Kind
from relume.simulate.settings import Settings
from relume.simulate.worker import Worker
from relume.simulate.world import Parts, World
from relume.state.mirror import Mirror as RealMirror
from relume.train import standing
from relume.wire.messages import View


def test_numbers_that_are_repeated_below_their_layer_are_the_same():
    assert (memory.RESULTS, memory.SLOTS_EAGER) == (layout.RESULTS, layout.SLOTS_EAGER)
    assert (memory.KEPT_BEYOND, memory.MIRRORS) == (layout.KEPT_BEYOND, layout.MIRRORS)
    assert [memory.slots_max(shards) for shards in range(1, 400)] == [layout.slots_max(s) for s in range(1, 400)]
    assert worker.WAIT_S == standing.WAIT_S
    assert (shell.TICK_S, shell.DOOM_POLL_S) == (vigil.TICK_S, vigil.DOOM_POLL_S)
    assert (shell.IDLE_S, shell.STACK_WAIT_S) == (vigil.IDLE_S, vigil.STACK_WAIT_S)


def test_phases_are_those_of_the_progress_block():
    seen = {shell.AS_THE_AGENT_SEES.get(phase, phase) for phase in faults.PHASES}
    assert seen | {"aside", "early"} == set(PHASES)  # the model's workers do not sum early


class Real:
    """The real slots, as one worker uses them."""

    def __init__(self, shards):
        gradient = GradientLayout([("p", torch.zeros(2))])
        self.seals = np.zeros(layout.SLOT_WORDS, dtype=np.uint64)
        self.memory = {}
        self.slots = Slots(self.seals, self._slot, gradient, shards, layout.slots_max(shards))

    def _slot(self, index):
        return self.memory.setdefault(index, torch.zeros(128, dtype=torch.uint8))

    def compute(self, step, shard):
        slot = self.slots.acquire(step, lambda node: (np.ones(1, dtype=bool), 1.0), lambda action: action())
        self.slots.seal(slot, step, shard)

    def standing(self):
        return {slot: unpack(int(word)) for slot, word in enumerate(self.seals) if word != UNSEALED}


class Model:
    """The simulated ones."""

    def __init__(self, shards):
        self.world = World(Settings(0, 1, shards, 1, 1, 1, paces=(1.0,)))
        for kind in Kind:
            self.world.arena.watchers[kind].clear()
        self.worker = Worker(self.world, 0)
        self.worker.standing.view = View((1, 1), (0,), 0, shards, (tuple(range(shards)),))

    def compute(self, step, shard):
        way = self.worker.engine.compute(step, shard)
        for want in way:
            if not isinstance(want, float):
                want.park(None)  # the pen, which nobody else wants

    def standing(self):
        return {slot: seal for slot, seal in enumerate(self.world.arena.seals[0]) if seal is not None}


@pytest.mark.parametrize("shards", [1, 2, 3, 6, 8, 13, 21])
def test_the_model_s_slots_hold_what_the_real_ones_hold(shards, seed):
    draw = random.Random(seed)
    real, model = Real(shards), Model(shards)
    for step in range(3):
        for shard in draw.sample(range(shards), draw.randint(1, shards)):
            real.compute(step, shard)
            model.compute(step, shard)
            assert model.standing() == real.standing()


class Promises:
    """A real standing and its model, told the same."""

    def __init__(self):
        self.real = standing.Standing(1, None)
        world = World(Settings(0, 3, 1, 1, 1, 9), Parts(checkers=()))
        self.model = Worker(world, 1).standing

    def tell(self, what, *arguments):
        """Do it to both, and hold what they answer and where they stand together."""
        answers = getattr(self.real, what)(*arguments), played(getattr(self.model, what)(*arguments))
        if what in {"propose", "begin", "admitted"}:
            assert answers[0] == answers[1], (what, arguments)
        assert self.real.view == self.model.view, (what, arguments)
        assert self.real.promised == self.model.promised
        mine = (self.real._accepted, self.real._planned, self.real._begun, self.real._withdrawn)
        assert mine == (self.model.accepted, self.model.planned, self.model.begun, self.model.withdrawn)

    def may_begin(self, step):
        """Whether it would not wait."""
        due = [number for number, view in self.model.planned.items() if view.step <= step]
        newest = max(due, default=self.model.view.number if self.model.view else (0, 0))
        return self.model.undisputed(step) and newest >= max(self.model.promise_made, (0, 1))


def played(way):
    """Run a model's way to its end: nobody else wants the pen."""
    try:
        want = next(way)
        while True:
            if not isinstance(want, float):
                want.park(None)
            want = way.send(None)
    except StopIteration as end:
        return end.value


def test_the_model_of_promises_answers_as_the_real_one(seed):
    draw = random.Random(seed)
    answers = Counter()
    for _ in range(60):
        both, step = Promises(), 0
        for _ in range(40):
            number = (1, draw.randint(1, 9))
            members = tuple(sorted(draw.sample(range(3), draw.randint(1, 3))))
            view = View(
                number, members, draw.randint(max(0, step - 2), step + 3), 1, ((0,),) + ((),) * (len(members) - 1)
            )
            what = draw.choice(["promise", "propose", "propose", "withdraw", "install", "install", "begin", "admitted"])
            if what == "begin":
                if both.may_begin(step + 1):
                    step += 1
                    both.tell(what, step)
            elif what == "admitted":
                both.tell(what, step)
            else:
                both.tell(what, number if what in {"promise", "withdraw"} else view)
            answers[what] += 1
    assert all(answers[what] for what in ("begin", "propose", "install"))


@pytest.mark.parametrize("resumed", [None, 0, 1])
@pytest.mark.parametrize("every", [2, 3, 8])
def test_a_mirror_is_due_and_goes_where_the_real_one_does(every, resumed, seed, monkeypatch):
    draw = random.Random(seed)
    control = layout.ControlLayout(1, every + layout.KEPT_BEYOND)
    begin = 0 if resumed is None else draw.randrange(1, 20)
    whole: list[int | None] = [None, None]
    monkeypatch.setattr(RealMirror, "_look", lambda _: [SimpleNamespace(step=step) for step in whole])
    real = RealMirror(memoryview(bytearray(control.size)), control, (-1, -1), every)
    world = World(Settings(0, 1, 1, 1, 1, 9, every=every), Parts(checkers=()))
    model = Worker(world, 0).mirroring
    written = []
    if resumed is not None:  # from a checkpoint, which was read into this generation
        whole[resumed] = begin
        world.arena.mirrors[resumed].seals = [begin]
    for step in range(begin, begin + 60):
        assert real.due(step) == model.due(step), (step, written)
        if real.due(step) and not real.has(step):
            target = real._target(step)
            assert target == model.target(step)
            assert whole[target] is None or whole[target] < max(w for w in whole if w is not None), "the older one"
            whole[target] = step if draw.random() < 0.7 else None  # a death may cut it short
            world.arena.mirrors[target].seals = [-1 if whole[target] is None else step]
            written += [] if whole[target] is None else [step]
            assert real.newest() == model.newest()[0]
    assert len(written) > 2


@given(st.integers(1, 70), st.integers(0, 5))
def test_the_oracle_and_both_sums_have_one_tree(shards, step):
    leaves = {(shard, shard + 1): (step, shard) for shard in range(shards)}
    assert symbols.tree(step, 0, shards) == symbols.fold(leaves, 0, shards)
    assert symbols.tree(step, 0, shards) == fold(leaves, shards, lambda left, right: (left, right))
