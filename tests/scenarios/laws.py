"""What must hold whatever happens: laws that watch a coordinator from outside, by its events and instructions alone.

They keep books of their own, so that a transcript cannot be rewritten into something wrong, and the random explorer
can be believed. Each law says what is broken in a sentence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from relume.core import ranges
from relume.core.events import (
    AskPromise,
    CloseRun,
    Count,
    Counted,
    EndRun,
    Event,
    Exited,
    Fence,
    Fenced,
    Incident,
    InstallView,
    Instruction,
    Pledged,
)
from relume.core.plan import Inventory
from relume.wire.messages import Ballot, View


class Broken(AssertionError):
    """A law does not hold."""


@dataclass
class Laws:
    """Show it every event with its answer; it raises `Broken`."""

    workers: int
    view: View | None = None
    asked: Ballot = (0, 0)
    out: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    promised: dict[int, Ballot] = field(default_factory=dict)
    counted: dict[Ballot, Inventory] = field(default_factory=dict)
    told: Counter[int] = field(default_factory=Counter)
    over: bool = False

    def observe(self, event: Event, answer: list[Instruction]) -> None:
        """Check `answer`, which is what the coordinator said to `event`."""
        self._note(event)
        if self.over and answer:
            raise Broken(f"the run is over, and {answer[0]} comes after")
        for instruction in answer:
            self._check(instruction)
            if isinstance(instruction, InstallView) and instruction.view is not self.view:
                self._check_installed([i for i in answer if isinstance(i, InstallView)])

    def _note(self, event: Event) -> None:
        if isinstance(event, Pledged):
            self.promised[event.rank] = max(self.promised.get(event.rank, (0, 0)), event.ballot)
        elif isinstance(event, Fenced):
            self.fenced.add(event.rank)
        elif isinstance(event, Exited):
            self.fenced.add(event.rank)  # a process that is gone writes nothing
        elif isinstance(event, Counted):
            self.counted[event.ballot] = event.inventory

    def _check(self, instruction: Instruction) -> None:
        if isinstance(instruction, Fence):
            if instruction.rank in self.out:
                raise Broken(f"worker {instruction.rank} is fenced twice")
            self.out.add(instruction.rank)
        elif isinstance(instruction, AskPromise | InstallView | CloseRun) and instruction.rank in self.out:
            raise Broken(f"{instruction} goes to a worker that is out")
        if isinstance(instruction, AskPromise):
            if instruction.ballot < self.asked:
                raise Broken(f"ballot {instruction.ballot} is asked for after {self.asked}")
            self.asked = instruction.ballot
        elif isinstance(instruction, Count):
            self._check_silence(instruction.ballot)
        elif isinstance(instruction, Incident):
            self.told[instruction.rank] += 1
            if self.told[instruction.rank] > 1:
                raise Broken(f"the loss of worker {instruction.rank} is told twice")
        elif isinstance(instruction, EndRun):
            self.over = True

    def _check_silence(self, ballot: Ballot) -> None:
        """Invariant 4 and rule 4: the arena is read when nobody can write, and not before."""
        for rank in range(self.workers):
            if rank in self.out:
                if rank not in self.fenced:
                    raise Broken(f"{ballot} is counted before worker {rank} is fenced")
            elif self.view is not None and rank in self.view.members and self.promised.get(rank, (0, 0)) < ballot:
                raise Broken(f"{ballot} is counted before worker {rank} has promised it")

    def _check_installed(self, installs: list[InstallView]) -> None:
        view, before = installs[0].view, self.view
        if {install.view for install in installs} != {view} or {i.rank for i in installs} != set(view.members):
            raise Broken("one view goes to exactly its members")
        missing = set(range(self.workers)) - set(view.members) - self.fenced
        if missing:
            raise Broken(f"view {view.number} is installed while {missing} could still write")
        standing: set[int] = set()
        if before is not None:
            if not (before.number < view.number and before.step <= view.step):
                raise Broken(f"view {view.number} from step {view.step} follows {before.number} from {before.step}")
            self._check_silence(view.number)
            inventory = self.counted[view.number]
            if view.step != inventory.complete + 1:
                raise Broken(f"step {inventory.complete} is complete, and view {view.number} begins at {view.step}")
            standing = ranges.leaves(node for nodes in inventory.sealed.values() for node in nodes)
        assigned = Counter(shard for shards in view.assigned for shard in shards)
        for shard in range(view.shards):
            if assigned[shard] > 1 or (assigned[shard] == 0 and shard not in standing):
                raise Broken(f"shard {shard} of step {view.step} is computed by {assigned[shard]} members")
        self.view = view
