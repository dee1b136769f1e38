"""The simulator's models are like the real things: numbers, the slots a worker takes, the order of the sum."""

from __future__ import annotations

import random

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
from relume.simulate.world import World
from relume.train import standing
from relume.wire.messages import View


def test_numbers_that_are_repeated_below_their_layer_are_the_same():
    assert (memory.RESULTS, memory.SLOTS_EAGER) == (layout.RESULTS, layout.SLOTS_EAGER)
    assert [memory.slots_max(shards) for shards in range(1, 400)] == [layout.slots_max(s) for s in range(1, 400)]
    assert worker.WAIT_S == standing.WAIT_S
    assert (shell.TICK_S, shell.DOOM_POLL_S) == (vigil.TICK_S, vigil.DOOM_POLL_S)
    assert (shell.IDLE_S, shell.STACK_WAIT_S) == (vigil.IDLE_S, vigil.STACK_WAIT_S)


def test_phases_are_those_of_the_progress_block():
    seen = {shell.AS_THE_AGENT_SEES.get(phase, phase) for phase in faults.PHASES}
    assert seen | {"aside"} == set(PHASES)


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
        slot = self.slots.acquire(step, lambda node: np.ones(1, dtype=bool), lambda action: action())
        self.slots.seal(slot, step, shard)

    def standing(self):
        return {slot: unpack(int(word)) for slot, word in enumerate(self.seals) if word != UNSEALED}


class Model:
    """The simulated ones."""

    def __init__(self, shards):
        self.world = World(Settings(0, 1, shards, 1, 1, 1, paces=(1.0,)))
        for kind in Kind:
            self.world.arena.watchers[kind].clear()
        self.worker = self.world.workers[0]
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


@given(st.integers(1, 70), st.integers(0, 5))
def test_the_oracle_and_both_sums_have_one_tree(shards, step):
    leaves = {(shard, shard + 1): (step, shard) for shard in range(shards)}
    assert symbols.tree(step, 0, shards) == symbols.fold(leaves, 0, shards)
    assert symbols.tree(step, 0, shards) == fold(leaves, shards, lambda left, right: (left, right))
