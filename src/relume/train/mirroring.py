"""This worker's part in the mirror: writing its stripe at a boundary, and loading the whole when it comes back.

When a mirror is due and how it stands in memory is the mirror's own affair (`state.mirror`), what belongs to the state
that of `train.capture`. This module brings them together with the view and the pen: who is in the view that is in force
when a piece is written decides whose it is, so that a death in the middle costs that mirror and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relume.core.view import mirror_owner
from relume.errors import MemoryShortage, StateError
from relume.state.mirror import Mirror
from relume.train.capture import capture, restore
from relume.train.portrait import Portrait
from relume.wire.messages import Remark

if TYPE_CHECKING:
    from collections.abc import Callable

    from relume.train.run import Run


class Mirroring:
    """Does nothing where no mirror is kept."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seat = seat = run.seat
        self._mirror: Mirror | None = None
        if seat.every and len(seat.mirrors) == 2:
            first, second = seat.mirrors
            self._mirror = Mirror(seat.words, seat.control, (first, second), seat.every)
        self._portrait = Portrait(run.protected, run.vars)
        self._given_up = False
        self._last = False
        self._told = False

    # Writing ------------------------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Before `step`: write this worker's part if a mirror is due."""
        if self._mirror is not None and not self._given_up and self._mirror.due(step):
            self._write(self._mirror, step)

    def at_end(self, step: int) -> None:
        """The loop ended before `step`: see to it that this very state is mirrored, for who has to repeat the tail."""
        if self._mirror is not None and not self._given_up and not self._mirror.has(step):
            self._last = True
            self._until_all_took(step - 1)  # then the mirror before is decided, and may be the one to keep
            self._write(self._mirror, step)

    def _until_all_took(self, step: int) -> None:
        """Wait for every member: each is in the last step, or a ballot says that it is lost."""
        seat = self._seat
        while any(seat.taken_by(member) < step for member in seat.standing.settled().members):
            if seat.progress.phase != "wait":
                seat.progress.enter("wait")
            seat.standing.wait()

    def _write(self, mirror: Mirror, step: int) -> None:
        progress = self._seat.progress
        phase = progress.phase
        progress.enter("mirror")
        try:
            mirror.write(step, self._portrait.tree(), self._owns, self._piece, last=self._last)
        except MemoryShortage as error:  # next time there may be room
            self._tell(step, error)
        except StateError as error:
            self._given_up = True
            self._tell(step, error)
        progress.enter(phase)

    def _tell(self, step: int, error: Exception) -> None:
        """Training goes on without a mirror, and once somebody is told."""
        if not self._told and self._seat.link is not None:
            text = f"the state before step {step} is not mirrored, so that a lost worker could not come back: {error}"
            self._seat.link.send(Remark("mirror", text, step))
        self._told = True

    def _owns(self, chunk: int, chunks: int) -> bool:
        view = self._seat.standing.view
        return view is not None and mirror_owner(view, chunk, chunks) == self._seat.rank

    def _piece(self, action: Callable[[], None]) -> None:
        self._seat.standing.write(action)
        self._seat.progress.advance()
        self._seat.progress.spring("mirror")

    # Loading ------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        """Return the step of the newest mirror, 0 if there is none but the script's own start."""
        return 0 if self._mirror is None else self._mirror.newest()

    def load(self) -> tuple[int, str]:
        """Put the newest mirror into the live objects; return its step and the digest of what they hold then.

        The digest is made of the live objects and compared with the mirror's own (Invariant 8). Raises `StateError` if
        it differs, or if there is no mirror that can be trusted.
        """
        assert self._mirror is not None
        run, progress = self._run, self._seat.progress
        progress.enter("replay")
        step, tree = self._mirror.read()
        expected = self._mirror.digest_of(tree)
        restore(run.protected, run.vars, tree)
        found = self.digest()
        if found != expected:
            text = f"the state that worker {self._seat.rank} holds after loading the mirror of step {step} is not what "
            text += f"was loaded (digest {found}, not {expected}): an object that is protected does not give back all "
            raise StateError(text + "that its load_state_dict was given")
        progress.step = step
        progress.spring("replay")
        return step, found

    def digest(self) -> str:
        """Return the digest of the state as it is, "" where no mirror is kept."""
        run = self._run
        return "" if self._mirror is None else self._mirror.digest_of(capture(run.protected, run.vars))
