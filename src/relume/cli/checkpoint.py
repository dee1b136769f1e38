"""`relume checkpoint`: what is in a folder of checkpoints, whether it is whole, and a model out of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from relume.core.words import plural
from relume.errors import ConfigError
from relume.state import folder, manifest

if TYPE_CHECKING:
    from relume.state.disk import Loaded

EPILOG = """exit codes: 0 all is well; 1 verify: something is damaged, export: the checkpoint is; 2 usage.
DIR is a folder of checkpoints (--checkpoint-dir), or a single one in it. `ls` looks at sizes only; `verify` reads every
byte. Checkpoints are in PyTorch's format: torch.distributed.checkpoint reads them too. Like every checkpoint of
PyTorch's they hold pickled parts: open only what you trust."""
VERSION = 1


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume checkpoint",
        description="List checkpoints, verify every bit of them, or get a model out as a safetensors file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = result.add_subparsers(dest="verb", required=True, metavar="ls|verify|export")
    ls = verbs.add_parser("ls", help="list them: step, time, size, and whether each looks whole", allow_abbrev=False)
    verify = verbs.add_parser("verify", help="read every byte and say what is wrong where", allow_abbrev=False)
    export = verbs.add_parser("export", help="write a model's tensors as a safetensors file", allow_abbrev=False)
    for verb in (ls, verify, export):
        verb.add_argument("directory", type=Path, metavar="DIR", help="a folder of checkpoints, or one of them")
        verb.add_argument("--json", action="store_true", help="print one JSON object")
    for verb in (verify, export):
        verb.add_argument("--step", type=int, default=None, metavar="N", help="only the checkpoint of step N")
    export.add_argument("--name", default=None, help="which protected model (default: `model`, or the only one)")
    export.add_argument(
        "--out", type=Path, default=None, metavar="FILE", help="where to (default: ./NAME-STEP.safetensors)"
    )
    export.add_argument("--force", action="store_true", help="replace FILE if it is there")
    return result


def main(argv: Sequence[str]) -> int:
    """Run `relume checkpoint`; return the exit code."""
    options = parser().parse_args(argv)
    found = _find(options.directory, getattr(options, "step", None))
    code: int = {"ls": _ls, "verify": _verify, "export": _export}[options.verb](options, found)
    return code


def _find(where: Path, step: int | None) -> list[Path]:
    """Return the checkpoints that are meant, the newest first. Raises `ConfigError`."""
    try:
        if not where.exists():
            raise ConfigError(f"there is no folder {where}")
        if not where.is_dir():
            raise ConfigError(f"{where} is a file: give the folder of checkpoints, or one checkpoint's folder")
        inside = {entry.name for entry in where.iterdir()}
        steps = folder.steps(where)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({error.strerror})") from error
    if manifest.MANIFEST in inside or (not steps and folder.is_name(where.resolve().name)):
        steps, found = [], [where]
    else:
        found = [where / folder.name(each) for each in steps if step in {None, each}]
    if found:
        return found
    if step is not None and steps:
        there = ", ".join(map(str, steps))
        raise ConfigError(f"there is no checkpoint of step {step} in {where}; there are those of {there}")
    if ".metadata" in inside:
        text = f"{where} is a PyTorch checkpoint that relume did not write: it has no {manifest.MANIFEST}."
        raise ConfigError(text + " torch.distributed.checkpoint reads it")
    raise ConfigError(f"there is no checkpoint in {where} (a checkpoint is a folder such as {folder.name(40)})")


# ls -----------------------------------------------------------------------------------------------------------------


