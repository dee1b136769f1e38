"""Bringing somebody in, or letting somebody go, while training goes on: proposals, by promise (rule 10).

Nothing here makes anybody wait but a member that has come to the proposed step before the others have answered, and
that for at most `PATIENCE_S`. A death in between cancels what is not decided; what is decided stands if its step is
next (`coordinator`).
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.core import view as views
from relume.core.admission import BEHIND_MAX, PATIENCE_S, RETRY_S, Proposal, first_step, next_members
from relume.core.events import Accepted, InstallView, ProposeView, Refused, WithdrawView
from relume.core.roster import Roster
from relume.core.states import State


@dataclass(slots=True)
class Admitting(Roster):
    """See the module's docstring."""

    state: State = State.FORMING
    _proposal: Proposal | None = None
    _attempt: int = 0
    _retry_s: float = 0.0

    def _admit(self, now: float) -> None:
        """Propose the next view if it should have other members than this one."""
        view = self.view
        if view is None or self.state is not State.STEADY or self._proposal or self.following or now < self._retry_s:
            return
        members = self._wanted_members(view.members)
        step = first_step(self._newest_begun(), self._attempt)
        total = self._agreed.total if self._agreed is not None else 0
        if members == view.members or (total and step >= total):
            self._attempt = 0
            return
        self.ballot = (self.epoch, self.ballot[1] + 1)
        self._proposal = Proposal(views.planned(self.ballot, members, view.shards, step), now)
        for rank in self.party():
            self._out.append(ProposeView(rank, self._proposal.view))

    def _wanted_members(self, now: tuple[int, ...]) -> tuple[int, ...]:
        """Return who should be in the next view; whoever wants to go stays while too few would be left."""
        leaving = [rank for rank in now if self.leaves(rank)]
        # A refusal tells where a member is now, and of a joiner only the last look is known: steps may be short.
        oldest = self._newest_seen() - BEHIND_MAX
        level = [r for r in self._level() if max(self._members[r].step, self._members[r].level or 0) >= oldest]
        while True:
            members = next_members(now, leaving, level, self.workers)
            if len(members) >= self.min_workers or not leaving:
                return members
            leaving = leaving[1:]

    def _accepted(self, event: Accepted, now: float) -> None:
        del now
        proposal = self._proposal
        if proposal is None or event.number != proposal.view.number:
            return
        proposal.accepted.add(event.rank)
        if not proposal.accepted.issuperset(self.party()):
            return
        view = self.following = proposal.view
        self._proposal, self._attempt = None, 0
        for rank in sorted({*self.party(), *view.members}):
            member = self._members[rank]
            if not member.inside:
                member.inside, member.steady_from = True, view.step
            self._out.append(InstallView(rank, view))

    def _refused(self, event: Refused, now: float) -> None:
        proposal = self._proposal
        if proposal is None or event.number != proposal.view.number:
            return
        # This may be where its loop ended, so that it is in no such step.
        self._refused_at = max(self._refused_at, event.step)
        self._attempt += 1
        self._withdraw()
        self._admit(now)

    def _withdraw(self) -> None:
        proposal, self._proposal = self._proposal, None
        if proposal is not None:
            for rank in self.party():
                self._out.append(WithdrawView(rank, proposal.view.number))

    def _withdraw_if_outdated(self) -> None:
        """Somebody else is level now, and nothing is decided: better one view with both than two."""
        proposal, view = self._proposal, self.view
        if proposal is not None and view is not None and self._wanted_members(view.members) != proposal.view.members:
            self._withdraw()

    def _withdraw_without(self, rank: int, now: float) -> None:
        """A joiner is lost: a view that it should be in cannot begin."""
        if self._proposal is not None and rank in self._proposal.view.members:
            self._withdraw()
            self._admit(now)

    def _tick_proposal(self, now: float) -> None:
        if self._proposal is not None and now - self._proposal.made_s >= PATIENCE_S:
            self._withdraw()
            self._retry_s = now + RETRY_S

    def _settle_following(self) -> None:
        """Take note that the view that was to follow has begun, as soon as that is known."""
        following = self.following
        if following is not None and any(self._members[r].step >= following.step for r in self.party()):
            self._begin_following()

    def _begin_following(self) -> None:
        assert self.following is not None
        self.view, self.following = self.following, None
        for rank, member in self._members.items():
            member.inside = member.inside and rank in self.view.members
