"""A training script in a function, with places where a test can do something to it, and the bits it comes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

import relume
from relume.verify.digests import digest
from relume.wire.events import SCHEMA, Line
from tests import exact
from tests.fleet import FleetResult

Hook = Callable[[int, relume.Step], Any]


def nothing(rank: int, step: relume.Step) -> None:
    """Do nothing."""


def script(
    folder: Path,
    *,
    total: int = 6,
    inside: Hook = nothing,
    before: Hook = nothing,
    after: Hook = nothing,
    start: Callable[[int], Any] = lambda rank: None,
    tail: Callable[[int, relume.Run], Any] = lambda rank, run: None,
    **shards: Any,
) -> Callable[[int], None]:
    """Return the body of a worker.

    `inside` is called for each batch, `before` at the top of each step and `after` at its end; a true answer of the
    latter two breaks out of the loop.
    """

    def body(rank: int) -> None:
        start(rank)
        run = relume.init(seed=5)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run.protect(model=model, optimizer=optimizer)
        data = relume.Shards(torch.arange(96.0).view(24, 4) / 96, **{"global_batch_size": 8, "shards": 4, **shards})
        for step in run.steps(data, total=total):
            if before(rank, step):
                break
            for batch in step:
                inside(rank, step)
                loss = model(batch).square().mean()
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            if after(rank, step):
                break
        state = digest({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        (folder / f"digest-{rank}").write_text(f"{state} main={run.is_main}")
        tail(rank, run)

    return body


def at(rank: int, step: int, action: Callable[[], Any]) -> Hook:
    """Return a hook that does `action` on one worker in one step."""
    return lambda who, now: action() if (who, now.number) == (rank, step) else None


def check(folder: Path, result: FleetResult, *, lost: dict[int, str], main: int | None = None, total: int = 6) -> None:
    """The run ended well, has lost just these workers for these causes, and the others have a plain run's bits."""
    assert result.exit_code == 0, result.output
    for line in (result.run_dir / "events.jsonl").read_bytes().splitlines():
        assert msgspec.json.decode(line, type=Line).v == SCHEMA
    assert {incident.rank: incident.cause for incident in result.incidents} == lost, result.output
    expected = plain(total)
    digests = {rank: (folder / f"digest-{rank}").read_text() for rank in result.survivors}
    mains = min(result.survivors) if main is None else main
    assert digests == {rank: f"{expected} main={rank == mains}" for rank in result.survivors}


_PLAIN: dict[int, str] = {}


def plain(total: int = 6) -> str:
    """Return the digest that a plain run of one worker comes to."""
    if total not in _PLAIN:
        _PLAIN[total] = exact.in_child(lambda path: _plain(path, total))["digest"]
    return _PLAIN[total]


def _plain(path: Path, total: int) -> None:
    folder = path.parent
    script(folder, total=total)(0)
    torch.save({"digest": (folder / "digest-0").read_text().split()[0]}, path)


def mark(folder: Path, name: str) -> None:
    """Leave a mark that a test can wait for."""
    (folder / name).write_text(str(os.getpid()))
