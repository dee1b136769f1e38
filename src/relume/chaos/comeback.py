"""How a fleet came back to full strength after each kill. Pure: events and records in, answers out.

**Who takes whose place.** A kill of a member leaves a place open. A process that a later view has, and the view before
it had not, takes the place that has been open for longest. With spares that is seldom the next life of the victim's own
rank: that one becomes a spare. Whoever was no member when it was killed (a joiner on its way, a spare) left no place
open; what counts for it is its rank's next life.

**Recovered.** A kill is recovered when

1. *respawned*: a process of the same rank, one life higher, was started;
2. *verified*: whoever took the place had the digest of its state compared with the mirror's (the agent's event
   `worker_level`); one that is in the run's first view loaded nothing;
3. *admitted*: a view that was told after the kill has it;
4. *contributed*: it recorded a later step in which it computed a shard, as a member (a step in which the view gives it
   none counts too). A record is written when the step is committed.

Whoever took the place may be killed before it gets so far; then the kill is recovered if that second kill is. One who
was no member and whose rank's next life is a spare at the end that nobody needed is recovered when that came level.

**Kill to full strength** is the time from the kill to the first instant at which there are as many members as somebody
asked for (`--workers`, later `relume scale`) and all of them work: a view with so many is in force, and each of its
members that the view at the kill did not have has taken the result of a step as a member. It holds detection, start,
imports, replay, the two steps that an admission takes, and that step. None where the run ended before. If others died
meanwhile, it is the time until they are all there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relume.chaos.beside import Beside
from relume.chaos.evidence import Evidence, Record, Who
from relume.core.view import shards_of
from relume.wire.messages import View


@dataclass(frozen=True, slots=True)
class Recovery:
    """What came after one kill; times are nanoseconds from the kill, None for what never came.

    `heir` took the victim's place. `missing` says what the kill lacks to be recovered, "" if nothing.
    """

    who: Who
    killed_ns: int
    member: bool
    heir: Who | None
    respawned_ns: int | None
    level_ns: int | None
    admitted_ns: int | None
    worked_ns: int | None
    full_strength_ns: int | None
    missing: str

    @property
    def recovered(self) -> bool:
        """True if nothing is missing."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class Scaling:
    """So many `workers` were asked for, and a view had so many after `reached_ns` (None: none had)."""

    workers: int
    reached_ns: int | None


@dataclass(frozen=True, slots=True)
class Comeback:
    """A run whose workers came back: after each kill, after each time that all were killed, and meanwhile."""

    recoveries: tuple[Recovery, ...]
    all_killed: tuple[tuple[Recovery, ...], ...] = ()
    scalings: tuple[Scaling, ...] = ()
    beside: Beside | None = None


def recoveries(evidence: Evidence, killed_ns: Mapping[Who, int], workers: int, spares: int = 0) -> tuple[Recovery, ...]:
    """Return what came after each kill, in their order. `workers`: members asked for at first."""
    return _Return(evidence, killed_ns, workers, spares).all()


@dataclass(frozen=True, slots=True)
class _Stand:
    """A view as it was told: when, and which processes were its members."""

    at_ns: int
    view: View
    members: frozenset[Who]


