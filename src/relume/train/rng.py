"""Randomness as a function of what is computed, never of who computes it or when (Invariants 1 and 2).

Every place that may draw random numbers (a shard, its loading, the update) starts from a seed that is derived from the
run's seed and the place's name. Seeding costs a few microseconds, so that it can be done for every shard.

This module does not know when to seed: the engine and the loader do.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def derive(seed: int, *words: object) -> int:
    """Return the 32-bit seed of the place that `words` name, in a run of `seed`.

    It is the first four bytes, little-endian, of SHA-256 over the text ``relume|seed|word|word...``. 32 bits, because
    torch's CPU generator uses no more of what it is given.
    """
    text = "|".join(["relume", str(seed), *map(str, words)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def seed_all(value: int) -> None:
    """Seed torch, CUDA where it is in use, NumPy's global generator and `random` with `value`.

    `torch.manual_seed` would do the same for torch and takes a hundred times as long: it visits every backend, used or
    not. A CUDA that nothing has used yet is left alone, since seeding would be the first use.
    """
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # false in a forked child, which must not touch the parent's
        torch.cuda.manual_seed_all(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 - users' augmentation draws from the global generator
    random.seed(value)


@dataclass(frozen=True, slots=True)
class RngState:
    """Where every generator stood: made by `capture`, given back by `restore`."""

    cpu: torch.Tensor
    cuda: list[torch.Tensor] | None
    numpy: Any
    python: tuple[Any, ...]


def capture() -> RngState:
    """Return where every generator stands now."""
    return RngState(
        cpu=torch.default_generator.get_state(),
        cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        numpy=np.random.get_state(),  # noqa: NPY002 - the same global generator as above
        python=random.getstate(),
    )


def restore(state: RngState) -> None:
    """Put every generator back to where it stood at `capture`."""
    torch.default_generator.set_state(state.cpu)
    if state.cuda is not None:
        torch.cuda.set_rng_state_all(state.cuda)
    np.random.set_state(state.numpy)  # noqa: NPY002 - the same global generator as above
    random.setstate(state.python)
