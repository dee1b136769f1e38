"""How a run ends: everybody is done, or too few are left, or what the script does after its loop is over too.

After the last step the script's tail runs on every worker, and one of them is main. Should main be lost in it, another
process takes its seat, loads the final state, and runs the tail again.
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.core.admitting import Admitting
from relume.core.events import Cause, CloseRun, Diverged, Done, EndRun, Exited, Fenced, Lost, Tick
from relume.core.staffing import ITS_OWN
from relume.core.states import State
from relume.core.verdict import Outcome, after_the_last_step, divergence, listing, without_members


@dataclass(slots=True)
class Closing(Admitting):
    """See the module's docstring. `ended_before`: the step before which every member has left its loop (-1: none)."""

    ended_before: int = -1
    _final: str = ""

    # The last step --------------------------------------------------------------------------------------------

    def _note_done(self, event: Done) -> None:
        member = self._members[event.rank]
        member.done, member.digest = event.step, event.digest or member.digest
        if self.following is not None and member.inside and event.step > self.following.step:
            self._begin_following()

    def _close_if_all_done(self) -> None:
        """Close when every member has left its loop at one step."""
        assert self.view is not None
        ends = {self._members[rank].done for rank in self.view.members}
        if len(ends) == 1 and None not in ends:
            self._close(next(end for end in ends if end is not None))

    def _left_alone(self) -> tuple[int, str] | None:
        """Return a member that left its loop while others went on, and what is wrong with that."""
        assert self.view is not None
        ends = {rank: end for rank in self.view.members if (end := self._members[rank].done) is not None}
        total = self._agreed.total if self._agreed is not None else 0
        for rank, end in ends.items():
            if total and end >= total:
                continue  # it did all there is: others may stand there already, and not have said so
            if any(self._members[other].step >= end for other in self.view.members) or end < max(ends.values()):
                text = (
                    f"it left run.steps before step {end} while others went on; a run ends where all workers end it, "
                )
                return rank, text + "on a value that is equal on all (step.mean, run.vars)"
        return None

    def _close(self, end: int) -> None:
        assert self.view is not None
        members = self.view.members
        digests = {rank: digest for rank in members if (digest := self._members[rank].digest)}
        if len(set(digests.values())) > 1:
            self._end(Outcome.DIVERGED, divergence("after the last step", "state", digests))
            return
        self.state, self.ended_before = State.CLOSED, end
        self._final = next(iter(digests.values()), "")
        self._withdraw()
        self.following = None
        for rank in members:
            self._out.append(CloseRun(rank, self.view))
        for rank in self.alive():
            if rank not in members:
                self._dismiss(rank, "every step is done")

    # The tail ---------------------------------------------------------------------------------------------------

    def _exited_closed(self, event: Exited, now: float) -> None:
        member = self._members[event.rank]
        member.exited = member.exited or member.alive
        self._end_if_gone(now)

    def _lost_closed(self, event: Lost, now: float) -> None:
        if self._condemn(event, now):
            self._report({}, promised_s=now, installed_s=now)

    def _fenced_closed(self, event: Fenced, now: float) -> None:
        self._note_fence(event.rank, now)
        self._end_if_gone(now)

    def _done_closed(self, event: Done, now: float) -> None:
        """Somebody came for the tail alone: it has to hold what the others hold."""
        assert self.view is not None
        member = self._members[event.rank]
        if not member.alive or member.done is not None or event.rank not in self.view.members:
            return
        member.done = event.step
        if self._final and event.digest and event.digest != self._final:
            text = "it came back after the last step with another state than the run ended with"
            self._lost_closed(Lost(event.rank, Cause("profile", text)), now)
            return
        self._out.append(CloseRun(event.rank, self.view))

    def _end_if_gone(self, now: float) -> None:
        """End when nobody is left; if main was lost in the tail, have another do it again."""
        assert self.view is not None
        rank = self.view.main
        main = self._members[rank]
        lost = main.loss is not None and main.loss.fenced_s is not None
        if lost and main.loss is not None and main.loss.cause.kind not in ITS_OWN and self._staffing.may_return(main):
            if now >= main.not_before_s:
                self._staffing.restarts += 1
                self._start(rank, now)
            return
        if self.alive() or any(m.loss is not None and m.loss.fenced_s is None for m in self._members.values()):
            return
        self._end(*after_the_last_step(rank, main))

    def _tick_closed(self, event: Tick, now: float) -> None:
        self._tick_fence(event, now)
        if self.state is not State.CLOSED:
            return
        for rank, member in self._members.items():
            late = member.life and member.alive and member.done is None
            if late and now - member.started_s >= 2 * self.limits.start_s:
                text = f"it did not come to the script's tail within {2 * self.limits.start_s:.0f} s"
                self._lost_closed(Lost(rank, Cause("silent", text)), now)
        self._end_if_gone(now)

    # Too few ----------------------------------------------------------------------------------------------------

    def _end_if_too_few(self, survivors: list[int]) -> bool:
        """End the run if fewer are left than it may go on with, and nobody can come (scenario 17)."""
        if len(survivors) >= max(1, self.min_workers) or self._enough_may_come():
            return False
        self._end_short("")
        return True

    def _end_short(self, why: str) -> None:
        survivors = [*self.party(), *self._level()] if why else self.alive()  # those who may still come do not any more
        if self.max_restarts and self.restarts >= self.max_restarts:
            why = f"--max-restarts {self.max_restarts} is used up" + (f", and {why}" if why else "")
        if not survivors:
            self._end_without_members(why)
            return
        left = "1 worker is" if len(survivors) == 1 else f"{len(survivors)} workers are"
        causes = [m.last.cause for m in self._members.values() if m.last is not None]
        text = f"{left} left and --min-workers is {self.min_workers}: {listing(causes)}"
        self._end(Outcome.TOO_FEW, f"{text}; {why}" if why else text)

    def _end_without_members(self, why: str) -> None:
        losses = [member.last for member in self._members.values() if member.last is not None]
        outcome, reason = without_members(losses, began=self.view is not None)
        if outcome is Outcome.NO_STEPS:
            self._open = []  # one mistake in a script, and no incident of any worker
        self._end(outcome, f"{reason}; {why}" if why else reason)

    def _diverged(self, event: Diverged, now: float) -> None:
        """Replicas that differ make every further step worthless, and nobody can say here who is right (scenario 5)."""
        del now
        self._end(Outcome.DIVERGED, event.text)

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.state = State.ENDED
        self._report({}, promised_s=0.0, installed_s=0.0)
        self._out.append(EndRun(outcome.value, reason))

    def _tick_fence(self, event: Tick, now: float) -> None:
        """A worker that the kernel does not let go of could still write: nobody goes on, nor waits for ever."""
        del event
        losses = self._unfenced()  # a joiner that is lost could not write: nobody waits for it
        if self.state is State.CLOSED:
            losses = [member.loss for member in self._members.values() if member.loss is not None]
        for loss in losses:
            if loss.fenced_s is None and now - loss.lost_s >= self.limits.fence_s:
                text = (
                    f"worker {loss.rank} was killed {now - loss.lost_s:.0f} s ago and the kernel does not let go of it "
                )
                self._end(Outcome.UNFENCED, text + "(a device or file system that hangs?), so it could still write")
                return
