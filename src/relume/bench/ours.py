"""The script that `relume run` runs: an ordinary loop, but that it waits for its controller between blocks of steps.

    relume run --workers N -m relume.bench.ours ADDRESS TERMS

The wait is `aside`, so that it is not taken for a hang. When the controller hangs up, every worker reads that before
the same step and leaves the loop there, so the run is completed and nothing is left of it.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec
import torch

from relume.bench.models import Task, build
from relume.bench.orders import RELUME, Done, Line, Ready, Save, Steps, Terms
from relume.train.run import init

STEPS_MAX = 1 << 40
"""The controller decides when it is enough."""


class Turn:
    """Where the loop stands in its block, and the answer that it owes."""

    def __init__(self, line: Line, answer: Ready, task: Task) -> None:
        self._line = line
        self._answer: Ready | Done = answer
        self._task = task
        self._rank = answer.rank
        self._left = self._counted = self._begin_ns = self._steps = 0

    @property
    def over(self) -> bool:
        """True if the loop has to wait for an order."""
        return self._left == 0

    def wait(self) -> bool:
        """Answer and wait for steps to make; False if there will be none."""
        while self._left == 0:
            self._line.send(self._answer)
            order = self._line.receive()
            if order is None:
                return False
            self._answer = Done(steps=self._steps)
            if isinstance(order, Save) and self._rank == 0:
                self._task.weights().tofile(order.path)
            elif isinstance(order, Steps):
                self._left, self._counted = order.warm + order.steps, order.steps
        return True

    def made(self) -> None:
        """A step is made."""
        self._left -= 1
        self._steps += 1
        if self._left == self._counted:
            self._begin_ns = time.monotonic_ns()
        elif self._left == 0:
            self._answer = Done(self._begin_ns, time.monotonic_ns(), steps=self._steps)


def main(address: str, text: str) -> None:
    """Train until the controller hangs up."""
    terms = msgspec.json.decode(text, type=Terms)
    line = Line.to_controller(address)
    run = init(seed=terms.seed)
    task = build(terms)
    run.protect(**task.protected)
    turn = Turn(line, Ready(RELUME, run.rank, os.getpid(), str(torch.__version__)), task)
    options = {"single_backward": True} if terms.single_backward else {}
    for step in run.steps(task.shards, total=STEPS_MAX, **options):
        if turn.over:
            with run.aside("bench"):
                go_on = turn.wait()
            if not go_on:
                break
        for batch in step:
            task.loss(task.model, batch).backward()
        task.update()
        turn.made()


if __name__ == "__main__":
    main(*sys.argv[1:])
