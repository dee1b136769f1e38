"""What goes between a worker and its loader processes: a job one way, a parcel back.

An exception of the dataset travels as a parcel like others: it belongs to one shard, which may not be wanted yet, or
ever. What cannot travel is such an exception, too.

This module does not know how the processes are run.
"""

from __future__ import annotations

import enum
import os
import pickle
import traceback
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

from relume.errors import DataError
from relume.train.batches import align, pin
from relume.train.loading import Recipe, Request


class Errand(enum.Enum):
    """What a loader process can be asked for besides a shard."""

    FINGERPRINT = "fingerprint"


Wanted = Request | Errand


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """What a loader process is asked for: the earliest step first, and within it in the order of asking."""

    step: int
    number: int
    wanted: Wanted = field(compare=False)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What comes back for a job: its content, or the exception that was raised, with its traceback in words."""

    content: Any = None
    error: Exception | None = None
    told: str = ""

    def open(self) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        """Return the content, or raise the dataset's own exception here."""
        if self.error is None:
            return self.content
        self.error.add_note(self.told)
        raise self.error


class Bench:
    """Where a loader process makes what it is asked for."""

    def __init__(self, recipe: Recipe) -> None:
        """Make what `recipe` says."""
        self._recipe = recipe

    def make(self, wanted: Wanted) -> memoryview:
        """Return the packed parcel."""
        try:
            content = self._recipe.fingerprint() if isinstance(wanted, Errand) else self._recipe.load(wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the user's, and is raised where they see it
            where = f"In loader process {os.getpid()}:\n{traceback.format_exc()}"
            return pack(Parcel(error=_portable_error(error), told=where))
        return pack(Parcel(content))


def pack(parcel: Parcel) -> memoryview:
    """Return the parcel as it travels: tensors stay in shared memory. What cannot travel becomes a `DataError`."""
    try:
        return ForkingPickler.dumps(parcel)
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the user's classes do
        refusal = DataError(
            f"The batch cannot be sent from a loader process to the training process ({error}). Give it only what "
            "pickle can carry (tensors, arrays, numbers, text, and classes defined at a module's top level), or load "
            "with num_workers=0."
        )
        return ForkingPickler.dumps(Parcel(error=refusal))


def unpack(packed: bytes, *, pinned: bool) -> Parcel:
    """Return the parcel, its content aligned, and in page-locked memory if so wished. Raises nothing of the user's."""
    try:
        parcel: Parcel = pickle.loads(packed)  # noqa: S301 - from our own child
        if parcel.error is not None:
            return parcel
        content = align(parcel.content)
        return Parcel(pin(content) if pinned else content)
    except Exception as error:  # noqa: BLE001 - whatever the user's classes do in coming back from pickle
        return Parcel(error=error, told="This was raised when a batch from a loader process was unpacked.")


def _portable_error(error: Exception) -> Exception:
    """Return `error` if it survives the way to another process, and otherwise one that says what it said."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - our own bytes, a line ago
            return error
    except Exception:  # noqa: BLE001, S110 - a class of the user's, with whatever goes wrong in it
        pass
    return DataError(f"Loading raised {type(error).__qualname__}: {error}")
