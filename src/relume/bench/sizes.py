"""How large things are: the layers of the linear model, and the memory that a measurement needs. Pure arithmetic."""

from __future__ import annotations

from relume.arena.layout import KEPT_BEYOND, MIRRORS, SLOTS_EAGER

MIB = 1 << 20
LAYERS_MIN = 8
"""The linear model has so many layers at least, so that DDP has buckets to overlap with the backward."""
WIDTH_MIN = 16
SIZE_MB_MIN = 0.01
WORKERS_MAX = 64
CHARLM_BATCH = 48
"""Windows in the global batch of `examples/charlm.py`."""
TINY_BATCH = 16
MIRROR_EVERY = 8
"""`relume run` mirrors so often by default."""
_PROCESS_BYTES = 200 * MIB
"""A process with torch in it, beside what it shares with others; measured as PSS."""
_SMALL_MB = {"charlm": 2.0, "tiny-1000": 0.05}


def linear_shape(size_mb: float) -> tuple[int, int]:
    """Return (width, layers) of a stack of square layers with `size_mb` MiB of float32 parameters, as near as it gets.

    The width is the largest power of two that leaves at least `LAYERS_MIN` layers: 64 MiB are 16 layers of 1024.
    """
    numbers = size_mb * MIB / 4
    width = WIDTH_MIN
    while (2 * width) ** 2 * LAYERS_MIN <= numbers:
        width *= 2
    return width, max(1, round(numbers / width**2))


def gradient_bytes(model: str, size_mb: float) -> int:
    """Return the bytes of one gradient; of models of a fixed size, more than it has."""
    if model != "linear":
        return int(_SMALL_MB[model] * MIB)
    width, layers = linear_shape(size_mb)
    return 4 * width * width * layers


def needed_bytes(model: str, size_mb: float, workers: int) -> dict[str, int]:
    """Return what each side will need, with all sides in memory at once.

    relume: parameters and gradients of each worker, two slots each, the kept results, two mirrors of the state. DDP:
    parameters, gradients, buckets, and a flat tensor. Bare processes: parameters, gradients, and the raw kernel's
    gradient, result and slot each.
    """
    gradient = gradient_bytes(model, size_mb)
    kept = MIRROR_EVERY + KEPT_BEYOND
    return {
        "relume": gradient * (workers * (2 + SLOTS_EAGER) + kept + MIRRORS) + (workers + 1) * _PROCESS_BYTES,
        "ddp": gradient * workers * 4 + workers * _PROCESS_BYTES,
        "bare": gradient * (workers * 5 + 1) + workers * _PROCESS_BYTES,
    }
