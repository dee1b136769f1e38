"""What is wrong with a checkpoint, in full and by name, for people who want to know what they have lost.

Loading stops at the first doubt. This reads on: which files are damaged, and which tensors with them.
"""

from __future__ import annotations

from pathlib import Path

from relume.state import disk, manifest, tree
from relume.state.manifest import Progress, Unusable

NAMED_MAX = 20


def examine(path: Path, progress: Progress | None = None) -> list[str]:
    """Return everything that is wrong with the checkpoint at `path`; nothing if it would be loaded."""
    try:
        described = manifest.read(path)
    except Unusable as error:
        return [str(error)]
    wrong = manifest.faults(path, described, progress)
    if not wrong:
        try:
            disk.load(path)
        except Unusable as error:
            return [str(error)]
        return []
    if not any(fault.startswith(f"{manifest.SKELETON} ") for fault in wrong):
        wrong += _tensors(path, described)
    return wrong


def _tensors(path: Path, described: manifest.Manifest) -> list[str]:
    """Return which tensors do not have the bits that were written."""
    facts = tree.facts((path / manifest.SKELETON).read_bytes())
    lost = [tensor.key for index, tensor in enumerate(described.tensors) if not _reads(path, described, facts, index)]
    if not lost:
        return ["every tensor can still be read: what is damaged lies between them"]
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    return [f"{len(lost)} of {len(described.tensors)} tensors are damaged: {', '.join(lost[:NAMED_MAX])}{more}"]


def _reads(path: Path, described: manifest.Manifest, facts: list[tree.TensorFacts], index: int) -> bool:
    try:
        disk.read_tensor(path, described, facts, index)
    except Exception:  # noqa: BLE001 - damaged bytes make PyTorch fail in any way there is
        return False
    return True
