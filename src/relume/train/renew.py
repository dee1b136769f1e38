"""Putting a saved value into the place of a live one, without making new objects where the old ones will do.

The script may hold what it protects under names of its own (`ema = run.vars.ema`), an optimizer may share one tensor
between its groups, and a captured graph knows addresses. So tensors are written in place if they can hold the very
bits, and lists and dicts are filled anew; what does not fit is replaced, as it must have been in the worker that the
saved value comes from. A live object that stands in two places is used twice only if the two saved values are equal.

This module does not know what the values are for.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import torch

from relume.state.facts import alike, stored
from relume.state.tree import flatten

_DICTS = (dict, OrderedDict, defaultdict)


class Renewal:
    """One restoring of everything: knows which live objects were given their value already."""

    def __init__(self) -> None:
        self._given: dict[int, object] = {}

    def value(self, live: Any, saved: Any) -> Any:  # noqa: ANN401  (whatever a state dict holds)
        """Return what is to stand in the place of `live`: itself, made equal to `saved`, or `saved`."""
        if type(live) is not type(saved):
            return saved
        if type(saved) is tuple:
            return tuple(self._items(live, saved))
        changeable = isinstance(saved, torch.Tensor) or type(saved) in {list, *_DICTS}
        if not changeable or (id(live) in self._given and not _equal(live, saved)):
            return saved
        if id(live) in self._given:
            return live
        self._given[id(live)] = live
        return self._into(live, saved)

    def mapping(self, live: Any, saved: Any) -> Any:  # noqa: ANN401
        """Make the dict `live` equal to `saved`, order included."""
        # `saved` may be `live` itself, or hold it: everything is looked up before anything is changed.
        items = [(key, self.value(live[key], item) if key in live else item) for key, item in saved.items()]
        attributes, factory = getattr(saved, "__dict__", None), getattr(saved, "default_factory", None)
        live.clear()
        live.update(items)
        if attributes:
            vars(live).update(attributes)
        if factory is not None:
            live.default_factory = factory
        return live

    def tensor(self, live: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        """Return `live` with the bits of `saved`, or `saved` where it cannot hold them."""
        if not alike(live, saved) or live.requires_grad != saved.requires_grad:
            return saved
        with torch.no_grad():
            live.copy_(saved)
        return live

    def _into(self, live: Any, saved: Any) -> Any:  # noqa: ANN401
        if isinstance(saved, torch.Tensor):
            return self.tensor(live, saved)
        if isinstance(saved, list):
            live[:] = self._items(live, saved)
            return live
        return self.mapping(live, saved)

    def _items(self, live: Any, saved: Any) -> list[Any]:  # noqa: ANN401
        return [self.value(live[index], item) if index < len(live) else item for index, item in enumerate(saved)]


def _equal(one: object, other: object) -> bool:
    """True if two values are equal in every bit."""
    tensors, skeleton = flatten(one)
    others, other_skeleton = flatten(other)
    if skeleton != other_skeleton:
        return False
    return all(torch.equal(stored(a), stored(b)) for a, b in zip(tensors, others, strict=True))
