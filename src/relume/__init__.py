"""relume: fault tolerance as a native property of distributed PyTorch training.

The names below are all that a script needs; they are loaded when first used, so that the command line works, and
says what is missing, where torch is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relume.version import __version__

if TYPE_CHECKING:
    from relume.train.loop import Loop
    from relume.train.run import Run, init
    from relume.train.shards import Shards
    from relume.train.step import Step

__all__ = ["Loop", "Run", "Shards", "Step", "__version__", "init"]

_HOMES = {"Loop": "loop", "Run": "run", "init": "run", "Shards": "shards", "Step": "step"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'relume' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from relume.torch_check import check_torch  # noqa: PLC0415

    check_torch()
    value: object = getattr(import_module(f"relume.train.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
