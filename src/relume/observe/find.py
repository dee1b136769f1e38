"""Which run a person means: by its id, by its folder, or `latest`."""

from __future__ import annotations

from pathlib import Path

from relume.errors import ConfigError

EVENTS = "events.jsonl"
LATEST = "latest"
_NAMED_MAX = 5


def find_run(name: str, root: Path) -> Path:
    """Return the folder of the run `name`, an id under `root` or a path. Raises `ConfigError`, saying what is there."""
    candidates = [root / name, Path(name)] if name else []
    for folder in candidates:
        if (folder / EVENTS).is_file():
            return folder.resolve()
    for folder in candidates:
        if folder.is_dir():
            raise ConfigError(f"{folder} is no folder of a run: there is no {EVENTS} in it")
    known = known_runs(root)
    if not known:
        raise ConfigError(
            f"there is no run {name!r}: {root} holds none. Start one with `relume run`, give the folder of one, "
            "or say with --run-dir-root where they are"
        )
    newest = ", ".join(known[:_NAMED_MAX]) + (", ..." if len(known) > _NAMED_MAX else "")
    raise ConfigError(f"there is no run {name!r} in {root}. The newest there: {newest}")


def known_runs(root: Path) -> list[str]:
    """Return the ids of the runs under `root`, the newest first."""
    try:
        found = [folder.name for folder in root.iterdir() if folder.name != LATEST and (folder / EVENTS).is_file()]
    except OSError:
        return []
    return sorted(found, reverse=True)
