"""`relume scale`: ask a live run for another number of workers, and wait for it if told to."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relume.agent.status import ask, ask_scale
from relume.cli.which import add_run
from relume.core.words import plural
from relume.errors import ConfigError
from relume.observe.find import find_run
from relume.observe.observer import Observer, Snapshot
from relume.observe.standing import Standing
from relume.observe.wording import clock, duration, listed, named
from relume.wire.messages import ScaleReply, StatusReply

VERSION = 1
"""Of the JSON object. A field may be added within a version."""
PERIOD_S = 0.1
UNANSWERED_MAX = 3
"""So many questions in a row without an answer mean that nobody is there."""
GONE = "the run is over, or its agent does not answer any more"
NOT_REACHED = 1
REFUSED = 2


@dataclass(frozen=True, slots=True)
class Reached:
    """How the waiting ended: after `seconds`, with these members; `missed` says why not as asked ("": as asked)."""

    members: tuple[int, ...]
    seconds: float
    missed: str = ""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume scale",
        description="Ask a live run for N workers. More: they start, replay until they are level, and are taken in. "
        "Fewer: those who go finish their step first. The bits of the run stay the same.",
        epilog="exit codes: 0 the run has taken it up (with --wait: it has so many members); 1 --wait was in vain; "
        "2 the run refused, or there is none",
        allow_abbrev=False,
    )
    add = result.add_argument
    add("workers", type=_count, metavar="N", help="how many workers the run shall have")
    add_run(result)
    add("--wait", action="store_true", help="wait until the run has so many members")
    add("--timeout", type=_seconds, default=300.0, metavar="S", help="with --wait: for so long at most (default 300)")
    add("--json", action="store_true", help="print one JSON object")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume scale`; return the exit code."""
    options = parser().parse_intermixed_args(argv)  # flags may stand between N and RUN
    run = _live(Observer(find_run(options.run, options.run_dir_root)).look())
    reply = ask_scale(run, options.workers)
    if reply is None:
        raise ConfigError(f"run {run} did not answer: `relume status {run}` says how it stands")
    if not options.json:
        _tell(run, reply)
    reached = None
    if options.wait and not reply.refused:
        say: Callable[[str], None] = _quiet if options.json else _say
        try:
            reached = wait(run, options.workers, options.timeout, say)
        except KeyboardInterrupt:
            print("stopped waiting; the run goes on, and goes on scaling", file=sys.stderr)
            return 130
    if options.json:
        print(json.dumps(_as_json(run, reply, reached)))
    elif reached is not None:
        _tell_reached(reached)
    return REFUSED if reply.refused else NOT_REACHED if reached is not None and reached.missed else 0


def wait(
    run: str,
    workers: int,
    timeout_s: float,
    say: Callable[[str], None],
    *,
    asking: Callable[[str], StatusReply | None] = ask,
) -> Reached:
    """Wait until `run` has so many members, for `timeout_s` at most; `say` how it goes whenever that changes."""
    began, said, unanswered = time.monotonic(), "", 0
    while True:
        reply, waited_s = asking(run), time.monotonic() - began
        unanswered = unanswered + 1 if reply is None else 0
        if reply is None and unanswered < UNANSWERED_MAX:
            time.sleep(PERIOD_S)
            continue
        members = reply.view.members if reply is not None and reply.view is not None else ()
        if len(members) == workers:
            return Reached(members, waited_s)
        if reply is None or (hopeless := _hopeless(reply, workers)):
            return Reached(members, waited_s, GONE if reply is None else hopeless)
        if waited_s >= timeout_s:
            return Reached(members, waited_s, f"{_standing(reply)} after {duration(timeout_s)}; the run goes on trying")
        if (stands := _standing(reply)) != said:
            said = stands
            say(f"{clock(waited_s):>5}  {stands}")
        time.sleep(PERIOD_S)


def _hopeless(reply: StatusReply, workers: int) -> str:
    """Say why there will never be `workers` members; "" if there may be."""
    if reply.state == "ended":
        return GONE
    if reply.state == "closed":
        return "every step is done: nobody comes or goes any more"
    if reply.target in {0, workers}:
        return ""
    wanted = plural(reply.target, "worker")
    return f"the run is to have {wanted} now: somebody else has asked for them, or a worker was told to go"


def _live(snapshot: Snapshot) -> str:
    """Return the id of the run if it can be asked for anything. Raises `ConfigError`."""
    if snapshot.standing is Standing.LIVE:
        return snapshot.run
    ended = snapshot.story.ended
    if ended is not None:
        how = f"is over ({ended.outcome.replace('_', ' ')}): {ended.reason}"
    elif snapshot.standing is Standing.SILENT:
        how = "does not answer: its agent is stopped, overloaded, another user's or in another container"
    else:
        how = "is dead: its agent is not there any more"
    raise ConfigError(f"run {snapshot.run} {how}. Only a live run can be scaled")


def _standing(reply: StatusReply) -> str:
    """Say who is in and who is on the way."""
    members = len(reply.view.members) if reply.view is not None else 0
    words = [f"{plural(members, 'worker')} in"]
    for state, verb in (("starting", "starting"), ("replaying", "replaying"), ("spare", "level"), ("leaving", "going")):
        ranks = [worker.rank for worker in reply.workers if worker.state == state]
        if ranks:
            words.append(f"{named(ranks)} {verb}")
    return ", ".join(words)


def _tell(run: str, reply: ScaleReply) -> None:
    if reply.refused:
        print(f"relume scale: run {run} refuses {plural(reply.workers, 'worker')}: {reply.refused}", file=sys.stderr)
    elif reply.before == reply.workers:
        print(f"run {run}: {plural(reply.workers, 'worker')}, as before")
    else:
        print(f"run {run}: {plural(reply.workers, 'worker')} instead of {reply.before}")


def _tell_reached(reached: Reached) -> None:
    if reached.missed:
        print(f"relume scale: {reached.missed}", file=sys.stderr)
    else:
        count = plural(len(reached.members), "member")
        print(f"{clock(reached.seconds):>5}  {count}: {listed(list(reached.members))}", flush=True)


def _as_json(run: str, reply: ScaleReply, reached: Reached | None) -> dict[str, Any]:
    return {
        "v": VERSION,
        "run": run,
        "before": reply.before,
        "workers": reply.workers,
        "refused": reply.refused,
        "waited_s": reached.seconds if reached is not None else None,
        "members": list(reached.members) if reached is not None else None,
        "missed": reached.missed if reached is not None else "",
    }


def _say(line: str) -> None:
    print(line, flush=True)


def _quiet(line: str) -> None:
    del line


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers: a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0")
    return seconds
