"""What must hold whatever happens, each law a small class that watches a history and keeps books of its own."""

from relume.simulate.checkers.base import Checker, Checks, Violation
from relume.simulate.checkers.content import ExactlyOnce, NoneLost, OneContent
from relume.simulate.checkers.decisions import Frugal, Innocent, Told, Verdict, Views
from relume.simulate.checkers.time import Progress, Rounds
from relume.simulate.checkers.writing import Reuse, RightToWrite

ALL: tuple[type[Checker], ...] = (
    OneContent,
    NoneLost,
    ExactlyOnce,
    RightToWrite,
    Reuse,
    Progress,
    Rounds,
    Views,
    Frugal,
    Innocent,
    Told,
    Verdict,
)

__all__ = [
    "ALL",
    "Checker",
    "Checks",
    "ExactlyOnce",
    "Frugal",
    "Innocent",
    "NoneLost",
    "OneContent",
    "Progress",
    "Reuse",
    "RightToWrite",
    "Rounds",
    "Told",
    "Verdict",
    "Views",
    "Violation",
]