def _ls(options: argparse.Namespace, found: list[Path]) -> int:
    rows = [_row(path) for path in found]
    named = folder.latest(options.directory)
    dangling = named is not None and named not in {path.name for path in found}
    if options.json:
        print(json.dumps({"v": VERSION, "directory": str(options.directory), "latest": named, "checkpoints": rows}))
        return 0
    for path, row in zip(found, rows, strict=True):
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["written_s"])) if row["written_s"] else "?"
        size = f"{row['bytes'] / 2**20:.1f} MiB" if row["bytes"] is not None else "?"
        mark = "latest" if path.name == named else ""
        state = "whole" if row["whole"] else f"not whole: {row['fault']}"
        print(f"step {row['step']:<10} {written:<20} {size:>12}  {mark:<6}  {state}")
    if dangling:
        print(f"`latest` names {named}, which is not there; relume does not need it")
    if leftovers := folder.leftovers(options.directory):
        print(f"{plural(leftovers, 'checkpoint')} unfinished: being written, or left by a writer that was killed")
    return 0


def _row(path: Path) -> dict[str, Any]:
    fault = folder.fault(path)
    try:
        described = manifest.read(path)
    except manifest.Unusable:
        step = int(path.resolve().name.rpartition("-")[2]) if folder.is_name(path.resolve().name) else None
        return {"step": step, "path": str(path), "whole": False, "fault": fault, "bytes": None, "written_s": None}
    return {
        "step": described.step,
        "path": str(path),
        "whole": fault is None,
        "fault": fault,
        "bytes": described.size,
        "written_s": described.written_s,
        "relume": described.relume,
        "torch": described.torch,
        "facts": described.facts,
    }


# verify -------------------------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace, found: list[Path]) -> int:
    from relume.state.examine import examine  # noqa: PLC0415 - it needs torch, which `ls` does not wait for

    with _bar("reading", sum(_size(path) for path in found)) as advance:
        wrong = {path: examine(path, advance) for path in found}
    if options.json:
        rows = [{**_row(path), "whole": not faults, "faults": faults} for path, faults in wrong.items()]
        print(json.dumps({"v": VERSION, "ok": not any(wrong.values()), "checkpoints": rows}))
    else:
        for path, faults in wrong.items():
            print(f"{path}: {'every bit is as written' if not faults else 'DAMAGED'}")
            for fault in faults:
                print(f"  {fault}")
    return 1 if any(wrong.values()) else 0


def _size(path: Path) -> int:
    try:
        return manifest.read(path).size
    except manifest.Unusable:
        return 0


# export -------------------------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace, found: list[Path]) -> int:
    if options.out is not None:
        _check_out(options.out, force=options.force)
    from relume.state import disk, export  # noqa: PLC0415 - they need torch

    with _bar("reading", 2 * _size(found[0])) as advance:
        loaded = _load(found, disk.load, advance)
    if loaded is None:
        return 1
    state = loaded.state(trusting=False)
    name = export.choose(state, options.name)
    out = options.out or Path(f"{name}-{loaded.step:08}.safetensors")
    _check_out(out, force=options.force)
    notes = {"relume_step": str(loaded.step), "relume_name": name, "relume_run": str(loaded.manifest.facts.get("run"))}
    try:
        size = export.write(out, state[name], notes)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    if options.json:
        told = {"v": VERSION, "step": loaded.step, "name": name, "from": str(loaded.path), "out": str(out)}
        print(json.dumps({**told, "bytes": size, "tensors": sorted(state[name])}))
    else:
        print(f"{name} of step {loaded.step} ({plural(len(state[name]), 'tensor')}, {size / 2**20:.1f} MiB): {out}")
    return 0


def _load(
    found: list[Path], load: Callable[[Path, manifest.Progress], Loaded], advance: manifest.Progress
) -> Loaded | None:
    """Return the newest that verifies, telling of those that do not; None if none does."""
    for path in found:
        try:
            return load(path, advance)
        except manifest.Unusable as error:
            print(f"relume checkpoint: {path} cannot be trusted: {error}", file=sys.stderr)
    print("relume checkpoint: nothing was exported", file=sys.stderr)
    return None


def _check_out(out: Path, *, force: bool) -> None:
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: give a file")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out.exists() and not force:
        raise ConfigError(f"{out} is there already: --force replaces it, --out FILE writes another")


@contextlib.contextmanager
def _bar(what: str, total: int) -> Iterator[manifest.Progress]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda count: bar.advance(task, count)
