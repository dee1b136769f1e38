"""Around the real agent: whoever is lost is replaced, comes level, and takes part; and the bits are as if nothing was.

Nothing here waits for time to pass. A worker that goes on is held at a step until the others have come.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import relume
from relume.verify.digests import digest
from relume.wire.events import Event, ViewInstalled, WorkerLevel, WorkerStarted
from tests import agents, exact
from tests.fleet import FleetResult, run_fleet
from tests.returning import everything, kill, trace_of, undisturbed

STEPS = 16
SCHEDULES = int(os.environ.get("RELUME_TEST_SCHEDULES", "40")) // 4


class Gate:
    """Holds workers at the end of a step until the agent has told of something often enough."""

    def __init__(self, folder: Path, *kinds: type[Event], count: int = 1) -> None:
        self._mark = folder / "gate"
        self._kinds = kinds
        self._left = count

    def watch(self, event: Event) -> None:
        if isinstance(event, self._kinds):
            self._left -= 1
            if self._left == 0:
                self._mark.touch()

    def hold(self, *steps: int) -> Callable[[int, relume.Step], None]:
        def hook(rank: int, step: relume.Step) -> None:
            if step.number in steps and not step.replay:
                agents.until(self._mark.exists)

        return hook


def run(folder: Path, gate: Gate | None, hook: Callable[[int, relume.Step], None], **options: Any) -> FleetResult:
    """Run the script with all in it under the real agent, with respawn."""
    settings = {"workers": 3, "max_restarts": 20, "mirror_every": 3, "seats": 6, "hang_timeout_s": 60.0, **options}
    watcher = gate.watch if gate is not None else None
    return run_fleet(everything(folder, STEPS, every_step=hook), tmp_path=folder, watcher=watcher, **settings)


def check(folder: Path, result: FleetResult, *, lost: int, came: int) -> list[dict[str, Any]]:
    """Everybody who came to the end has the bits of a run that nothing ever happened to. Returns their traces."""
    assert result.exit_code == 0, result.output
    assert len(result.incidents) == lost, result.output
    level = [event for event in result.seen if isinstance(event, WorkerLevel)]
    assert len(level) >= came, result.output
    assert all(event.digest for event in level)
    expected, traces = undisturbed(STEPS), []
    for path in sorted(folder.glob("trace-*.json")):
        rank, life = map(int, path.stem.removeprefix("trace-").split("."))
        trace = trace_of(folder, rank, life)
        assert trace["state"] == expected["state"], path.name
        assert all(expected["steps"][number] == values for number, values in trace["steps"].items()), path.name
        traces.append({**trace, "rank": rank, "life": life})
    assert traces
    return traces


def views(result: FleetResult) -> list[tuple[int, ...]]:
    return [event.members for event in result.seen if isinstance(event, ViewInstalled)]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("phase", ["forward", "publish", "take", "update"])
def test_a_worker_that_is_killed_is_replaced_and_takes_part_again(rank, phase, tmp_path):
    gate = Gate(tmp_path, ViewInstalled, count=3)
    result = run(tmp_path, gate, gate.hold(10), traps=[kill(4, phase, rank=rank)])
    traces = check(tmp_path, result, lost=1, came=1)
    assert [(trace["rank"], trace["life"]) for trace in traces] == [(r, int(r == rank)) for r in range(3)]
    assert views(result)[-1] == (0, 1, 2)
    (back,) = [trace for trace in traces if trace["life"]]
    assert back["replayed"]
    assert max(back["replayed"]) < STEPS - 1, "it has computed a shard of a later step"
    assert [trace["main"] for trace in traces] == [True, False, False]


@pytest.mark.parametrize("phase", ["load", "backward", "sum", "take", "update", "mirror"])
def test_all_are_killed_at_once_and_no_step_is_lost(phase, tmp_path):
    result = run(tmp_path, None, lambda rank, step: None, traps=[kill(6, phase, rank=rank) for rank in range(3)])
    traces = check(tmp_path, result, lost=3, came=1)
    assert {trace["life"] for trace in traces} == {1}
    loaded = [event.loaded for event in result.seen if isinstance(event, WorkerLevel)]
    assert loaded[0] in {3, 6}, "whoever comes later may find a newer one"


def test_a_spare_is_level_already_and_steps_in(tmp_path):
    gate = Gate(tmp_path, WorkerLevel)
    hold = gate.hold(2)
    result = run(tmp_path, gate, hold, workers=2, spares=1, max_restarts=0, traps=[kill(9, "backward", rank=0)])
    traces = check(tmp_path, result, lost=1, came=1)
    assert views(result)[-1] == (1, 2)
    assert [(trace["rank"], trace["main"]) for trace in traces] == [(1, True), (2, False)]


def test_the_tail_of_a_main_that_died_in_it_is_run_again(tmp_path):
    result = run(tmp_path, None, lambda rank, step: None, traps=[kill(STEPS - 1, "tail", rank=0)])
    traces = check(tmp_path, result, lost=1, came=0)
    assert [(trace["rank"], trace["life"], trace["main"]) for trace in traces] == [
        (0, 1, True),
        (1, 0, False),
        (2, 0, False),
    ]
    assert traces[0]["steps"] == {}


def test_a_worker_that_is_told_to_go_finishes_its_step_and_goes(tmp_path):
    gate = Gate(tmp_path, ViewInstalled, count=2)
    held = gate.hold(8)

    def hook(rank: int, step: relume.Step) -> None:
        if (rank, step.number) == (1, 5):
            os.kill(os.getpid(), signal.SIGTERM)
        held(rank, step)

    result = run(tmp_path, gate, hook)
    traces = check(tmp_path, result, lost=0, came=0)
    assert [trace["rank"] for trace in traces] == [0, 2]
    assert views(result)[-1] == (0, 2)


@pytest.mark.parametrize(
    "trap",
    [
        {**kill(3, "replay", rank=1, life=1), "later": True},
        kill(3, "mirror", rank=2),
        {**kill(0, "admission", rank=0), "later": True},
        {**kill(0, "admission", rank=2, nth=1), "later": True},
    ],
    ids=["in the replay", "in the mirror", "before it answers a proposal", "before it has sent its answer"],
)
def test_another_death_on_the_way_back(trap, tmp_path):
    result = run(tmp_path, None, slow_at_first, traps=[kill(4, "backward", rank=1), trap])
    check(tmp_path, result, lost=2, came=1)


def slow_at_first(rank: int, step: relume.Step) -> None:
    """Leave those who come back some time: a step of this script takes milliseconds, and a worker's start more."""
    if not step.replay and step.number < STEPS - 2:
        signal.sigtimedwait((), 0.05)


