"""What must hold whatever happens: laws that watch a coordinator from outside, by its events and instructions alone.

They keep books of their own, so that a transcript cannot be rewritten into something wrong, and the random explorer
can be believed. Each law says what is broken in a sentence. A `Life` is one process in a seat: (rank, life).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relume.core import ranges
from relume.core.events import (
    Accepted,
    AskPromise,
    CloseRun,
    Count,
    Counted,
    Dismiss,
    Done,
    EndRun,
    Event,
    Exited,
    Fence,
    Fenced,
    Incident,
    InstallView,
    Instruction,
    Joined,
    Leaving,
    Left,
    Level,
    Pledged,
    Progress,
    ProposeView,
    Scale,
    StartReplay,
    StartWorker,
    WithdrawView,
)
from relume.core.plan import Inventory
from relume.wire.messages import Ballot, View

Life = tuple[int, int]

TO_THE_LIVING = AskPromise | InstallView | CloseRun | ProposeView | WithdrawView | StartReplay


class Broken(AssertionError):
    """A law does not hold."""


@dataclass
class Laws:
    """Show it every event with its answer; it raises `Broken`."""

    workers: int
    min_workers: int = 1
    seats: int = 0
    spares: int = 0
    max_restarts: int = 0
    resume_step: int = 0
    view: View | None = None
    following: View | None = None
    proposed: View | None = None
    newest: Ballot = (0, 0)
    asked: Ballot = (0, 0)
    settled: Ballot = (0, 0)
    """The newest ballot that was counted."""
    restarts: int = 0
    ended_before: int = -1
    scaled: bool = False
    peace: bool = True
    over: bool = False
    lives: dict[int, int] = field(default_factory=dict)
    inside: dict[int, int] = field(default_factory=dict)
    """Which life of a rank may write: it is in the view in force, or in the one that follows."""
    out: set[Life] = field(default_factory=set)
    gone: set[Life] = field(default_factory=set)
    """Ended by itself or sent away: it writes no more, and nothing is held against it."""
    fenced: set[Life] = field(default_factory=set)
    exited: set[Life] = field(default_factory=set)
    forgiven: set[Life] = field(default_factory=set)
    """Lost, and then somebody asked for a number of workers: whoever comes for it is no restart."""
    joined: set[Life] = field(default_factory=set)
    leaving: set[Life] = field(default_factory=set)
    left: set[Life] = field(default_factory=set)
    level: dict[Life, int] = field(default_factory=dict)
    step: dict[Life, int] = field(default_factory=dict)
    done: dict[Life, int] = field(default_factory=dict)
    to_promise: set[Life] = field(default_factory=set)
    promised: dict[Life, Ballot] = field(default_factory=dict)
    accepted: set[Life] = field(default_factory=set)
    counted: dict[Ballot, Inventory] = field(default_factory=dict)
    told: Counter[Life] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.seats = max(self.seats, self.workers + self.spares)
        self.lives = dict.fromkeys(range(self.workers + self.spares), 0)

    def observe(self, event: Event, answer: Sequence[Instruction]) -> None:
        """Check `answer`, which is what the coordinator said to `event`."""
        rank = getattr(event, "rank", None)
        if rank is not None and self.lives.get(rank) != getattr(event, "life", 0):
            if answer:
                raise Broken(f"{event} is about another life of the seat, and is answered by {answer[0]}")
            return
        if self.over and answer:
            raise Broken(f"the run is over, and {answer[0]} comes after")
        self._note(event)
        for place, instruction in enumerate(answer):
            self._check(instruction, answer[place:])
        self._check_promptness()

    def who(self, rank: int) -> Life:
        """Return the life that sits in the seat now."""
        return rank, self.lives.get(rank, -1)

    def alive(self, who: Life) -> bool:
        """True if this process is there, and nothing is held against it."""
        return self.lives.get(who[0]) == who[1] and who not in self.out | self.gone

    # What is heard ----------------------------------------------------------------------------------------------

    def _note(self, event: Any) -> None:  # noqa: C901, PLR0912 - one flat case per event
        who = self.who(getattr(event, "rank", -1))
        match event:
            case Joined():
                self.joined.add(who)
            case Level():
                self.level[who] = event.step
            case Progress():
                self.step[who] = event.step
            case Done():
                self.done[who] = event.step
            case Pledged():
                self.promised[who] = max(self.promised.get(who, (0, 0)), event.ballot)
            case Accepted():
                if self.proposed is not None and event.number == self.proposed.number:
                    self.accepted.add(who)
            case Fenced():
                self.fenced |= {who} & self.out
            case Exited():
                self.exited |= {who} - self.out
            case Leaving():
                self.leaving.add(who)
            case Counted():
                self.counted[event.ballot] = event.inventory
                if event.ballot == self.settled and self._stands(event.inventory):
                    self._begin()
            case Scale():
                self.scaled = True
                self.forgiven |= self.out & self.fenced
        if isinstance(event, Exited) and who in self.leaving and self._may_go(who, event.taken):
            self.gone.add(who)
        if self.following is not None and self._has_begun(self.following):
            self._begin()

    def _may_go(self, who: Life, taken: int | None) -> bool:
        view = self.following
        if self.inside.get(who[0]) != who[1]:
            return True
        return view is not None and who[0] not in view.members and (taken is None or taken + 1 >= view.step)

    def _has_begun(self, view: View) -> bool:
        """True if somebody was seen in the first step of `view`, or past it."""
        inside = self.inside.items()
        left = any(who in self.gone for who in inside if who[0] not in view.members)
        return left or any(self.step.get(who, -1) >= view.step or self.done.get(who, -1) > view.step for who in inside)

    def _stands(self, inventory: Inventory) -> bool:
        return self.following is not None and inventory.complete + 1 >= self.following.step

    def _begin(self) -> None:
        assert self.following is not None
        self.view, self.following = self.following, None
        self._narrow()

    def _narrow(self) -> None:
        assert self.view is not None
        self.inside = {rank: life for rank, life in self.inside.items() if rank in self.view.members}

    # What is said -----------------------------------------------------------------------------------------------

    def _check(self, instruction: Instruction, rest: Sequence[Instruction]) -> None:  # noqa: C901, PLR0912 - flat
        who = self.who(getattr(instruction, "rank", -1))
        if isinstance(instruction, TO_THE_LIVING) and (not self.alive(who) or who in self.exited):
            raise Broken(f"{instruction} goes to a worker that is out")
        match instruction:
            case Fence():
                self._check_fence(who)
            case AskPromise():
                self._check_asked(who, instruction.ballot)
            case Count():
                self._check_silence(instruction.ballot)
                self.settled = instruction.ballot
            case ProposeView() if instruction.view is not self.proposed:
                self._check_proposed(instruction.view, [i.rank for i in rest if isinstance(i, ProposeView)])
            case WithdrawView():
                if self.proposed is not None and instruction.number != self.proposed.number:
                    raise Broken(f"{instruction} is about no proposal that is open")
                self.proposed = None
            case InstallView() if instruction.view not in {self.view, self.following}:
                to = [i.rank for i in rest if isinstance(i, InstallView) and i.view == instruction.view]
                self._check_installed(instruction.view, to)
            case StartWorker():
                self._check_started(instruction)
            case StartReplay():
                self._check_replay(who, instruction.end)
            case Dismiss():
                self._check_dismissed(who)
            case Left():
                self._check_left(who)
            case CloseRun():
                self._check_closed(who)
            case Incident():
                self._check_incident((instruction.rank, instruction.life))
            case EndRun():
                self._check_end(instruction)

    def _check_fence(self, who: Life) -> None:
        if not self.alive(who):
            raise Broken(f"worker {who} is fenced, and there is nothing to fence")
        self.out.add(who)
        if self.inside.get(who[0]) == who[1] and self.view is not None:
            self.peace, self.proposed = False, None  # rule 10: a loss cancels what is not decided

    def _check_asked(self, who: Life, ballot: Ballot) -> None:
        if self.inside.get(who[0]) != who[1] and who not in self.leaving:
            raise Broken(f"worker {who} is in no view, and is asked to promise {ballot}")
        if ballot < self.asked or (ballot > self.asked and ballot <= self.newest):
            raise Broken(f"ballot {ballot} is asked for after {max(self.asked, self.newest)}")
        self.to_promise = {*(() if ballot > self.asked else self.to_promise), who}
        self.asked = self.newest = ballot

    def _writers(self) -> list[Life]:
        """Return those that are in a view and not known to have left it."""
        return [who for who in self.inside.items() if who not in self.gone]

    def _check_silence(self, ballot: Ballot) -> None:
        """Invariant 4 and rule 4: the arena is read when nobody can write, and not before."""
        for who in self._writers():
            if who in self.out:
                if who not in self.fenced:
                    raise Broken(f"{ballot} is counted before worker {who} is fenced")
            elif self.promised.get(who, (0, 0)) < ballot:
                raise Broken(f"{ballot} is counted before worker {who} has promised it")

    def _check_promptness(self) -> None:
        """Nothing waits for a joiner, or for anything but promises and fences."""
        if self.asked <= self.settled or self.over or self.out - self.fenced:
            return
        if all(self.promised.get(who, (0, 0)) >= self.asked for who in self.to_promise if self.alive(who)):
            raise Broken(f"all have promised {self.asked} or are fenced, and it is not counted")

    # Views ------------------------------------------------------------------------------------------------------

    def _check_proposed(self, view: View, to: Iterable[int]) -> None:
        """Rule 10."""
        if self.view is None or self.following is not None or self.proposed is not None or not self.peace:
            raise Broken(f"{view.number} is proposed while there is no peace")
        if view.number <= self.newest:
            raise Broken(f"{view.number} is proposed after {self.newest}")
        begun = max([self.view.step, *(self.step.get(who, -1) for who in self._living())])
        if view.step <= begun:
            raise Broken(f"{view.number} is proposed from step {view.step}, and step {begun} has begun")
        if set(to) != set(self.inside):
            raise Broken(f"{view.number} is proposed to {to}, and in the view are {sorted(self.inside)}")
        if not self.scaled and (unasked := set(self.inside) - set(view.members) - {rank for rank, _ in self.leaving}):
            raise Broken(f"{unasked} should leave with {view.number}, and nobody has asked for that")
        self._check_members(view)
        self._check_shares(view, set())
        self.proposed, self.newest, self.accepted = view, view.number, set()

    def _living(self) -> list[Life]:
        return [who for who in self.lives.items() if self.alive(who)]

    def _check_members(self, view: View) -> None:
        if len(view.members) < self.min_workers:
            raise Broken(f"view {view.number} has {len(view.members)} members, and the run needs {self.min_workers}")
        for rank in view.members:
            who = self.who(rank)
            if not self.alive(who):
                raise Broken(f"worker {who} is out, and in view {view.number}")
            if self.view is not None and self.inside.get(rank) != who[1] and who not in self.level:
                raise Broken(f"worker {who} is in view {view.number} and was not level")

    def _check_shares(self, view: View, standing: set[int]) -> None:
        assigned = Counter(shard for shards in view.assigned for shard in shards)
        for shard in range(view.shards):
            if assigned[shard] > 1 or (assigned[shard] == 0 and shard not in standing):
                raise Broken(f"shard {shard} of step {view.step} is computed by {assigned[shard]} members")

    def _check_installed(self, view: View, to: Sequence[int]) -> None:
        leavers = {rank for rank in to if self.who(rank) in self.leaving} - set(view.members)
        if self.proposed is not None and view == self.proposed:
            self._check_decided(view, to)
            return
        if set(to) - leavers != set(view.members) or len(set(to)) != len(to):
            raise Broken(f"view {view.number} goes to {to}, and its members are {view.members}")
        self._check_members(view)
        standing: set[int] = set()
        if self.view is None:
            free = [who for who in self.out if who not in self.fenced]
            if free or any(self.who(rank) not in self.joined for rank in view.members):
                raise Broken(f"the first view is installed, and not all are there, or {free} could still write")
        else:
            standing = self._check_counted(view)
        self._check_shares(view, standing)
        self.peace = True
        self.view, self.following, self.newest = view, None, max(self.newest, view.number)
        self.inside = {rank: self.lives[rank] for rank in view.members}

    def _check_decided(self, view: View, to: Iterable[int]) -> None:
        """Rule 10: all who are in the view have accepted, and all who are or will be in one are told."""
        silent = [who for who in self.inside.items() if who not in self.accepted]
        if silent:
            raise Broken(f"view {view.number} is decided, and {silent} have not accepted it")
        if set(to) != set(self.inside) | set(view.members):
            raise Broken(f"view {view.number} is decided, and only {to} are told")
        self._check_members(view)
        self.following, self.proposed = view, None
        self.leaving |= {who for who in self.inside.items() if who[0] not in view.members}
        self.inside |= {rank: self.lives[rank] for rank in view.members}

    def _check_counted(self, view: View) -> set[int]:
        """Check a view that follows a count against it; return the shards that stand."""
        assert self.view is not None
        self._check_silence(view.number)
        inventory = self.counted[view.number]
        if not (self.view.number < view.number and self.view.step <= view.step):
            before = f"{self.view.number} from {self.view.step}"
            raise Broken(f"view {view.number} from step {view.step} follows {before}")
        if view.step != inventory.complete + 1:
            raise Broken(f"step {inventory.complete} is complete, and view {view.number} begins at {view.step}")
        survivors = {rank for rank in self.view.members if self.alive((rank, self.inside.get(rank, -1)))}
        if not survivors <= set(view.members):
            raise Broken(f"{survivors - set(view.members)} survive, and are not in view {view.number}")
        return ranges.leaves(node for nodes in inventory.sealed.values() for node in nodes)

    # Who comes and goes -----------------------------------------------------------------------------------------

    def _check_started(self, instruction: StartWorker) -> None:
        rank, before = instruction.rank, self.who(instruction.rank)
        if not 0 <= rank < self.seats or instruction.life != before[1] + 1:
            raise Broken(f"{instruction} follows life {before[1]} in one of {self.seats} seats")
        if before[1] >= 0 and self.alive(before):
            raise Broken(f"{instruction}, and the life before is still there")
        if before in self.out:
            if before not in self.fenced:
                raise Broken(f"{instruction}, and the life before could still write")
            self.restarts += before not in self.forgiven
            if self.restarts > self.max_restarts:
                raise Broken(f"{instruction} is the {self.restarts}th of {self.max_restarts} restarts")
        if self.ended_before >= 0 and self.view is not None and rank != self.view.main:
            raise Broken(f"{instruction}, and every step is done")
        self.lives[rank] = instruction.life

    def _check_replay(self, who: Life, end: int) -> None:
        if who not in self.joined or self.inside.get(who[0]) == who[1]:
            raise Broken(f"worker {who} is told to replay, and it has not joined or is in the view")
        if end != self.ended_before:
            raise Broken(f"worker {who} is told that the loop ended before step {end}, and not {self.ended_before}")

    def _check_dismissed(self, who: Life) -> None:
        if not self.alive(who) or self.inside.get(who[0]) == who[1]:
            raise Broken(f"worker {who} is dismissed, and it is in a view or out")
        if self.proposed is not None and who[0] in self.proposed.members:
            raise Broken(f"worker {who} is dismissed, and in view {self.proposed.number}, which is proposed")
        self.gone.add(who)

    def _check_left(self, who: Life) -> None:
        if who in self.left or who not in self.gone:
            raise Broken(f"worker {who} is told to have left, and it has not, or twice")
        self.left.add(who)

    def _check_closed(self, who: Life) -> None:
        assert self.view is not None
        ends = {self.done.get(self.who(rank)) for rank in self.view.members if self.alive(self.who(rank))}
        if self.ended_before < 0:
            if len(ends) != 1 or None in ends:
                raise Broken(f"the run is closed, and its members have left their loops before {ends}")
            self.ended_before = next(end for end in ends if end is not None)
        if who[0] not in self.view.members or self.done.get(who) is None:
            raise Broken(f"the run is closed for worker {who}, and it has not come so far")

    # What people are told ---------------------------------------------------------------------------------------

    def _check_incident(self, who: Life) -> None:
        self.told[who] += 1
        if self.told[who] > 1:
            raise Broken(f"the loss of worker {who} is told twice")
        if who not in self.out | self.exited:
            raise Broken(f"the loss of worker {who} is told, and it is not lost")

    def _check_end(self, end: EndRun) -> None:
        self.over = True
        untold = [who for who in self.out if not self.told[who]]
        if untold and end.outcome != "no_steps":
            raise Broken(f"the run ends, and nobody has heard of the loss of {untold}")
