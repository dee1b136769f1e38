"""Between the wire and the core: what a worker says becomes an event, what a worker shall be told becomes a message."""

from __future__ import annotations

from relume.core import events as core
from relume.wire import messages


def event(rank: int, life: int, message: messages.FromWorker) -> core.Event | None:  # noqa: PLR0911 - a flat table
    """Return the event that `message` of this life of `rank` is to the coordinator, None if it is none."""
    match message:
        case messages.Join(terms, shape, total):
            return core.Joined(rank, terms, shape, total, life)
        case messages.Promised(ballot):
            return core.Pledged(rank, ballot, life)
        case messages.Finished(step, digest):
            return core.Done(rank, step, digest, life)
        case messages.Accepted(number):
            return core.Accepted(rank, number, life)
        case messages.Refused(number, step):
            return core.Refused(rank, number, step, life)
        case messages.Leaving(reason):
            return core.Leaving(rank, reason, life)
        case messages.Leave(reason):
            return core.Lost(rank, core.Cause("planned", reason), life)
        case _:
            return None


def message(instruction: core.Instruction) -> tuple[int, messages.ToWorker] | None:  # noqa: PLR0911 - a flat table
    """Return whom `instruction` is for and what that worker is told, None if it is no message."""
    match instruction:
        case core.AskPromise(rank, ballot):
            return rank, messages.Ask(ballot)
        case core.InstallView(rank, view):
            return rank, messages.Install(view)
        case core.StartReplay(rank, end):
            return rank, messages.Replay(end)
        case core.ProposeView(rank, view):
            return rank, messages.Propose(view)
        case core.WithdrawView(rank, number):
            return rank, messages.Withdraw(number)
        case core.CloseRun(rank, view):
            return rank, messages.Close(view)
        case _:
            return None
