"""Laws about what is committed: a step is committed when all its blocks are sealed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relume.core.events import Accepted, Counted, Event, InstallView, Instruction
from relume.core.verdict import Outcome
from relume.simulate import symbols
from relume.simulate.checkers.base import Checker
from relume.simulate.faults import Fault
from relume.simulate.memory import TORN, Kind, Write
from relume.wire.messages import View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World


class OneContent(Checker):
    """No step is committed with two contents: what a block held when it was sealed is what everybody reads."""

    name = "one content"
    kinds = (Kind.BLOCK, Kind.RESULT, Kind.TAKEN)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sealed: dict[tuple[int, int], tuple[Any, ...]] = {}

    def wrote(self, write: Write) -> None:
        """See the class."""
        arena, step = self.arena, write.step
        if write.kind is Kind.RESULT:
            block = write.place[1] // arena.pieces
            if arena.block_seals[step % arena.kept][block] == step and write.after != write.before:
                self.fail(
                    f"worker {write.rank} writes {write.after} into block {block} of step {step}, which is sealed"
                )
        elif write.kind is Kind.BLOCK:
            block = write.place[1]
            content = tuple(arena.results[step % arena.kept][block * arena.pieces : (block + 1) * arena.pieces])
            if self._sealed.setdefault((step, block), content) != content:
                self.fail(f"block {block} of step {step} is sealed with {content} after {self._sealed[step, block]}")
        else:
            sealed = tuple(cell for block in range(arena.blocks) for cell in self._sealed.get((step, block), (None,)))
            if write.after[0] != sealed:
                self.fail(f"worker {write.rank} takes {write.after[0]} from step {step}, and it was sealed as {sealed}")


class NoneLost(Checker):
    """No committed step is lost: they are committed in order, counted as they are, and taken in order by everybody."""

    name = "none lost"
    kinds = (Kind.BLOCK, Kind.TAKEN, Kind.LOADED)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.committed = world.settings.resume_step - 1

    def wrote(self, write: Write) -> None:
        """See the class."""
        if write.kind is Kind.BLOCK:
            if write.before != write.step and self.arena.complete(write.step):
                if write.step != self.committed + 1:
                    self.fail(f"step {write.step} is committed after step {self.committed}")
                self.committed = write.step
        elif write.kind is Kind.LOADED:
            if not write.before < write.step <= self.committed + 1:
                self.fail(
                    f"worker {write.rank} loads step {write.step} after {write.before}; {self.committed} is committed"
                )
        elif write.step != write.before + 1 or write.step > self.committed:
            self.fail(
                f"worker {write.rank} takes step {write.step} after {write.before}; {self.committed} is committed"
            )

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """A view begins after the last committed step, unless it was agreed on before that step was begun."""
        for instruction in answer:
            if isinstance(instruction, InstallView):
                first = instruction.view.step
                planned = isinstance(event, Accepted)
                if (first <= self.committed) if planned else (first != self.committed + 1):
                    self.fail(f"view {instruction.view.number} begins at step {first}; {self.committed} is committed")
        if isinstance(event, Counted) and answer and event.inventory.complete != self.committed:
            self.fail(f"step {event.inventory.complete} is counted as complete; {self.committed} is committed")

    def ended(self, outcome: str) -> None:
        """A run that is completed has every step, or all have left it at the same one."""
        if outcome not in {Outcome.COMPLETED, Outcome.TAIL_LOST}:
            return
        last = self.world.settings.steps - 1
        left = any(worker.left for worker in self.world.everyone)
        if self.committed > last or (self.committed < last and not left):
            self.fail(f"the run is {outcome}, and step {self.committed} of {last} is the last one committed")
        closed = [worker for worker in self.world.newest if worker.standing.closed is not None]
        for worker in closed:
            if self.arena.taken[worker.rank] != self.committed:
                self.fail(f"worker {worker.rank} leaves well after step {self.arena.taken[worker.rank]} of {last}")


class ExactlyOnce(Checker):
    """Every shard is counted exactly once in every committed sum, in the order of the tree, under its own weight."""

    name = "exactly once"
    kinds = (Kind.BLOCK, Kind.TAKEN)

    def wrote(self, write: Write) -> None:
        """See the class."""
        arena, step = self.arena, write.step
        right = symbols.result(step, arena.shards)
        if write.kind is Kind.BLOCK:
            block = write.place[1]
            for cell in range(block * arena.pieces, (block + 1) * arena.pieces):
                found = arena.results[step % arena.kept][cell]
                if found != right:
                    self.fail(f"worker {write.rank} seals block {block} of step {step} with {_told(found, right)}")
        else:
            cells, notes, buffers = write.after
            for found in cells:
                if found != right:
                    self.fail(f"worker {write.rank} takes step {step} as {_told(found, right)}")
            if notes != right[1] or buffers != step:
                self.fail(f"worker {write.rank} takes step {step} with notes {notes} and the buffers of step {buffers}")


class SameState(Checker):
    """Whoever begins a step, or says that it is level, holds the very state that all steps before it make."""

    name = "same state"
    kinds = (Kind.LOADED,)

    def wrote(self, write: Write) -> None:
        """What is loaded is the mirror of that step, whole."""
        if write.after != (write.step, "") and not self._drifts():
            self.fail(f"worker {write.rank} loads {write.after} as the mirror of step {write.step}")

    def level(self, worker: Worker, step: int) -> None:
        """See the class."""
        self._holds(worker, step)

    def begun(self, worker: Worker, step: int, view: View) -> None:
        """See the class."""
        del view
        self._holds(worker, step)

    def _holds(self, worker: Worker, step: int) -> None:
        if worker.content != (step, "") and not self._drifts():
            self.fail(f"worker {worker.rank} stands before step {step} and holds {worker.content}")

    def _drifts(self) -> bool:
        return Fault.DRIFT in self.world.faults.harmed.values()


def _told(found: Any, right: Any) -> str:  # noqa: ANN401 - symbols
    if found is None or found == TORN:
        return f"{found}, where {right[0]} belongs"
    counts = Counter(_leaves(found[0]))
    doubled = [leaf for leaf, times in counts.items() if times > 1]
    missing = [leaf for leaf in right[1] if leaf not in counts]
    weights = "" if found[1] == right[1] else f", divided by the notes {found[1]}"
    return f"{found[0]} (missing {missing}, doubled {doubled}{weights}), where {right[0]} belongs"


def _leaves(symbol: Any) -> list[Any]:  # noqa: ANN401 - symbols
    if isinstance(symbol, tuple) and len(symbol) == 2 and not isinstance(symbol[0], int):
        return _leaves(symbol[0]) + _leaves(symbol[1])
    return [symbol]
