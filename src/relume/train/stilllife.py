"""What must not move while a step's shards are computed: parameters, hyperparameters, scalers, `run.vars`.

A shard is a function of the state at the step's start (Invariant 2), and only the workers that compute one run the
inner loop's body: a `scheduler.step()` in there would leave replicas that differ. So the state is compared, cheaply,
at every shard's end with how it stood at the step's start: versions of tensors, plain values of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from relume.arena.progress import Pulse
from relume.errors import StepError
from relume.train.protect import Protected
from relume.train.variables import Vars
from relume.verify.digests import digest

PULSE_BYTES = 1 << 20


class StillLife:
    """The state that the inner loop must leave alone."""

    def __init__(self, protected: Protected, variables: Vars, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._protected = protected
        self._variables = variables
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._versions: list[int] = []
        self._values: dict[str, object] = {}

    def begin(self) -> None:
        """Remember how everything stands: the start of a step."""
        self._versions = self._now()
        self._values = dict(self._plain())

    def pulse(self, step: int) -> Pulse:
        """Return digests of what must be equal on all workers now: plain values, and one parameter (or 1 MiB of it).

        Which one goes round with the steps, so that a worker that computed with other weights is found in time.
        """
        values = repr(sorted((name, _unversioned(value)) for name, value in self._plain()))
        parameter = self._parameters[step % len(self._parameters)].detach()
        chunk = max(1, PULSE_BYTES // parameter.element_size())
        start = step // len(self._parameters) % max(1, -(-parameter.numel() // chunk)) * chunk
        part = parameter.reshape(-1)[start : start + chunk] if parameter.is_contiguous() else parameter
        return Pulse(step, xxhash.xxh3_64_intdigest(values.encode()), int(digest(part), 16))

    def check(self, step: int) -> None:
        """Raise `StepError` if something has moved since."""
        versions = self._now()
        if versions != self._versions:
            index = next(i for i, pair in enumerate(zip(versions, self._versions, strict=True)) if pair[0] != pair[1])
            text = f"parameter {self._names[index]} was changed inside the inner loop of step {step}."
            raise StepError(
                text + " Only workers with shards run it: change parameters below the loop `for batch in step`"
            )
        values = dict(self._plain())
        if values != self._values:
            changed = [name for name in values if values.get(name) != self._values.get(name)]
            name = next(iter(changed or self._values.keys() - values.keys()))
            text = (
                f"{name} changed inside the inner loop of step {step}: {self._values.get(name)} to {values.get(name)}."
            )
            raise StepError(
                text + " Only workers with shards run it: move scheduler.step(), scaler.update() and the like "
                "below the loop `for batch in step`"
            )

    def _now(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]  # noqa: SLF001  (no public spelling)

    def _plain(self) -> Iterator[tuple[str, object]]:
        for name, optimizer in self._protected.optimizers.items():
            for index, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params":
                        yield f"optimizer {name!r}, group {index}, {key}", _value(value)
        for name, other in self._protected.others.items():
            for key, value in other.state_dict().items():
                yield f"{key} of {name!r}", _value(value)
        for key, value in self._variables.state_dict().items():
            yield f"run.vars.{key}", _value(value)


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
