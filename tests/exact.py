"""Run a scenario with relume, and hold what comes out against the oracle, bit by bit.

The oracle and plain runs live in children of their own, so that nothing of them (threads, deterministic algorithms,
random state) is left in the process that forks fleets.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import relume
from relume.errors import StepError
from tests import oracle
from tests.oracle import Scenario, Trace

torch.set_num_threads(1)  # a process that forks workers must have no pool of threads
CHILD_S_MAX = 60
SINGLE_BACKWARD = False
"""What runs say of themselves; a test may set it."""
LOGGED = ("loss", "tokens")
_SPEC = importlib.util.spec_from_file_location("relume_tools_verify", Path(__file__).parents[1] / "tools" / "verify.py")
verify = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = verify
_SPEC.loader.exec_module(verify)


class RelumeTape:
    """A scenario's tape under relume: nothing but what a user would write."""

    def __init__(self, step: relume.Step) -> None:
        self.number = step.number
        self.weighted = step.backward
        self.skip = step.skip
        self.log = step.log

    def plain(self, loss: torch.Tensor, **options: Any) -> None:
        loss.backward(**options)


def train(scenario: Scenario, shards: int, into: Path) -> None:
    """Train the scenario as a relume script does, and leave the trace in a file."""
    run = relume.init(seed=scenario.seed)
    objects = scenario.build()
    run.protect(**objects)
    size = {} if scenario.stream else {"global_batch_size": scenario.batch}
    data = relume.Shards(scenario.source, shards=shards, **size, **scenario.options)
    trace: Trace = {"grads": [], "means": []}
    for step in run.steps(data, total=scenario.steps, single_backward=SINGLE_BACKWARD):
        tape = RelumeTape(step)
        for batch in step:
            scenario.shard(objects, batch, tape)
        parameters = oracle.parameters_of(objects)
        trace["grads"].append({name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()})
        trace["means"].append(means(step))
        if scenario.aside and step.is_main:
            with run.aside("look"):
                scenario.aside(objects)
        scenario.update(objects, step.number)
        if scenario.until(trace["means"][-1]):
            break
    torch.save({**trace, "state": oracle.snapshot(objects)}, into)


def means(step: relume.Step) -> dict[str, str]:
    """What was logged in this step, by name."""
    found = {}
    for name in LOGGED:
        try:
            found[name] = step.mean(name).hex()
        except StepError:  # nobody logged it
            continue
    return found


def body(scenario: Scenario, shards: int | None, folder: Path) -> Callable[[int], None]:
    """Make the script that each worker of a fleet runs."""
    return lambda rank: train(scenario, shards or scenario.shards, folder / f"trace-{rank}.pt")


def in_child(work: Callable[[Path], Any]) -> Trace:
    """Run `work` in a forked child and return the trace that it saved."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.pt"
        child = multiprocessing.get_context("fork").Process(target=work, args=(path,))
        child.start()
        child.join(CHILD_S_MAX)
        if child.is_alive():
            child.kill()
            child.join()
        assert child.exitcode == 0, f"the child ended with {child.exitcode}: its traceback is above"
        return load(path)


def load(path: Path) -> Trace:
    """Read a trace."""
    return torch.load(path, weights_only=True)


@functools.cache
def expected(name: str, shards: int) -> Trace:
    """What the oracle says; asked once for each scenario and number of shards."""
    from tests.scenarios_exact import BY_NAME

    return in_child(lambda path: torch.save(oracle.train(BY_NAME[name], shards), path))


def differences(trace: Trace, scenario: Scenario, shards: int | None = None) -> list[str]:
    """Where a trace differs from the oracle's, the earliest first."""
    there = expected(scenario.name, shards or scenario.shards)
    found = []
    for key in ("means", "grads", "state"):
        found += [f"{where}: {bits} bits: {what}" for where, bits, what in verify.compare(trace[key], there[key], key)]
    return found


def has_trace(folder: Path, rank: int) -> bool:
    """Whether this worker came to the end of its script."""
    return (folder / f"trace-{rank}.pt").exists()


def check(folder: Path, ranks: Iterable[int], scenario: Scenario, shards: int | None = None) -> None:
    """Every one of these workers has come to the oracle's result."""
    for rank in ranks:
        found = differences(load(folder / f"trace-{rank}.pt"), scenario, shards)
        assert not found, f"{scenario.name}, worker {rank}: {len(found)} differences:\n" + "\n".join(found[:20])
