"""`run.vars`: plain values of the script's own that decide steps, protected like everything else that does."""

from __future__ import annotations

from typing import Any

import torch

from relume.errors import ProtectError


class Vars:
    """Values of the user's own that decide steps: `run.vars.best = 0.5`. Protected, and part of every digest."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set a value: numbers, strings, tensors, and lists, tuples and dicts of them."""
        if name.startswith("_") or hasattr(type(self), name):
            raise ProtectError(f"run.vars.{name}: this name is taken; choose another")
        _check_value(name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the user put in)
        """Explain a name that was never set."""
        known = ", ".join(sorted(vars(self))) or "nothing yet"
        raise AttributeError(f"run.vars.{name} was never set; set so far: {known}")

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all values."""
        vars(self).clear()
        vars(self).update(state)


def _check_value(name: str, value: object) -> None:
    if isinstance(value, torch.Tensor) or value is None or isinstance(value, str | bytes | int | float | bool):
        return
    if isinstance(value, list | tuple):
        for item in value:
            _check_value(name, item)
    elif isinstance(value, dict):
        for item in value.values():
            _check_value(name, item)
    else:
        text = (
            f"run.vars.{name} = a {type(value).__name__}: only numbers, strings, tensors and lists, tuples and dicts of"
        )
        raise ProtectError(text + " them are protected. Give objects with a state_dict to run.protect")
