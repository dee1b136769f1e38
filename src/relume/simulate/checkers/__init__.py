"""What must hold whatever happens, each law a small class that watches a history and keeps books of its own."""

from relume.simulate.checkers.base import Checker, Checks, Violation
from relume.simulate.checkers.coming import Admission, Leavers, Lives
from relume.simulate.checkers.content import ExactlyOnce, NoneLost, OneContent, SameState
from relume.simulate.checkers.decisions import Frugal, Innocent, Told, Verdict, Views
from relume.simulate.checkers.time import Progress, Rounds, Unhindered, Whole
from relume.simulate.checkers.writing import Reuse, RightToWrite, WayBack

ALL: tuple[type[Checker], ...] = (
    OneContent,
    NoneLost,
    ExactlyOnce,
    SameState,
    RightToWrite,
    Reuse,
    WayBack,
    Progress,
    Unhindered,
    Whole,
    Rounds,
    Views,
    Frugal,
    Innocent,
    Told,
    Verdict,
    Lives,
    Admission,
    Leavers,
)

__all__ = [
    "ALL",
    "Admission",
    "Checker",
    "Checks",
    "ExactlyOnce",
    "Frugal",
    "Innocent",
    "Leavers",
    "Lives",
    "NoneLost",
    "OneContent",
    "Progress",
    "Reuse",
    "RightToWrite",
    "Rounds",
    "SameState",
    "Told",
    "Unhindered",
    "Verdict",
    "Views",
    "Violation",
    "WayBack",
    "Whole",
]
