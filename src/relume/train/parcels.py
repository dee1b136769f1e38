"""What goes between a worker and its loader processes: a request one way, a parcel back.

The way back goes through a queue that loses what it cannot carry, and tells nobody. So what cannot be carried is found
before it is sent, and an exception of the dataset travels as a parcel like others: it belongs to one shard, which may
not be wanted yet, or ever.

This module does not know how the processes are run.
"""

from __future__ import annotations

import enum
import os
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relume.errors import DataError
from relume.train.batches import align, pin, transform
from relume.train.loading import Recipe, Request


class Errand(enum.Enum):
    """What a loader process can be asked for besides a shard."""

    NOTHING = "nothing"
    FINGERPRINT = "fingerprint"


Wanted = Request | Errand


@dataclass(frozen=True, slots=True)
class Parcel:
    """What comes back for a request: its content, or the exception that was raised, with its traceback in words."""

    content: Any = None
    error: Exception | None = None
    told: str = ""

    def open(self) -> Any:  # noqa: ANN401 - a batch is what the user makes of it
        """Return the content, or raise the dataset's own exception here."""
        if self.error is None:
            return self.content
        self.error.add_note(self.told)
        raise self.error

    def pin_memory(self) -> Parcel:
        """Return the parcel in page-locked memory: called by the DataLoader's pinning thread."""
        return Parcel(pin(align(self.content)), self.error, self.told)


class Bench:
    """The DataLoader's dataset: it lives in a loader process and makes what is asked for."""

    def __init__(self, recipe: Recipe) -> None:
        """Make what `recipe` says."""
        self._recipe = recipe
        self._proven = False

    def __getitem__(self, wanted: Wanted) -> Parcel:
        if wanted is Errand.NOTHING:
            return Parcel()
        try:
            if isinstance(wanted, Errand):
                return Parcel(self._recipe.fingerprint())
            batch = self._recipe.load(wanted)
            if not self._proven:
                _prove_portable(batch)
                self._proven = True
            return Parcel(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the user's, and is raised where they see it
            where = f"In loader process {os.getpid()}:\n{traceback.format_exc()}"
            return Parcel(error=_portable_error(error), told=where)


def _prove_portable(batch: object) -> None:
    """Raise DataError if `batch` cannot leave this process: the queue would lose it, and the worker wait for ever."""

    def sketch(leaf: object) -> object:
        large = isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject)
        return None if large else leaf

    try:
        pickle.dumps(transform(batch, sketch))
    except Exception as error:
        raise DataError(
            f"The batch cannot be sent from a loader process to the training process ({error}). Give it only what "
            "pickle can carry (tensors, arrays, numbers, text, and classes defined at a module's top level), or load "
            "with num_workers=0."
        ) from error


def _portable_error(error: Exception) -> Exception:
    """Return `error` if it survives the way to another process, and otherwise one that says what it said."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - our own bytes, a line ago
            return error
    except Exception:  # noqa: BLE001, S110 - a class of the user's, with whatever goes wrong in it
        pass
    return DataError(f"Loading raised {type(error).__qualname__}: {error}")
