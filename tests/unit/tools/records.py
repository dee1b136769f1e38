"""Records made by hand, in which nothing differs until a test spoils them, and the tool that has to notice."""

import importlib.util
import json
import math
import sys
from collections import OrderedDict
from pathlib import Path

import torch

TOOL = Path(__file__).parents[3] / "tools" / "verify.py"
STEPS = 20
SHARDS = 4
DEATH = 7  # the step in which worker 1 died: its last record is of the one before


def load_tool():
    """Import the script by its path, as it is no package."""
    spec = importlib.util.spec_from_file_location("relume_tools_verify", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def state():
    """A state with what real ones hold: several dtypes, nesting, floats, integers, None."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 3, generator=generator)
    return {
        "model": OrderedDict(
            weight=weight, half=weight.bfloat16(), counted=torch.tensor(3), on=torch.tensor([True, False])
        ),
        "optimizer": {"state": {0: {"step": torch.tensor(20.0)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "scheduler": {"last_epoch": 20, "_last_lr": [0.1], "note": None},
        "vars": {"best": math.nan},
    }


def line(rank, step, members, view, run="fleet", *, sharers=None):
    """Return one line of a record. `sharers`: who computed the step, if that is not just its members."""
    sharers = sharers or members
    return {
        "v": 1,
        "run": run,
        "rank": rank,
        "pid": 100 + rank,
        "step": step,
        "epoch_view": view,
        "members": members,
        "digest": f"{step:016x}",
        "means": {"loss": (4.0 - step / 10).hex(), "tokens": (64.0).hex()},
        "shards": [[shard, 0, 1] for shard in range(SHARDS) if sharers[shard % len(sharers)] == rank],
    }


class Folder:
    """One folder of records that a test may spoil. Its keys are names of files: a rank, or `"1.1"` for a life."""

    def __init__(self, path):
        self.path = path
        self.path.mkdir()
        self.lines = {}
        self.tails = {}
        self.finals = {}

    def write(self):
        """Write it all."""
        for rank, lines in self.lines.items():
            text = "".join(json.dumps(item) + "\n" for item in lines) + self.tails.get(rank, "")
            (self.path / f"record-{rank}.jsonl").write_text(text)
        for rank, final in self.finals.items():
            torch.save(final, self.path / f"final-{rank}.pt")
