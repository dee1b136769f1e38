"""Records for proof: a line per step, and the state at the end, when RELUME_RECORD names a folder.

`tools/verify.py` reads them; it shares no code with this module. The digest covers all protected state after the
update, so that two workers, or a run and its undisturbed twin, can be compared step by step. Every life of a rank has
a file of its own: `record-<rank>.jsonl` the first, `record-<rank>.<life>.jsonl` those that came back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from relume.verify.digests import digest

if TYPE_CHECKING:
    from relume.train.step import Step

VERSION = 1


class Recorder:
    """Writes the records of one worker into `folder`."""

    def __init__(self, folder: Path, run_id: str, rank: int, life: int) -> None:
        self._folder = folder
        self._run_id = run_id
        self._rank = rank
        self._life = life
        folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{rank}.{life}" if life else f"{rank}"
        self._file = (folder / f"record-{self._name}.jsonl").open("w", buffering=1, encoding="utf-8")

    @classmethod
    def from_environment(cls, run_id: str, rank: int, life: int) -> Recorder | None:
        """Return a recorder if RELUME_RECORD names a folder."""
        folder = os.environ.get("RELUME_RECORD")
        return cls(Path(folder), run_id, rank, life) if folder else None

    def step(self, step: Step, *, state: dict[str, Any], means: dict[str, float], times: dict[str, Any]) -> None:
        """Write the line of `step`. One that replays has no view before it is admitted."""
        view = step.view
        line = {
            "v": VERSION,
            "run": self._run_id,
            "rank": self._rank,
            "pid": os.getpid(),
            "life": self._life,
            "step": step.number,
            "replay": step.replay,
            "epoch_view": [0, 0] if view is None else list(view.number),
            "members": [] if view is None else list(view.members),
            "digest": digest(state),
            "means": {name: value.hex() for name, value in means.items()},
            **times,
        }
        self._file.write(json.dumps(line) + "\n")

    def final(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after the last step, whole or not at all."""
        path = self._folder / f"final-{self._name}.pt"
        partial = path.with_suffix(".partial")
        torch.save({"step": step, "state": state}, partial)
        partial.replace(path)
        self._file.close()
