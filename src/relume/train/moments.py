"""Moments deep inside the forward pass, for traps: the k-th module that is called within a shard.

Nothing is hooked unless a trap waits in `forward`, and never beside compiled modules, where a hook could change what is
compiled and with it the bits. A trap that finds no moment inside springs at the end of the phase.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from relume.arena.progress import Progress


def forward_moments(progress: Progress, modules: Collection[nn.Module]) -> list[Any]:
    """Hook every module's forward if a trap waits there; return the handles, each with `remove()`."""
    if not progress.wants("forward") or any(_is_compiled(part) for root in modules for part in root.modules()):
        return []

    def before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        del module, arguments
        if progress.phase == "forward":
            progress.spring("forward")

    return [register_module_forward_pre_hook(before)]


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
