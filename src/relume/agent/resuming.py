"""Whether a checkpoint was written by this very script: only then does going on from it give the bits of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def other_script(wrote: Mapping[str, Any], now: Mapping[str, Any], terms: Sequence[str]) -> str:
    """Say what makes this script another than the one that wrote a checkpoint ("": nothing).

    `wrote` and `now` are the facts of both runs, `terms` what a worker of this one stands for. How many steps there
    shall be may change, and so may the machine, of which `other_machine` tells.
    """
    before = _own(wrote.get("terms", ()), wrote.get("numerics", {}))
    after = _own(terms, now.get("numerics", {}))
    for old, new in zip(before, after, strict=False):
        if old != new:
            return f"is of another script: `{old}` is now `{new}`. {_OTHER}"
    if before and len(before) != len(after):
        return f"is of another script: it had {len(before)} lines of terms, this one has {len(after)}. {_OTHER}"
    return ""


def other_machine(wrote: Mapping[str, Any], profile: Mapping[str, str]) -> str:
    """Say in what the numerics of a checkpoint's run are not this one's ("": in nothing): then bits may differ."""
    before = wrote.get("numerics", {})
    names = sorted(name for name in {*before, *profile} if before and before.get(name) != profile.get(name))
    listed = "; ".join(f"{name}: {before.get(name, 'not told')}, now {profile.get(name, 'not told')}" for name in names)
    return f"the checkpoint was written with other numerics ({listed}): from here on bits may differ" if listed else ""


_OTHER = (
    "To go on bit for bit, run the script as it was; to begin another run from these weights, "
    "`relume checkpoint export` them"
)


def _own(terms: Sequence[str], numerics: Mapping[str, str]) -> list[str]:
    machine = {f"{name}: {value}" for name, value in numerics.items()}
    return [term for term in terms if term not in machine and not term.startswith("total: ")]
