"""Buffers of the protected modules: every shard starts from the step's start, and shard 0 decides how they go on.

That is what DDP's `broadcast_buffers` does (from rank 0), made independent of who computes. Buffers are copied
whole on every shard: kernels such as batch normalisation write running statistics without raising a version.
"""

from __future__ import annotations

import torch
from torch import nn

from relume.arena.layout import ALIGNMENT, round_up
from relume.errors import ProtectError

Places = list[tuple[nn.Module, str, str]]


class Buffers:
    """The buffers at `places`, with a private copy of how they stood at the step's start."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._base: list[torch.Tensor] = []
        self.size = sum(round_up(_bytes(self._current(place)), ALIGNMENT) for place in places)

    def begin(self) -> None:
        """Remember the buffers as they are: the start of a step."""
        current = [self._current(place) for place in self._places]
        if not self._base:
            self._base = [buffer.detach().clone() for buffer in current]
            return
        for (_, _, name), base, buffer in zip(self._places, self._base, current, strict=True):
            if buffer.shape != base.shape or buffer.dtype != base.dtype:
                before, after = f"{base.dtype} {tuple(base.shape)}", f"{buffer.dtype} {tuple(buffer.shape)}"
                text = f"buffer {name} changed from {before} to {after} during the run"
                raise ProtectError(text + ": buffers keep their shape and dtype")
            base.copy_(buffer)

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Put the buffers back to the step's start."""
        for place, base in zip(self._places, self._base, strict=True):
            self._current(place).copy_(base)

    @torch.no_grad()
    def store_buffers(self, into: torch.Tensor) -> None:
        """Copy the buffers as they are into `into` (uint8)."""
        for place, view in zip(self._places, self._views(into), strict=True):
            view.copy_(self._current(place))

    @torch.no_grad()
    def load_buffers(self, source: torch.Tensor) -> None:
        """Copy the buffers that stand in `source` (uint8) into the modules."""
        for place, view in zip(self._places, self._views(source), strict=True):
            self._current(place).copy_(view)

    def snapshot(self) -> list[torch.Tensor]:
        """Return copies of all buffers."""
        return [self._current(place).detach().clone() for place in self._places]

    @torch.no_grad()
    def put_back(self, snapshot: list[torch.Tensor]) -> None:
        """Undo every change since `snapshot`."""
        for place, old in zip(self._places, snapshot, strict=True):
            self._current(place).copy_(old)

    def _views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        views, offset = [], 0
        for place in self._places:
            buffer = self._current(place)
            size = _bytes(buffer)
            views.append(memory[offset : offset + size].view(buffer.dtype).view(buffer.shape))
            offset += round_up(size, ALIGNMENT)
        return views

    @staticmethod
    def _current(place: tuple[nn.Module, str, str]) -> torch.Tensor:
        module, key, name = place
        buffer = module._buffers.get(key)  # noqa: SLF001  (a replaced buffer must be found)
        if buffer is None:
            raise ProtectError(f"buffer {name} was removed during the run: buffers stay, with their shape and dtype")
        return buffer


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
