"""Is there a torch that relume can use? Asked before anything of ours imports it."""

from __future__ import annotations

from importlib import metadata

from relume.errors import IncompatibleTorch

TORCH_MIN = (2, 13)


def torch_version() -> str | None:
    """Return the installed torch's version, or None. Reads package metadata only."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def check_torch() -> None:
    """Raise `IncompatibleTorch` unless torch is installed and new enough."""
    needed = ".".join(map(str, TORCH_MIN))
    found = torch_version()
    if found is None:
        text = f"relume needs torch {needed} or newer and none is installed."
        raise IncompatibleTorch(text + " Install the build for your machine (https://pytorch.org), or relume[torch]")
    parts = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdecimal())
    if parts < TORCH_MIN:
        text = f"relume needs torch {needed} or newer; {found} is installed."
        raise IncompatibleTorch(text + " Upgrade torch; relume never does it for you")
