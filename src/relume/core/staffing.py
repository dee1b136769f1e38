"""Whether a lost worker is replaced, and when: a budget for the run, patience with each seat, an end to crash loops.

A worker that is lost after it had contributed is replaced at once. One that is lost again and again before it has is
given more and more time, and given up in the end (scenario 7). An error of the script's own is tried again once, since
it may have been a file system's bad moment; the same error a second time, wherever, is the script's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from relume.core.members import Loss, Member

GIVE_UP_AFTER = 5
"""So many lives in a row without a contribution are a crash loop."""
DELAYS_S = (0.0, 0.0, 4.0, 16.0)
"""How long a seat stays empty after the first of them, the second, and so on."""
SCRIPT_DELAY_S = 1.0
"""Before a script's error is tried again: others that are about to raise the same have done so by then."""
ITS_OWN = frozenset({"raised", "exit_code"})
"""Causes that lie in the script, as far as one can see."""
NEVER = frozenset({"left_early", "planned"})
"""Causes that mean that nobody is wanted in the seat."""
REFUSED = frozenset({"profile", "protocol"})
"""Causes that another process like the last would meet again."""


@dataclass(slots=True)
class Staffing:
    """`max_restarts` bounds how many lost workers are replaced in the whole run; `restarts` is how many were."""

    max_restarts: int
    restarts: int = 0
    _places: Counter[str] = field(default_factory=Counter)

    def judge(self, member: Member, loss: Loss, now: float) -> str:
        """Note the loss of a life; return why the seat is given up with it, "" if it is not, or if that is plain."""
        kind = loss.cause.kind
        contributed = member.steady_from is not None and member.step > member.steady_from
        member.failures = 1 if contributed else member.failures + 1
        member.refusals = member.refusals + 1 if kind in REFUSED else 0
        if kind in NEVER:
            member.given_up = True
            return ""
        delay = DELAYS_S[min(member.failures, len(DELAYS_S)) - 1]
        if kind in ITS_OWN:
            delay = max(delay, SCRIPT_DELAY_S)
            self._places[_place(loss)] += 1
        member.not_before_s = now + delay
        if not self.max_restarts:
            return ""
        if member.refusals > 1:
            member.given_up = True
            return f"twice in a row {loss.cause.text}"
        if member.failures >= GIVE_UP_AFTER:
            member.given_up = True
            text = f"its last {member.failures} workers were lost before they had contributed to a step, the last "
            return text + f"because {loss.cause.text}"
        return ""

    def hopeless(self, member: Member) -> bool:
        """True if the seat's next life would meet what ended the last one: the script's own error, for the second time.

        Not only this seat's: an error that all workers meet is met by all before the first is tried again.
        """
        loss = member.loss
        return loss is not None and loss.cause.kind in ITS_OWN and self._places[_place(loss)] > 1

    def refusal(self, member: Member) -> str:
        """Return why nobody comes to the seat of a worker that was lost, if it was not told before."""
        if not self.max_restarts or member.loss is None:
            return ""
        if self.hopeless(member):
            return f"it is the script's own error, seen before: {member.loss.cause.text}"
        return f"--max-restarts {self.max_restarts} is used up"

    def may_return(self, member: Member) -> bool:
        """True if a process may still come to the seat of a worker that was lost."""
        left = self.restarts < self.max_restarts
        return left and member.loss is not None and not member.given_up and not self.hopeless(member)


def _place(loss: Loss) -> str:
    return loss.cause.evidence.get("where") or loss.cause.text
