"""A joiner's last look: who differs is turned away before it computes with the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from relume.agent import gate
from relume.agent.gate import Gate, compare
from relume.arena.progress import Pulse


def shown(*pulses):
    return [Pulse(step, values, parameters) for step, values, parameters in pulses]


MEMBERS = [shown((7, 1, 70), (8, 2, 80)), shown((7, 1, 70), (6, 9, 60))]


def test_the_newest_step_of_the_joiner_is_what_counts():
    assert compare(shown((6, 5, 5), (7, 1, 70)), MEMBERS) == ""


@pytest.mark.parametrize(("pulse", "what"), [((7, 3, 70), "a learning rate"), ((8, 2, 81), "a parameter")])
def test_who_differs_is_told_in_what(pulse, what):
    said = compare(shown(pulse), MEMBERS)
    assert said is not None
    assert f"before step {pulse[0]}, {what}" in said
    assert "run.protect" in said


def test_a_step_that_nobody_has_shown_yet_is_waited_for():
    assert compare(shown((9, 1, 1)), MEMBERS) is None


def test_nothing_to_compare_with_is_nothing_to_hold_against_anybody():
    assert compare([], MEMBERS) == ""
    assert compare(shown((7, 1, 70)), []) == ""


def knocking(pulses, monkeypatch, patience_s=5.0):
    """Have worker 1 knock at the gate of worker 0, who shows `pulses` one after the other; return what became of it."""
    monkeypatch.setattr(gate, "PATIENCE_S", patience_s)
    said = []
    pulses = iter(pulses)
    last = [next(pulses)]

    def look(rank):
        if rank == 1:
            return shown((4, 1, 1))
        last[0] = next(pulses, last[0])
        return shown(last[0])

    async def run():
        worker = SimpleNamespace(rank=1, condemned=False, wait_status=None)
        arena = SimpleNamespace(pulses=look)
        Gate(arena, lambda: [0, 1], lambda _: said.append("in"), lambda _, why: said.append(why)).knock(worker)
        for _ in range(200):
            if said:
                break
            await asyncio.sleep(0.005)

    asyncio.run(run())
    return said


def test_it_waits_until_a_member_is_as_far(monkeypatch):
    assert knocking([(2, 1, 1), (3, 1, 1), (3, 1, 1), (4, 1, 1)], monkeypatch) == ["in"]
    [why] = knocking([(2, 1, 1), (3, 1, 1), (4, 2, 1)], monkeypatch)
    assert "a learning rate" in why


def test_who_never_meets_anybody_in_a_step_is_let_in(monkeypatch):
    assert knocking([(2, 1, 1)], monkeypatch, patience_s=0.05) == ["in"]
