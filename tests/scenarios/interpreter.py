"""Plays a transcript: lines of what happens, and under each, indented, what the pure core answers to it.

::

    # A comment. Before the first line it says what went wrong for people, and what must hold.
    formed workers=4 shards=8
        = steady in view 1.1 from step 0

    lost 2 signal "it was killed by signal 9" +1s
        fence 2
        ask 0-1,3 to promise 1.2
        = ballot 1.2, waits for 0-1,3 to promise and 2 to be fenced

A line may move the clock first (`+1s`, `+3ms`); it starts at zero with each fleet. The answer ends with `=` and where
the coordinator stands, if that has changed; `nothing` says that the event changed nothing. `RELUME_REWRITE=1 pytest
tests/scenarios` writes what the core answers now: read the difference before you commit it.

What may happen (RANKS are written `0,2-4,5.1`: a plain rank is the first life of its seat; ballots `1.2`)::

    fleet workers=N [seats=N spares=N restarts=N resume=STEP shards=S hang=SECONDS minimum=N epoch=N]    a new
                                        coordinator and its watch
    formed ... [total=N]                the same, and all have joined
    joined RANKS [terms=A,B gradient=BYTES shards=S total=N]         reserved       nomemory "TEXT"
    lost RANKS KIND "TEXT"     fenced RANKS     exited RANKS [taken=STEP]
    died RANKS STATUS [oom=N mib=N error=TEXT]
    promised RANKS BALLOT      counted BALLOT complete=STEP [RANK:[FIRST,END) ...] [taken=RANK:STEP,...]
    at RANKS STEP              done RANKS STEP [digest=WORD]     tick
    level RANKS STEP           accepted RANKS NUMBER             refused RANKS NUMBER STEP
    leaving RANKS "REASON"     scale N                           diverged "TEXT"
    seen RANKS PHASE [step=N shard=N counter=N stopped=yes]      look
    limits hang=SECONDS

`died` has the agent judge a wait status (a signal's name or an exit code); `seen` says what the progress block
shows, `look` has the watch judge it, and what the watch says becomes an event, as in the agent's loop.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from unittest import mock

from relume.agent import worker as agent
from relume.core.coordinator import TRANSITIONS, Coordinator, State
from relume.core.detect import Sample, Watch
from relume.core.events import (
    Accepted,
    Cause,
    Counted,
    Diverged,
    Done,
    Event,
    Exited,
    Fenced,
    Instruction,
    Joined,
    Leaving,
    Level,
    Lost,
    NoMemory,
    Pledged,
    Progress,
    Refused,
    Reserved,
    Scale,
    StartWorker,
    Tick,
)
from relume.core.limits import Limits
from relume.errors import ConfigError
from relume.wire.messages import Raised, Shape
from tests.scenarios import language
from tests.scenarios.language import Puzzled, ballot, numbers, seats
from tests.scenarios.laws import Laws

INDENT = "    "


@dataclass
class Stage:
    """One coordinator, its clock, its watch, and what was seen on the way. `peek` is shown every moment."""

    peek: Callable[[Coordinator, float], None] = lambda core, now: None
    now: float = language.CLOCK_S
    core: Coordinator | None = None
    rows: set[tuple[State, type]] = field(default_factory=set)
    _answer: list[Instruction] = field(default_factory=list)
    _lives: dict[int, int] = field(default_factory=dict)

    # One line ---------------------------------------------------------------------------------------------------

    def play(self, line: str) -> list[str]:
        """Return what the core answers to `line`, as lines."""
        passed, plain, named = language.words(line)
        self.now += passed
        act = getattr(self, f"_do_{plain[0]}", None) if plain else None
        if act is None:
            raise Puzzled(f"nothing is called {plain[0] if plain else line!r}")
        before = None if self.core is None else language.standing(self.core)
        self._answer = []
        try:
            lines: list[str] = act(*plain[1:], **named) or []
        except TypeError as error:
            raise Puzzled(str(error)) from error
        lines += language.told(self._answer, self._lives)
        after = None if self.core is None else language.standing(self.core)
        if after is not None and (after != before or plain[0] in {"fleet", "formed"}):
            lines.append(f"= {after}")
        return lines or ["nothing"]

    def _tell(self, event: Event) -> None:
        assert self.core is not None, "begin with `fleet` or `formed`"
        self.peek(self.core, self.now)
        if (self.core.state, type(event)) in TRANSITIONS:
            self.rows.add((self.core.state, type(event)))
        answer = self.core.handle(event, self.now)
        self._laws.observe(event, answer)
        self._answer += answer
        self._lives |= {each.rank: each.life for each in answer if isinstance(each, StartWorker)}

    # What may happen ----------------------------------------------------------------------------------------------

    def _do_fleet(self, *, workers: str, shards: str = "8", hang: str = "300", epoch: str = "1", **rest: str) -> None:
        names = {"minimum": "min_workers", "seats": "seats", "spares": "spares", "restarts": "max_restarts"}
        names["resume"] = "resume_step"
        if strange := rest.keys() - names.keys():
            raise Puzzled(f"a fleet has no {', '.join(strange)}")
        settings = {names[name]: int(value) for name, value in rest.items()}
        self.now = language.CLOCK_S
        self.core = Coordinator(int(workers), int(epoch), Limits.derive(float(hang)), **settings)
        self._watch, self._samples = Watch(float(hang)), dict[int, Sample]()
        self._laws = Laws(int(workers), **settings)
        self._lives = {}
        self._shards = shards

    def _do_formed(self, *, workers: str, spares: str = "0", total: str = "0", **settings: str) -> None:
        self._do_fleet(workers=workers, spares=spares, **settings)
        self._do_joined(f"0-{int(workers) + int(spares) - 1}", total=total)
        self._do_reserved()
        self._answer = []

    def _do_joined(
        self,
        ranks: str,
        *,
        terms: str = "same",
        gradient: str = "4096",
        shards: str | None = None,
        total: str = "0",
    ) -> None:
        shape = Shape(int(gradient), 0, 1, int(shards or self._shards))
        for rank, life in seats(ranks):
            self._tell(Joined(rank, tuple(terms.split(",")), shape, int(total), life))

    def _do_reserved(self) -> None:
        self._tell(Reserved())

    def _do_diverged(self, text: str) -> None:
        self._tell(Diverged(text))

    def _do_nomemory(self, text: str) -> None:
        self._tell(NoMemory(text))

    def _do_lost(self, ranks: str, kind: str, text: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Lost(rank, Cause(kind, text), life))

    def _do_died(self, ranks: str, status: str, *, oom: str = "0", mib: str = "0", error: str = "") -> None:
        named = {number.name: number.value for number in signal.Signals}
        wait_status = named.get(status) or int(status) << 8
        raised = Raised(*error.split(" at "), traceback="...") if error else None
        for rank, life in seats(ranks):
            bare = {each.name: None for each in dataclasses.fields(agent.Worker) if each.init and _is_needed(each)}
            process = agent.Worker(**bare)  # type: ignore[arg-type]
            process.raised, process.resident_bytes = raised, int(mib) << 20
            with mock.patch.object(agent, "oom_kills", return_value=7 + int(oom)):
                self._tell(Lost(rank, agent.cause_of_exit(process, wait_status, 7), life))

    def _do_fenced(self, ranks: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Fenced(rank, life))

    def _do_exited(self, ranks: str, *, taken: str = "") -> None:
        for rank, life in seats(ranks):
            self._tell(Exited(rank, life, int(taken) if taken else None))

    def _do_promised(self, ranks: str, number: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Pledged(rank, ballot(number), life))

    def _do_counted(self, number: str, *nodes: str, complete: str, taken: str = "") -> None:
        self._tell(Counted(ballot(number), language.inventory(complete, nodes, taken)))

    def _do_at(self, ranks: str, step: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Progress(rank, int(step), life))

    def _do_done(self, ranks: str, step: str, *, digest: str = "") -> None:
        for rank, life in seats(ranks):
            self._tell(Done(rank, int(step), digest, life))

    def _do_level(self, ranks: str, step: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Level(rank, int(step), life))

    def _do_accepted(self, ranks: str, number: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Accepted(rank, ballot(number), life))

    def _do_refused(self, ranks: str, number: str, step: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Refused(rank, ballot(number), int(step), life))

    def _do_leaving(self, ranks: str, reason: str) -> None:
        for rank, life in seats(ranks):
            self._tell(Leaving(rank, reason, life))

    def _do_scale(self, workers: str) -> None:
        self._tell(Scale(int(workers)))

    def _do_tick(self) -> None:
        self._tell(Tick())

    def _do_seen(
        self, ranks: str, phase: str, *, step: str = "0", shard: str = "-1", counter: str = "1", stopped: str = "no"
    ) -> list[str]:
        for rank in numbers(ranks):
            sample = Sample(rank, int(counter), phase, int(step), int(shard), stopped == "yes")
            self._samples[rank] = sample
        return self._look()

    def _do_look(self) -> list[str]:
        return self._look()

    def _look(self) -> list[str]:
        """As the agent's tick does: who is out is not looked at any more."""
        assert self.core is not None
        alive = self.core.alive()
        samples = [sample for rank, sample in sorted(self._samples.items()) if rank in alive]
        culprits = self._watch.look(samples, self.now)
        for rank, cause in culprits:
            self._tell(Lost(rank, cause, self.core.life(rank)))
        return [f"culprit {rank} {cause.kind}: {cause.text}" for rank, cause in culprits]

    def _do_limits(self, *, hang: str) -> list[str]:
        try:
            limits = Limits.derive(float(hang))
        except ConfigError as error:
            return [f"refused: {error}"]
        return [f"promise {limits.promise_s:g}s, hang {limits.hang_s:g}s, start {limits.start_s:g}s"]