class _Return:
    def __init__(self, evidence: Evidence, killed_ns: Mapping[Who, int], workers: int, spares: int) -> None:
        self._evidence, self._killed_ns, self._spares = evidence, dict(killed_ns), spares
        self._workers = workers
        self._stands = [_Stand(evidence.installed_ns[v.number], v, evidence.members(v)) for v in evidence.views]
        self._live: dict[Who, list[Record]] = {}
        for _, record in sorted(evidence.records.items()):
            self._live.setdefault(record.who, []).append(record)
        self._admitted = self._admissions()
        self._heirs = self._match()

    def all(self) -> tuple[Recovery, ...]:
        """Return one recovery per kill."""
        return tuple(self._recovery(who) for who in sorted(self._killed_ns, key=lambda who: self._killed_ns[who]))

    def _recovery(self, who: Who) -> Recovery:
        killed, heir = self._killed_ns[who], self._heirs.get(who)
        next_life = (who[0], who[1] + 1)
        level = self._evidence.level.get(heir) if heir else None
        admitted = self._admitted.get(heir) if heir else None
        worked = self._worked(heir, admitted) if heir and admitted else None

        def since(at_ns: int | None) -> int | None:
            return None if at_ns is None else at_ns - killed

        return Recovery(
            who=who,
            killed_ns=killed,
            member=self._was_member(who),
            heir=heir,
            respawned_ns=since(self._evidence.started_ns.get(next_life)),
            level_ns=since(level[0]) if level else None,
            admitted_ns=since(admitted.at_ns) if admitted else None,
            worked_ns=since(worked),
            full_strength_ns=since(self._whole_ns(who)),
            missing=self._missing(who),
        )

    # Who takes whose place ------------------------------------------------------------------------------------

    def _at(self, at_ns: int) -> _Stand | None:
        """Return the newest view at that time."""
        return next((stand for stand in reversed(self._stands) if stand.at_ns <= at_ns), None)

    def _was_member(self, who: Who) -> bool:
        stand = self._at(self._killed_ns[who])
        return not who[1] if stand is None else who in stand.members

    def _admissions(self) -> dict[Who, _Stand]:
        """Return the first view of each process, if that is not the run's first."""
        admitted: dict[Who, _Stand] = {}
        before: frozenset[Who] = frozenset()
        for stand in self._stands:
            for who in sorted(stand.members - before):
                if stand is not self._stands[0] or who[1]:
                    admitted.setdefault(who, stand)
            before = stand.members
        return admitted

    def _match(self) -> dict[Who, Who]:
        """Return who took whose place: those who were no members have their rank's next life, if anybody."""
        open_places = sorted((at_ns, who) for who, at_ns in self._killed_ns.items() if self._was_member(who))
        heirs = {}
        for heir, stand in sorted(self._admitted.items(), key=lambda item: (item[1].at_ns, item[0])):
            place = next((place for place in open_places if place[0] < stand.at_ns), None)
            if place is not None:
                open_places.remove(place)
                heirs[place[1]] = heir
        for rank, life in self._killed_ns:
            after = (rank, life + 1)
            if not self._was_member((rank, life)) and after in self._evidence.pids:
                heirs[rank, life] = after
        return heirs

    # Recovered ------------------------------------------------------------------------------------------------

    def _missing(self, who: Who, depth: int = 0) -> str:
        rank, life = who
        if (rank, life + 1) not in self._evidence.pids:
            return f"rank {rank} was not taken by another process"
        heir = self._heirs.get(who)
        if heir is None:
            return "nobody was admitted in its place"
        lacks = self._lacks(heir)
        if lacks and heir in self._killed_ns and depth < len(self._killed_ns):
            return self._missing(heir, depth + 1)
        return lacks and f"{_named(heir)}, in its place, {lacks}"

    def _lacks(self, heir: Who) -> str:
        admitted = self._admitted.get(heir)
        if heir not in self._evidence.level and not (admitted and admitted is self._stands[0]):
            return "never came level"
        if admitted is None:
            spare = self._spares and heir not in self._evidence.lost
            return "" if spare else "was not admitted"
        return "" if self._worked(heir, admitted) else "recorded no step in which it took part"

    def _worked(self, heir: Who, admitted: _Stand) -> int | None:
        """Return when it had taken the first step in which it did its share."""
        for record in self._live.get(heir, ()):
            view = self._evidence.view(record.epoch_view) or admitted.view
            idle = heir[0] in view.members and not shards_of(view, heir[0], record.step)
            if record.shards or idle:
                return record.taken_ns
        return None

    # Full strength --------------------------------------------------------------------------------------------

    def _whole_ns(self, who: Who) -> int | None:
        """Return when the fleet was at full strength again; see the module's docstring."""
        killed = self._killed_ns[who]
        then = self._at(killed)
        old = then.members if then else frozenset()
        loss = self._evidence.lost.get(who)
        for stand in self._stands:
            if stand.at_ns <= killed or (loss and stand.view.number < loss.view):
                continue
            if who in stand.members or len(stand.members) < self._target(stand.at_ns):
                continue
            taken = [self._first_taken(member, stand) for member in sorted(stand.members - old)]
            known = [at_ns for at_ns in taken if at_ns is not None]
            if known and len(known) == len(taken):
                return max(known)
        return None

    def _first_taken(self, member: Who, stand: _Stand) -> int | None:
        steps = (record.taken_ns for record in self._live.get(member, ()) if record.step >= stand.view.step)
        return next(steps, None)

    def _target(self, at_ns: int) -> int:
        return [self._workers, *(workers for asked_ns, workers in self._evidence.scaled if asked_ns <= at_ns)][-1]


def scalings(evidence: Evidence, asked: Iterable[tuple[int, int]]) -> tuple[Scaling, ...]:
    """Return when each number of workers that somebody asked for was reached, before the next one was asked for."""
    asked = sorted(asked)
    told = [(evidence.installed_ns[view.number], len(view.members)) for view in evidence.views]
    found = []
    for i, (at_ns, workers) in enumerate(asked):
        until = asked[i + 1][0] if i + 1 < len(asked) else None
        before = [members for told_ns, members in told if told_ns <= at_ns][-1:]
        later = [(told_ns, members) for told_ns, members in told if told_ns > at_ns]
        reached = [told_ns for told_ns, members in later if members == workers and (until is None or told_ns < until)]
        if not reached and before == [workers] and (not later or (until is not None and later[0][0] > until)):
            reached = [at_ns]  # there were so many all the time
        found.append(Scaling(workers, reached[0] - at_ns if reached else None))
    return tuple(found)


def _named(who: Who) -> str:
    rank, life = who
    return f"worker {rank} (life {life})" if life else f"worker {rank}"
