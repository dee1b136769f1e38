"""Where `tools/verify.py` and `examples/charlm.py` are: in the wheel beside this package, or in the source tree."""

from __future__ import annotations

from pathlib import Path

from relume.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_IN_TREE = {"verify.py": "tools", "charlm.py": "examples"}


def shipped(name: str) -> Path:
    """Return the path of `verify.py` or `charlm.py`. Raises `ConfigError` if this installation lacks it."""
    tree = _PACKAGE.parents[1]
    for path in (_PACKAGE / "shipped" / name, tree / _IN_TREE[name] / name):
        if path.is_file():
            return path
    raise ConfigError(f"relume in {_PACKAGE} lacks {name}: install its wheel, or use a whole checkout")