def _is_needed(each: dataclasses.Field[object]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def rendered(text: str, stage: Stage) -> Iterator[str]:
    """Yield the lines of the transcript `text` as they are when the core answers as it does now."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(INDENT):
            continue  # an answer: it is made anew
        yield line
        if line and not line.startswith("#"):
            try:
                answer = stage.play(line)
            except Exception as error:
                error.add_note(f"line {number}: {line}")
                raise
            yield from (INDENT + each for each in answer)


def transcripts() -> list[Path]:
    """Return every transcript, by name."""
    return sorted(Path(__file__).parent.glob("*.txt"))


def twin(core: Coordinator) -> Coordinator:
    """Return a copy of `core` that lives its own life."""
    other = copy.copy(core)
    other._members = {rank: copy.copy(member) for rank, member in core._members.items()}
    other._open, other._out = list(core._open), []
    other._proposal, other._staffing = copy.deepcopy(core._proposal), copy.deepcopy(core._staffing)
    return other


def moments() -> list[tuple[Coordinator, float]]:
    """Return copies of the coordinators that the transcripts show, one of those that look alike but for numbers."""
    found: dict[object, tuple[Coordinator, float]] = {}

    def keep(core: Coordinator, now: float) -> None:
        counts = len(core.alive()), len(core.party()), len(core._level())
        key = re.sub(r"[\d.,-]+", "#", language.standing(core)), counts
        if key not in found:
            found[key] = (twin(core), now)

    for path in transcripts():
        for _ in rendered(path.read_text(), Stage(peek=keep)):
            pass
    return list(found.values())
