"""The transcripts are true, they show every transition, and no event in any state is more than the core can bear."""

from __future__ import annotations

import dataclasses
import difflib
import os

import pytest

from relume.core.coordinator import TRANSITIONS, State
from relume.core.events import (
    Accepted,
    Cause,
    Counted,
    Diverged,
    Done,
    Exited,
    Fenced,
    Joined,
    Leaving,
    Level,
    Lost,
    NoMemory,
    Pledged,
    Progress,
    Refused,
    Reserved,
    Scale,
    Tick,
)
from relume.core.plan import Inventory
from relume.wire.messages import Shape
from tests.scenarios.interpreter import Stage, moments, rendered, transcripts, twin

REWRITE = "RELUME_REWRITE"


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_the_core_answers_as_written(path):
    written = path.read_text()
    answered = "\n".join(rendered(written, Stage())) + "\n"
    if os.environ.get(REWRITE):
        path.write_text(answered)
    elif answered != written:
        lines = difflib.unified_diff(
            written.splitlines(), answered.splitlines(), "as written", "as answered", lineterm=""
        )
        text = "\n".join(lines)
        pytest.fail(f"{path.name}: the core answers otherwise ({REWRITE}=1 accepts that)\n{text}", pytrace=False)


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_a_transcript_says_first_what_it_is_about(path):
    assert path.read_text().startswith("# ")


def test_the_transcripts_show_every_transition():
    stage = Stage()
    for path in transcripts():
        for _ in rendered(path.read_text(), stage):
            pass
    missing = set(TRANSITIONS) - stage.rows
    assert not missing, f"no transcript shows {[(state.value, event.__name__) for state, event in missing]}"


def anything(core):
    """Every kind of event about every seat, in its life of now: early, late, doubled, and about what is long past."""
    ballot, steps = core.ballot, (-1, 0, 4, 10**9)
    stale = (ballot[0], ballot[1] - 1)
    yield from (Reserved(), NoMemory("none"), Tick(), Diverged("a parameter differs"))
    yield from (Scale(workers) for workers in (1, core.workers, core.seats))
    yield from (Counted(number, Inventory(3, {0: [(0, 1)]})) for number in (stale, ballot, (0, 0)))
    for rank in {*range(core.seats)[:3], core.seats - 1}:
        life = core.life(rank)
        yield Joined(rank, ("same",), Shape(4096, 0, 1, 8), 0, life)
        yield Joined(rank, ("other",), Shape(8192, 0, 1, 8), 0, life)
        yield from (Lost(rank, Cause("signal", "it was killed"), life), Fenced(rank, life), Leaving(rank, "told", life))
        yield from (Exited(rank, life, taken) for taken in (None, -1, 10**9))
        for number in (stale, ballot, (0, 0)):
            yield from (Pledged(rank, number, life), Accepted(rank, number, life), Refused(rank, number, 4, life))
        yield from (kind(rank, step, life=life) for step in steps for kind in (Done, Progress, Level))


def test_no_event_in_any_state_is_an_error_nor_is_its_double():
    seen = set()
    for core, now in moments():
        seen.add(core.state)
        for event in anything(core):
            if isinstance(event, Counted) and core.view is not None and core.view.step > event.inventory.complete + 1:
                continue  # the arena does not forget a step that is complete
            once = twin(core)
            once.handle(event, now)
            once.handle(event, now + 1000.0)
    assert seen == set(State)


def test_what_is_said_about_another_life_changes_nothing():
    for core, now in moments():
        core._out = []
        before = repr(core)
        for event in anything(core):
            if hasattr(event, "life"):
                for life in (event.life - 1, event.life + 1):
                    assert core.handle(dataclasses.replace(event, life=life), now) == []
        assert repr(core) == before


def test_an_event_that_is_not_in_the_table_changes_nothing():
    for core, now in moments():
        core._out = []
        before = repr(core)
        for event in anything(core):
            if (core.state, type(event)) not in TRANSITIONS:
                assert core.handle(event, now) == []
        assert repr(core) == before
