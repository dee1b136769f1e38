"""What must not move while a step's shards are computed: parameters, hyperparameters, scalers, `run.vars`.

A shard is a function of the state at the step's start (Invariant 2), and only the workers that compute one run the
inner loop's body: a `scheduler.step()` in there would leave replicas that differ. So the state is compared, cheaply,
at every shard's end with how it stood at the step's start: versions of tensors, plain values of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import nn

from relume.arena.progress import Pulse
from relume.errors import StepError
from relume.train.protect import Protected
from relume.train.variables import Vars
from relume.verify.digests import digest

PULSE_BYTES = 256 << 10
"""XXH3 reads what is in no cache at 10 GB/s (measured), so that this takes 27 µs. 1 MiB would take 100."""

_FIXED = frozenset({type(None), bool, int, float})
"""Kinds that are kept as they are: none of them can be changed, so the same object has the same value."""
_version = attrgetter("_version")  # (no public spelling)


class StillLife:
    """The state that the inner loop must leave alone."""

    def __init__(self, protected: Protected, variables: Vars, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._optimizers, self._others = protected.optimizers, protected.others
        self._variables = variables
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._versions: list[int] = []
        self._values = _Values((), (), ())
        self._digest: int | None = None
        self._order_of: tuple[object, ...] = ()
        self._order: list[int] = []
        self._names_text = ""
        self._just_begun = False

    def begin(self) -> None:
        """Remember how everything stands: the start of a step."""
        self._versions = [*map(_version, self._parameters)]
        self._look()
        self._just_begun = True

    def pulse(self, step: int) -> Pulse:
        """Return digests of what must be equal on all workers now: plain values, and 256 KiB of one parameter at most.

        Which part goes round with the steps, so that a worker that computed with other weights is found in time. Right
        after `begin`, what that has seen is not looked at again.
        """
        if not self._just_begun:
            self._look()
        self._just_begun = False
        if self._digest is None:
            if self._order_of != self._values[:2]:
                names = [name for name, _ in self._named(self._values)]
                self._order_of, self._order = self._values[:2], sorted(range(len(names)), key=names.__getitem__)
                self._names_text = repr(sorted(names))
            values = self._values.values
            text = self._names_text + repr([_unversioned(_described(values[place])) for place in self._order])
            self._digest = xxhash.xxh3_64_intdigest(text.encode())
        parameter = self._parameters[step % len(self._parameters)].detach()
        chunk = max(1, PULSE_BYTES // parameter.element_size())
        start = step // len(self._parameters) % max(1, -(-parameter.numel() // chunk)) * chunk
        part = parameter.reshape(-1)[start : start + chunk] if parameter.is_contiguous() else parameter
        return Pulse(step, self._digest, int(digest(part), 16))

    def check(self, step: int) -> None:
        """Raise `StepError` if something has moved since."""
        versions = [*map(_version, self._parameters)]
        if versions != self._versions:
            index = next(i for i, pair in enumerate(zip(versions, self._versions, strict=True)) if pair[0] != pair[1])
            text = f"parameter {self._names[index]} was changed inside the inner loop of step {step}."
            raise StepError(
                text + " Only workers with shards run it: change parameters below the loop `for batch in step`"
            )
        now = self._now()
        if not self._values.same(now):
            before, values = dict(self._named(self._values)), dict(self._named(now.kept()))
            changed = [name for name in values if values.get(name) != before.get(name)]
            name = next(iter(changed or before.keys() - values.keys()))
            text = f"{name} changed inside the inner loop of step {step}: {before.get(name)} to {values.get(name)}."
            raise StepError(
                text + " Only workers with shards run it: move scheduler.step(), scaler.update() and the like "
                "below the loop `for batch in step`"
            )

    def _look(self) -> None:
        """Take the plain values in, if they are others than those that are known."""
        now = self._now()
        if not self._values.same(now):
            self._values, self._digest = now.kept(), None

    def _now(self) -> _Values:
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        others = [other.state_dict() for other in self._others.values()]
        variables = vars(self._variables)
        return _Values(
            [len(optimizer.param_groups) for optimizer in self._optimizers.values()] + [*map(len, (*groups, *others))],
            [*(k for group in groups for k in group if k != "params"), *chain.from_iterable(others), *variables],
            [
                *(value for group in groups for key, value in group.items() if key != "params"),
                *chain.from_iterable(other.values() for other in others),
                *variables.values(),
            ],
        )

    def _named(self, values: _Values) -> Iterator[tuple[str, object]]:
        """Yield what is kept of each value, by the names that people are told."""
        counts = iter(values.counts)
        groups = [(name, index) for name in self._optimizers for index in range(next(counts))]
        prefixes = [
            f"optimizer {name!r}, group {index}, {{}}" for name, index in groups for _ in range(next(counts) - 1)
        ]
        prefixes += [f"{{}} of {name!r}" for name in self._others for _ in range(next(counts))]
        prefixes += ["run.vars.{}"] * (len(values.keys) - len(prefixes))
        for prefix, key, value in zip(prefixes, values.keys, values.values, strict=True):
            yield prefix.format(key), _described(value)


class _Values(NamedTuple):
    """Plain values side by side, as they are or as they are kept: `counts` say how many belong together."""

    counts: Sequence[int]
    keys: Sequence[object]
    values: Sequence[object]

    def kept(self) -> _Values:
        """Return what is still true when one of them was changed in place."""
        return self._replace(values=[value if type(value) in _FIXED else _value(value) for value in self.values])

    def same(self, now: _Values) -> bool:
        """True if what is kept here describes the values of `now`, which are as they are."""
        same = self.counts == now.counts and self.keys == now.keys
        return same and all(map(_same, self.values, now.values))


def _described(kept: object) -> object:
    return repr(kept) if type(kept) in _FIXED else kept


def _same(kept: object, now: object) -> bool:
    if type(now) in _FIXED:  # nan equals itself, and -0.0 is not 0.0
        return kept is now or (type(kept) is type(now) and repr(kept) == repr(now))
    return type(kept) not in _FIXED and kept == _value(now)


def _unversioned(value: object) -> str:
    """Return a value of `_value` without what only this process knows of a tensor: how often it was written."""
    if isinstance(value, tuple):
        return repr(value[:2])
    if isinstance(value, list):
        return repr([_unversioned(item) for item in value])
    if isinstance(value, dict):
        return repr([(key, _unversioned(item)) for key, item in value.items()])
    return repr(value)


def _value(value: Any) -> object:  # noqa: ANN401  (whatever a state dict holds)
    """Return something cheap that is equal as long as `value` is, also where `state_dict` makes it anew each time."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value._version)  # noqa: SLF001  (no public spelling)
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _value(item) for key, item in value.items()}
    if value is None or isinstance(value, int | float | str | np.generic):
        return repr(value)  # so that nan equals itself
    return type(value).__name__