def schedules(count: int) -> Iterator[Any]:
    draw = random.Random(os.environ.get("RELUME_TEST_SEED", "31"))
    phases = ["load", "forward", "backward", "publish", "wait", "sum", "take", "update", "between", "mirror", "view"]
    for _ in range(count):
        kills = [
            kill(draw.randrange(STEPS - 1), draw.choice(phases), rank=draw.randrange(3), nth=draw.choice([0, 0, 1, 3]))
            for _ in range(draw.choice([2, 4, 6]))
        ]
        for rank in range(3):
            lives = draw.choice([1, 1, 2])
            kills += [
                {
                    **kill(draw.randrange(STEPS - 1), draw.choice([*phases, "replay"]), rank=rank, life=life),
                    "later": True,
                }
                for life in range(1, lives)
            ]
        yield kills


@pytest.mark.parametrize("kills", list(schedules(SCHEDULES)), ids=lambda kills: f"{len(kills)} kills")
def test_whoever_dies_whenever_the_bits_are_the_same(kills, tmp_path):
    result = run(tmp_path, None, slow_at_first, traps=kills)
    check(tmp_path, result, lost=len(result.incidents), came=0)
    started = sum(isinstance(event, WorkerStarted) for event in result.seen)
    assert started >= 3


def test_one_that_comes_back_wrong_is_turned_away_and_the_others_end_well(tmp_path: Path) -> None:
    """A scheduler that is not protected begins anew in a replay: its worker is refused, before it computes anything."""

    def body(rank: int) -> None:
        run = relume.init(seed=5)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        run.protect(model=model, optimizer=optimizer)
        data = relume.Shards(torch.arange(96.0).view(24, 4) / 96, global_batch_size=8, shards=4)
        for step in run.steps(data, total=80):
            for batch in step:
                model(batch).square().mean().backward()
            optimizer.step()
            schedule.step()
            time.sleep(0.02)
        (tmp_path / f"digest-{rank}").write_text(digest(model.state_dict()))

    exact.in_child(lambda path: (body(9), torch.save({}, path)))
    result = run_fleet(
        body,
        workers=2,
        tmp_path=tmp_path,
        max_restarts=5,
        mirror_every=4,
        hang_timeout_s=20.0,
        traps=[{"rank": 1, "step": 10, "phase": "backward", "life": 0}],
    )
    assert result.exit_code == 0, result.output
    causes = [(incident.life, incident.cause) for incident in result.incidents]
    assert causes[0] == (0, "signal")
    assert {cause for _, cause in causes[1:]} == {"profile"}, result.output
    assert "it came back wrong" in result.output
    assert "rank 1 is not started again" in result.output
    assert (tmp_path / "digest-0").read_text() == (tmp_path / "digest-9").read_text()
