"""A digest of one sample: two workers whose digests differ do not see the same data (Invariant 8).

It is made of what people put into samples: tensors, arrays, images, numbers, text, and containers of them. Of any other
object only the type counts, since its bytes may differ between two processes that mean the same.

This module does not know which sample is compared, nor with whose.
"""

from __future__ import annotations

import numpy as np
import torch
import xxhash

from relume.train.batches import leaves

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose `repr` says everything, the same in every process."""


def fingerprint(sample: object) -> str:
    """Return 32 hex digits that are equal for equal samples, whatever process made them."""
    digest = xxhash.xxh3_128()
    for path, leaf in leaves(sample, "sample"):
        for part in (path.encode(), *_parts(leaf)):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _parts(leaf: object) -> tuple[bytes, ...]:
    """Return what of a leaf goes into the digest."""
    name = type(leaf).__qualname__.encode()
    if isinstance(leaf, torch.Tensor):
        about = f"{leaf.dtype} {tuple(leaf.shape)}".encode()
        if leaf.layout is not torch.strided or leaf.is_nested:
            return name, about
        flat = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return name, about, flat.view(torch.uint8).numpy().tobytes()
    if isinstance(leaf, _PLAIN):
        return name, repr(leaf).encode()
    if isinstance(leaf, (set, frozenset)) and all(isinstance(item, _PLAIN) for item in leaf):
        return name, *sorted(repr(item).encode() for item in leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) or hasattr(leaf, "__array_interface__"):  # a PIL image has one
        array = np.asarray(leaf)
        about = f"{array.dtype} {array.shape}".encode()
        return (name, about) if array.dtype.hasobject else (name, about, array.tobytes())
    return (name,)
