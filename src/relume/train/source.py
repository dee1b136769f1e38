"""What can be a source of shards: a map-style dataset, or a stream. Anything else is refused, with advice.

This module does not know what is in a dataset: it looks at its interface only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from relume.errors import DataError

ADVICE = (
    "give a dataset with __len__ and __getitem__, or a function (step, shard) -> batch that returns the same batch "
    "whenever it is called with the same arguments"
)


def is_stream(source: Any) -> bool:  # noqa: ANN401 - the question is what it is
    """Return whether `source` is a stream and not a map-style dataset; raise DataError if it is neither."""
    if isinstance(source, DataLoader):
        raise DataError("Shards takes the dataset, not a DataLoader around it: pass the DataLoader's dataset.")
    if isinstance(source, type):
        raise DataError(f"Shards takes a dataset, and {source.__qualname__} is a class: pass an instance of it.")
    if isinstance(source, IterableDataset):
        raise DataError(
            f"{name_of(source)} is an IterableDataset: where its stream stands depends on who has read from it, so a "
            f"lost shard could not be loaded again. Instead, {ADVICE}."
        )
    if isinstance(source, str) or (isinstance(source, Mapping) and 0 not in source):
        held = f" of {', '.join(map(repr, list(source)[:4]))}" if isinstance(source, Mapping) else ""
        raise DataError(
            f"A {type(source).__name__}{held} is not a dataset: source[0] has to be its first sample. Pass one of its "
            "splits, or put columns together with torch.utils.data.TensorDataset."
        )
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return False
    if callable(source):
        return True
    raise DataError(f"{name_of(source)} has not both __len__ and __getitem__ and is no function: {ADVICE}.")


def name_of(thing: object) -> str:
    """Return the name of an object's class, or of a function: without an address, which differs between workers."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
