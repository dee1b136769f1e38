"""Laws about what the coordinator decides: views, heirs, whom it condemns, what it tells, and how the run ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from relume.core import ranges
from relume.core.events import (
    Accepted,
    AskPromise,
    CloseRun,
    Count,
    Counted,
    Dismiss,
    EndRun,
    Event,
    Fence,
    Incident,
    InstallView,
    Instruction,
    Joined,
    Lost,
    Tell,
)
from relume.core.plan import Inventory
from relume.core.verdict import Outcome
from relume.core.view import owner, shards_of
from relume.simulate.checkers.base import Checker
from relume.simulate.checkers.books import Books
from relume.simulate.faults import Fault
from relume.simulate.memory import Who
from relume.wire.messages import Ballot, View

if TYPE_CHECKING:
    from relume.simulate.worker import Worker
    from relume.simulate.world import World


class Views(Checker):
    """Ballots and views only go forward, and a view holds those whom it should.

    All who are left of the one before, once they have promised or are fenced, or have agreed; and besides them only
    those who stand level.
    """

    name = "views"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self.asked: Ballot = (0, 0)
        self.newest: Ballot = (0, 0)
        self.over = False

    def begun(self, worker: Worker, step: int, view: View) -> None:
        """Note that a view is in force."""
        del worker, step
        self.books.begun(view)

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        if self.over and answer:
            self.fail(f"the run is over, and {answer[0]} comes after")
        self.books.heard(event)
        sent: set[str] = set()
        for place, instruction in enumerate(answer):
            if isinstance(instruction, Fence | Dismiss):
                self._sent_off(instruction)
            elif isinstance(instruction, Count):
                self._silence(instruction.ballot)
                self.asked = max(self.asked, instruction.ballot)  # with nobody left there was nobody to ask
            elif isinstance(instruction, EndRun):
                self.over = True
            elif isinstance(instruction, AskPromise | InstallView | CloseRun):
                kind = type(instruction)
                if kind.__name__ not in sent:
                    sent.add(kind.__name__)
                    self._sent_to_all(event, [each for each in answer[place:] if isinstance(each, kind)])
            self.books.said(event, instruction)

    def _sent_off(self, instruction: Fence | Dismiss) -> None:
        who, books = self.books.now(instruction.rank), self.books
        if isinstance(instruction, Fence) and who in books.out:
            self.fail(f"worker {instruction.rank} is fenced twice")
        closed = self.world.core.ended_before >= 0  # then nobody needs it, not even for a view that was to follow
        if isinstance(instruction, Dismiss) and who in books.members() and not closed:
            self.fail(f"worker {instruction.rank} is dismissed and in view {books.view}")

    def _sent_to_all(self, event: Event, group: Sequence[AskPromise | InstallView | CloseRun]) -> None:
        """One and the same goes once to each worker whom it concerns at that point of the answer."""
        books, first = self.books, group[0]
        addressed = [books.now(each.rank) for each in group]
        if len(set(addressed)) != len(addressed) or not all(books.here(who) for who in addressed):
            self.fail(f"{group} go to some that are not there, or twice")
        if any(replace(each, rank=first.rank) != first for each in group):
            self.fail(f"{group} are not the same for all")
        if isinstance(first, AskPromise):
            self._asked(first.ballot, set(addressed))
        elif isinstance(first, InstallView):
            self._installed(event, first.view, set(addressed))
        elif not set(addressed) <= books.of(first.view):
            self.fail(f"{group} go to some that are not in {first.view}")

    def _asked(self, ballot: Ballot, addressed: set[Who]) -> None:
        if not self.books.members() <= addressed <= self.books.members() | self.books.maybe():
            self.fail(f"ballot {ballot} is asked of {addressed}, and {self.books.members()} may write")
        if ballot <= max(self.asked, self.newest):
            self.fail(f"ballot {ballot} is asked for after {self.asked}")
        self.asked = ballot

    def _silence(self, ballot: Ballot) -> None:
        books = self.books
        for who in books.inside | books.before:
            if who in books.out and who not in books.gone:
                self.fail(f"{ballot} is counted before worker {who} is fenced")
        for who in books.members():
            if books.promised.get(who, (0, 0)) < ballot:
                self.fail(f"{ballot} is counted before worker {who} has promised it")

    def _installed(self, event: Event, view: View, addressed: set[Who]) -> None:
        books, before, members = self.books, self.books.view, self.books.of(view)
        planned = isinstance(event, Accepted)
        if not all(books.here(who) for who in members) or len(members) < self.world.core.min_workers:
            self.fail(f"view {view.number} has {view.members}, and not all of them are there, or they are too few")
        if view.number <= self.newest:
            self.fail(f"view {view.number} comes after {self.newest}")
        self.newest = view.number
        if before is not None:
            joiners = members - books.members() - books.maybe()
            if any(who not in books.level for who in joiners):
                self.fail(f"view {view.number} has {joiners} in it, and only {books.level} are level")
            if planned:
                self._agreed(view, before, members, addressed)
            else:
                self._counted(view, before, members, addressed)
        elif addressed != members:
            self.fail(f"the first view goes to {addressed} and has {members}")
        self._spread(view, planned=planned)

    def _agreed(self, view: View, before: View, members: set[Who], addressed: set[Who]) -> None:
        """A view by agreement: all have promised not to begin its step without it, and none has (rule 10)."""
        books = self.books
        accepted = books.accepted.get(view.number, set())
        if not books.members() <= accepted:
            self.fail(f"view {view.number} was accepted by {accepted}, and {books.members()} are members")
        if not books.members() | members <= addressed or view.step <= before.step or view.number <= self.asked:
            self.fail(f"view {view.number} from step {view.step} goes to {addressed}, after {before.number}")

    def _counted(self, view: View, before: View, members: set[Who], addressed: set[Who]) -> None:
        """A view by ballot: all who are left are in it."""
        books = self.books
        extra = addressed - members  # those that go and may have promised in their last step hear of it, too
        left = books.members() - self._leavers()
        if not members <= addressed or not extra <= books.maybe() | self._leavers() or not left <= members:
            self.fail(f"view {view.number} has {members} and goes to {addressed}; {books.members()} are left")
        if view.step < before.step or view.number != self.asked:
            self.fail(f"view {view.number} from step {view.step} follows {before.number} from {before.step}")
        self._silence(view.number)

    def _leavers(self) -> set[Who]:
        """Return those that only the view has in it that is dropped now."""
        following = self.books.following
        return (
            set()
            if following is None or self.books.view is None
            else (self.books.of(following) - self.books.of(self.books.view))
        )

    def _spread(self, view: View, *, planned: bool) -> None:
        standing: set[int] = set()
        if self.books.inventory is not None and not planned:
            standing = ranges.leaves(node for nodes in self.books.inventory.sealed.values() for node in nodes)
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
        self.books = Books(world.settings.workers + world.settings.spares)
        self._old: View | None = None

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        self.books.heard(event)
        if isinstance(event, Counted) and event.ballot == self.books.counting:
            self._old = self.books.view
        view = next((each.view for each in answer if isinstance(each, InstallView)), None)
        if view is not None and not isinstance(event, Accepted) and self.books.view is not None:
            incidents = [each for each in answer if isinstance(each, Incident) and each.installed_s]
            assert self._old is not None
            assert self.books.inventory is not None
            self._compare(self._old, view, self.books.inventory, incidents)
        for instruction in answer:
            self.books.said(event, instruction)

    def _compare(self, old: View, new: View, inventory: Inventory, incidents: list[Incident]) -> None:
        standing = ranges.leaves(node for nodes in inventory.sealed.values() for node in nodes)
        had = {rank: set(shards_of(old, rank, new.step)) for rank in old.members}
        has = {rank: set(shards_of(new, rank, new.step)) for rank in new.members}
        lost = {shard for rank in had if rank not in has for shard in had[rank] if shard not in standing}
        own = {rank: ranges.leaves(inventory.sealed.get(rank, ())) for rank in has}  # a dead predecessor's, now its own
        extra = {rank: has[rank] - had.get(rank, set()) - own[rank] for rank in has}
        kept = {rank: had.get(rank, set()) - has[rank] for rank in has}
        if any(kept.values()) or set().union(*extra.values()) != lost:
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
            if set(incident.moved) != (mine if incident.rank not in has else set()):
                self.fail(f"worker {incident.rank} lost {mine}, and {incident.moved} is told")


class Innocent(Checker):
    """Nobody is condemned who did nothing."""

    name = "innocent"

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        world = self.world
        for instruction in answer:
            if not isinstance(instruction, Fence):
                continue
            worker = world.now_at(instruction.rank)
            cause = event.cause.kind if isinstance(event, Lost) else ""
            told_to_go = worker.who in world.faults.told_to_go and world.core.view is None
            misled = cause == "profile" and Fault.DRIFT in world.faults.harmed.values()
            misled = misled or (isinstance(event, Joined) and world.settings.diverges >= 0)
            if worker.who not in world.faults.harmed and not told_to_go and not misled:
                self.fail(f"worker {instruction.rank} is condemned upon {event}, and nothing is wrong with it")


class Told(Checker):
    """Each loss is told once, with the cause that came first, and with times in their order."""

    name = "told"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self.causes: dict[Who, str] = {}
        self.untold: set[Who] = set()

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """See the class."""
        for instruction in answer:
            if isinstance(instruction, Fence):
                who = self.books.now(instruction.rank)
                self.untold.add(who)
                if isinstance(event, Lost) and event.rank == who.rank:
                    self.causes[who] = event.cause.kind
            elif isinstance(instruction, Incident):
                self._incident(instruction)
            self.books.said(event, instruction)

    def _incident(self, incident: Incident) -> None:
        who, now = Who(incident.rank, incident.life), self.world.scheduler.now
        early = incident.cause.kind == "left_early"
        if who not in self.untold and not early:
            self.fail(f"the loss of worker {who} is told twice, or never was one")
        self.untold.discard(who)
        if self.causes.get(who, incident.cause.kind) != incident.cause.kind:
            self.fail(f"worker {who} was lost as {self.causes[who]}, and {incident.cause} is told")
        if not 0.0 < incident.lost_s <= incident.fenced_s <= now:
            self.fail(f"worker {who} is told to be lost at {incident.lost_s} and fenced at {incident.fenced_s}")
        if incident.installed_s and not incident.lost_s <= incident.promised_s <= incident.installed_s == now:
            self.fail(f"worker {who}: {incident}")
        if incident.installed_s and incident.fenced_s > incident.promised_s:
            self.fail(f"worker {who}: {incident}")

    def ended(self, outcome: str) -> None:
        """Nothing is kept back."""
        if self.untold:
            self.fail(f"the run ended as {outcome}, and the loss of {self.untold} was never told")


class Verdict(Checker):
    """The run ends as it should: completed unless nobody was left, or too few, or there was no way to begin."""

    name = "verdict"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.books = Books(world.settings.workers + world.settings.spares)
        self.paused_s: float | None = None

    def told(self, event: Event, answer: Sequence[Instruction]) -> None:
        """Note who is left, and since when the run waits."""
        for instruction in answer:
            if isinstance(instruction, Tell) and instruction.topic == "paused":
                self.paused_s = self.world.scheduler.now
            elif isinstance(instruction, InstallView):
                self.paused_s = None
        self.books.told(event, answer)

    def ended(self, outcome: str) -> None:
        """See the class."""
        world, settings = self.world, self.world.settings
        harmed = set(world.faults.harmed.values())
        began = world.core.view is not None
        left = len(self.books.members() if began else self.books.everyone())
        here = len(self.books.everyone())
        closed = [worker for worker in world.newest if worker.standing.closed]
        main_lost = began and self.books.now(world.core.view.main) in self.books.out  # type: ignore[union-attr]
        failed = bool({Fault.RAISE, Fault.RAISE_ALL, Fault.FAIL, Fault.BREAK} & harmed)
        right = {
            Outcome.DIVERGED: settings.diverges >= 0 or bool({Fault.DRIFT, Fault.MISFIT} & harmed),
            Outcome.NO_MEMORY: settings.no_memory,
            Outcome.TOO_FEW: here > 0 and left < settings.min_workers,
            Outcome.COMPLETED: bool(closed) and len({worker.state() for worker in closed}) < 2,
            Outcome.TAIL_LOST: main_lost,
            Outcome.UNFENCED: Fault.STUCK in harmed,
            Outcome.NO_STEPS: harmed <= {Fault.EXIT} and left == 0 and not began,
            Outcome.SCRIPT_FAILED: failed and (left == 0 or (bool(closed) and main_lost)),
            Outcome.ALL_LOST: left == 0,
        }[Outcome(outcome)]
        if not right or self._gave_up(outcome, left):
            told = {tuple(who): fault.value for who, fault in world.faults.harmed.items()}
            self.fail(f"the run ended as {outcome} ({world.reason}): {left} are left, harmed were {told}")

    def _gave_up(self, outcome: str, left: int) -> bool:
        """Return whether the run ended for want of workers although there were enough, or more could have come."""
        world, settings = self.world, self.world.settings
        if outcome not in {Outcome.ALL_LOST, Outcome.TOO_FEW, Outcome.NO_STEPS, Outcome.SCRIPT_FAILED}:
            return False
        touched = {who.rank for who in world.faults.harmed} | {who.rank for who in world.faults.told_to_go}
        well = settings.workers - sum(rank < settings.workers for rank in touched)
        if well >= settings.min_workers and not world.faults.scaled and outcome != Outcome.SCRIPT_FAILED:
            return True
        waited = self.paused_s is not None and world.scheduler.now - self.paused_s >= world.limits.pause_s
        kinds = {Fault.KILL, Fault.MASSACRE, Fault.ALL}
        died = {who.rank for who, fault in world.faults.harmed.items() if fault in kinds and who.life < 2}
        others = {who.rank for who, fault in world.faults.harmed.items() if fault not in kinds or who.life >= 2}
        here = {who.rank for who in self.books.everyone() | self.books.away}
        may_come = len(died - others - here - {who.rank for who in world.faults.told_to_go})
        enough = min(may_come, settings.max_restarts - world.core.restarts) + left >= max(1, settings.min_workers)
        return enough and not waited and settings.every > 0 and outcome != Outcome.SCRIPT_FAILED
