"""Laws about what the coordinator decides: views, heirs, whom it condemns, what it tells, and how the run ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

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
    Lost,
    Pledged,
)
from relume.core.plan import Inventory
from relume.core.verdict import Outcome
from relume.core.view import owner, shards_of
from relume.simulate.checkers.base import Checker
from relume.simulate.faults import Fault
from relume.wire.messages import Ballot, View

if TYPE_CHECKING:
    from relume.simulate.world import World


class Views(Checker):
    """Ballots and views only go forward; a view holds exactly who is left, once all have promised or are fenced."""

    name = "views"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.view: View | None = None
        self.asked: Ballot = (0, 0)
        self.out: set[int] = set()
        self.gone: set[int] = set()
        self.promised: dict[int, Ballot] = {}
        self.inventory: Inventory | None = None
        self.over = False

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        if self.over and answer:
            self.fail(f"the run is over, and {answer[0]} comes after")
        self._heard(event)
        sent: set[str] = set()
        for place, instruction in enumerate(answer):
            if isinstance(instruction, Fence):
                if instruction.rank in self.out:
                    self.fail(f"worker {instruction.rank} is fenced twice")
                self.out.add(instruction.rank)
            elif isinstance(instruction, Count):
                self._silence(instruction.ballot)
            elif isinstance(instruction, EndRun):
                self.over = True
            elif isinstance(instruction, AskPromise | InstallView | CloseRun):
                kind = type(instruction)
                if kind.__name__ not in sent:
                    sent.add(kind.__name__)
                    self._sent_to_all([each for each in answer[place:] if isinstance(each, kind)])

    def _heard(self, event: Event) -> None:
        if isinstance(event, Fenced | Exited):
            self.gone.add(event.rank)
            if self.view is None and isinstance(event, Exited):
                self.out.add(event.rank)
        elif isinstance(event, Pledged):
            self.promised[event.rank] = max(event.ballot, self.promised.get(event.rank, (0, 0)))
        elif isinstance(event, Counted):
            self.inventory = event.inventory

    def _sent_to_all(self, group: Sequence[AskPromise | InstallView | CloseRun]) -> None:
        """One and the same goes once to each worker that is left at that point of the answer."""
        left = [rank for rank in range(self.world.settings.workers) if rank not in self.out]
        first = group[0]
        if [each.rank for each in group] != left:
            self.fail(f"{group} do not go once to each of {left}")
        if any(replace(each, rank=first.rank) != first for each in group):
            self.fail(f"{group} are not the same for all")
        if isinstance(first, AskPromise):
            if first.ballot <= self.asked:
                self.fail(f"ballot {first.ballot} is asked for after {self.asked}")
            self.asked = first.ballot
        elif isinstance(first, InstallView):
            self._installed(first.view, left)

    def _silence(self, ballot: Ballot) -> None:
        for rank in range(self.world.settings.workers):
            if rank in self.out and rank not in self.gone:
                self.fail(f"{ballot} is counted before worker {rank} is fenced")
            if rank not in self.out and self.promised.get(rank, (0, 0)) < ballot:
                self.fail(f"{ballot} is counted before worker {rank} has promised it")

    def _installed(self, view: View, left: list[int]) -> None:
        before, self.view = self.view, view
        if list(view.members) != left or not self.out <= self.gone:
            self.fail(f"view {view.number} has {view.members}, {left} are left, {self.out - self.gone} can still write")
        standing: set[int] = set()
        if before is not None:
            if view.number <= before.number or view.step < before.step or view.number != self.asked:
                self.fail(f"view {view.number} from step {view.step} follows {before.number} from {before.step}")
            assert self.inventory is not None
            standing = ranges.leaves(node for nodes in self.inventory.sealed.values() for node in nodes)
        count = Counter(shard for shards in view.assigned for shard in shards)
        for shard in range(view.shards):
            if count[shard] > 1 or (count[shard] == 0 and shard not in standing):
                self.fail(f"shard {shard} of step {view.step} is computed by {count[shard]} members")
        later = [shards_of(view, rank, view.step + 1) for rank in view.members]
        if [shard for shards in later for shard in shards] != list(range(view.shards)):
            self.fail(f"view {view.number} spreads the shards as {later}")
        sizes = [len(shards) for shards in later]
        blocks = self.arena.blocks
        owned = Counter(owner(view, block, blocks) for block in range(blocks))
        if max(sizes) - min(sizes) > 1 or not set(owned) <= set(view.members):
            self.fail(f"view {view.number} spreads the shards as {later} and the blocks as {owned}")


class Frugal(Checker):
    """Nothing is redone that stands, nothing is taken from a survivor, and the lost shards go where there is least."""

    name = "frugal"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.view: View | None = None

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        view = next((each.view for each in answer if isinstance(each, InstallView)), None)
        if view is None:
            return
        if isinstance(event, Counted) and self.view is not None:
            incidents = [each for each in answer if isinstance(each, Incident)]
            self._compare(self.view, view, event.inventory, incidents)
        self.view = view

    def _compare(self, old: View, new: View, inventory: Inventory, incidents: list[Incident]) -> None:
        standing = ranges.leaves(node for nodes in inventory.sealed.values() for node in nodes)
        had = {rank: set(shards_of(old, rank, new.step)) for rank in old.members}
        has = {rank: set(shards_of(new, rank, new.step)) for rank in new.members}
        lost = {shard for rank in had if rank not in has for shard in had[rank] if shard not in standing}
        extra = {rank: has[rank] - had[rank] for rank in has}
        if any(had[rank] - has[rank] for rank in has) or set().union(*extra.values()) != lost:
            self.fail(f"{had} becomes {has}, where {lost} are lost and {standing} stand")
        load = {rank: len(has[rank] - standing) for rank in has}
        if max((load[rank] for rank in has if extra[rank]), default=0) > min(load.values()) + 1:
            self.fail(f"the lost shards {lost} go to {extra}, which leaves {load} to do")
        heirs = {shard: rank for rank, shards in extra.items() for shard in shards}
        order = [heirs[shard] for shard in sorted(lost)]
        if len(list(groupby(order))) > len(set(order)):
            self.fail(f"the lost shards {sorted(lost)} go to {order}: heirs get neighbours")
        told = {shard: heir for incident in incidents for shard, heir in incident.moved.items()}
        if not set(told.items()) <= set(heirs.items()):
            self.fail(f"it is told that {told} moved, and {heirs} did")
        for incident in incidents:
            mine = had.get(incident.rank, set()) & lost
            if set(incident.moved) != mine:
                self.fail(f"worker {incident.rank} lost {mine}, and {incident.moved} is told")


class Innocent(Checker):
    """Nobody is condemned who did nothing."""

    name = "innocent"
    forgive: ClassVar[bool] = True

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        for instruction in answer:
            if isinstance(instruction, Fence) and instruction.rank not in self.world.faults.harmed:
                if self.forgive and self._waits_for_a_view(event):
                    self.world.faults.harmed[instruction.rank] = Fault.HANG
                    continue
                self.fail(f"worker {instruction.rank} is condemned upon {event}, and nothing is wrong with it")

    def _waits_for_a_view(self, event: Event) -> bool:
        """Known, and written down in ADR 5: who waits for a view inside its own work looks hung when that is long.

        So it does for a moment after: the agent convicts by what it saw at its last tick.
        """
        if not isinstance(event, Lost) or event.cause.kind != "hung":
            return False
        standing = self.world.workers[event.rank].standing
        return standing.waits or self.world.scheduler.now - standing.waited_s < 1.0


class Told(Checker):
    """Each loss is told once, with the cause that came first, and with times in their order."""

    name = "told"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.causes: dict[int, str] = {}
        self.untold: set[int] = set()

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        if isinstance(event, Lost) and any(isinstance(each, Fence) and each.rank == event.rank for each in answer):
            self.causes[event.rank] = event.cause.kind
        for instruction in answer:
            if isinstance(instruction, Fence):
                self.untold.add(instruction.rank)
            elif isinstance(instruction, Incident):
                self._incident(instruction)

    def _incident(self, incident: Incident) -> None:
        rank, now = incident.rank, self.world.scheduler.now
        early = incident.cause.kind == "left_early"
        if rank not in self.untold and not early:
            self.fail(f"the loss of worker {rank} is told twice, or never was one")
        self.untold.discard(rank)
        if self.causes.get(rank, incident.cause.kind) != incident.cause.kind:
            self.fail(f"worker {rank} was lost as {self.causes[rank]}, and {incident.cause} is told")
        if not 0.0 < incident.lost_s <= incident.fenced_s <= now:
            self.fail(f"worker {rank} is told to be lost at {incident.lost_s} and fenced at {incident.fenced_s}")
        if incident.installed_s and not incident.lost_s <= incident.promised_s <= incident.installed_s == now:
            self.fail(f"worker {rank}: {incident}")
        if incident.installed_s and incident.fenced_s > incident.promised_s:
            self.fail(f"worker {rank}: {incident}")

    def ended(self, outcome: str) -> None:
        """Nothing is kept back."""
        if self.untold:
            self.fail(f"the run ended as {outcome}, and the loss of {self.untold} was never told")


class Verdict(Checker):
    """The run ends as it should: completed unless nobody was left, or too few, or there was no way to begin."""

    name = "verdict"

    def ended(self, outcome: str) -> None:
        """See the class."""
        world, settings = self.world, self.world.settings
        harmed = set(world.faults.harmed.values())
        out = next(checker for checker in world.check.checkers if isinstance(checker, Views)).out
        left = settings.workers - len(out)
        closed = [worker for worker in world.workers if worker.standing.closed]
        main_lost = world.core.view is not None and world.core.view.main in out
        failed = bool({Fault.RAISE, Fault.RAISE_ALL, Fault.FAIL} & harmed)
        right = {
            Outcome.DIVERGED: settings.diverges >= 0 or Fault.DRIFT in harmed,
            Outcome.NO_MEMORY: settings.no_memory,
            Outcome.TOO_FEW: 0 < left < settings.min_workers,
            Outcome.COMPLETED: left > 0 and len({worker.drifted for worker in closed}) < 2,
            Outcome.TAIL_LOST: main_lost,
            Outcome.UNFENCED: Fault.STUCK in harmed,
            Outcome.NO_STEPS: harmed <= {Fault.EXIT} and left == 0 and world.core.view is None,
            Outcome.SCRIPT_FAILED: failed and (left == 0 or (bool(closed) and main_lost)),
            Outcome.ALL_LOST: left == 0,
        }[Outcome(outcome)]
        well = settings.workers - len(world.faults.harmed)
        if well >= settings.min_workers and outcome in {Outcome.ALL_LOST, Outcome.TOO_FEW, Outcome.NO_STEPS}:
            right = False
        if not right:
            told = {rank: fault.value for rank, fault in world.faults.harmed.items()}
            self.fail(f"the run ended as {outcome}: {left} of {settings.workers} are left, harmed were {told}")
