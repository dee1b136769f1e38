"""Words in the number that fits."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
