"""`relume bench`: what fault tolerance costs while nothing fails, measured beside plain DDP."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from relume.cli.ended import code_of, terminate
from relume.errors import ConfigError
from relume.torch_check import check_torch

MODELS = ("linear", "charlm", "tiny-1000")
PAIRS, SIZE_MB = 20, 64.0
OUT = Path("docs/performance")
DESCRIPTION = """\
Measure steps of relume beside those of plain DistributedDataParallel over Gloo. A pair is a block of steps of each:
same model, optimizer, threads (1) and samples per worker, alternating in one run, the idle side blocked. DDP is the
best of its settings, found by a tournament before."""
EPILOG = """\
what is measured beside the pairs, by the same number of processes:
  alone        the same loop with no exchange at all: what the script's own code costs
  raw          the bare kernel: the same bytes copied, summed in tree order and copied out through one shared mapping
  memory_pass  one copy of the same bytes: the physical limit
  gloo         one dist.all_reduce of the same bytes
the engine's own time per step = relume - alone - raw, of each round; its budget: 300 us, and 1 us per parameter tensor

exit codes: 0 done, 1 the two sides' weights are not close at the end (so the work was not equal), 2 usage, or a side
failed, 130 Ctrl-C, 143 SIGTERM."""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    result = argparse.ArgumentParser(
        prog="relume bench", description="What does fault tolerance cost while nothing fails?", allow_abbrev=False
    )
    verbs = result.add_subparsers(dest="verb", required=True, metavar="step|sweep")
    step = verbs.add_parser(
        "step",
        help="one measurement",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = step.add_argument
    add("--workers", type=int, default=4, metavar="N", help="worker processes of each side (default 4)")
    add("--model", choices=MODELS, default="linear", help="what is trained (default linear)")
    add("--size-mb", type=float, default=None, metavar="M",
        help=f"MiB of float32 gradient, of the model linear (default {SIZE_MB:g})")  # fmt: skip
    add("--batch", type=int, default=None, metavar="B",
        help="samples per worker and step (default: that of the example, or, for the model linear, such that DDP "
        "spends half of its step communicating)")  # fmt: skip
    _add_common(step)
    sweep = verbs.add_parser(
        "sweep",
        help="many measurements, and plots of them",
        description="Measure the model linear with 1 to 64 MiB of gradient at 4 and 2 workers, and with 1 to 8 workers "
        "at 16 MiB. Write sweep.json and the plots. Takes about 20 minutes.",
        allow_abbrev=False,
    )
    sweep.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where to write (default {OUT})")
    sweep.add_argument("--resume", action="store_true", help="keep the points that DIR/sweep.json has already")
    _add_common(sweep)
    return result


def _add_common(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--pairs", type=int, default=PAIRS, metavar="N", help=f"pairs of blocks (default {PAIRS})")
    add("--seed", type=int, default=0, metavar="N", help="of weights, data and the bootstrap (default 0)")
    add("--single-backward", action="store_true", help="say run.steps(..., single_backward=True)")
    add("--quick", action="store_true", help="a few steps, to see that it works: the figures say nothing")
    add("--json", action="store_true", help="print one JSON object")


def main(argv: Sequence[str]) -> int:
    """Run `relume bench`; return the exit code."""
    options = parser().parse_args(argv)
    if sys.platform != "linux":
        raise ConfigError("`relume bench` runs fleets, which need Linux")
    check_torch()
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        return _step(options) if options.verb == "step" else _sweep(options)
    except KeyboardInterrupt as interrupt:
        print("relume bench: ended by a signal, and so is all that it had started", file=sys.stderr)
        return code_of(interrupt)
    finally:
        signal.signal(signal.SIGTERM, before)


def _step(options: argparse.Namespace) -> int:
    if options.size_mb is not None and options.model != "linear":
        raise ConfigError(f"--size-mb: the size of {options.model} is its own; only that of linear can be chosen")
    size_mb = SIZE_MB if options.size_mb is None else options.size_mb
    said = _measured(options, options.model, options.workers, size_mb, options.batch)
    if options.json:
        print(json.dumps(said))
    else:
        from relume.bench.table import as_tables  # noqa: PLC0415 - as below

        Console(highlight=False).print(as_tables(said))
    return 0 if said["ok"] else 1


def _sweep(options: argparse.Namespace) -> int:
    from relume.bench.plots import check_matplotlib, plot  # noqa: PLC0415 - as below
    from relume.bench.sweep import Notebook, points, sweep  # noqa: PLC0415

    check_matplotlib()
    notebook = Notebook(options.out, go_on=options.resume)
    wanted = points(quick=options.quick)
    _tell(f"{len(wanted)} points, {sum(map(notebook.has, wanted))} of them measured already, into {notebook.path}")
    for point, said in sweep(
        notebook, wanted, lambda point: _measured(options, "linear", point.workers, point.size_mb, None)
    ):
        ratio = said["relume_over_ddp"]
        _tell(f"{point}: relume takes {ratio['median']:.3f} of DDP's time ({ratio['low']:.3f} to {ratio['high']:.3f})")
    files = [str(path) for path in plot(notebook.found, options.out)]
    ok = all(said["ok"] for said in notebook.found)
    if options.json:
        print(json.dumps({"v": 1, "ok": ok, "files": files, "points": notebook.found}))
    else:
        print("\n".join([str(notebook.path), *files]))
    return 0 if ok else 1


def _measured(
    options: argparse.Namespace, model: str, workers: int, size_mb: float, batch: int | None
) -> dict[str, Any]:
    """Measure in a folder that is gone afterwards; return the object that says what came out."""
    from relume.bench.check import check  # noqa: PLC0415 - numpy and more come with these, and `--help` needs none
    from relume.bench.orders import Terms  # noqa: PLC0415
    from relume.bench.prepare import Request  # noqa: PLC0415
    from relume.bench.report import as_json  # noqa: PLC0415
    from relume.bench.step import measure  # noqa: PLC0415
    from relume.chaos.shipped import shipped  # noqa: PLC0415

    charlm = str(shipped("charlm.py"))
    terms = Terms(workers, model, size_mb, options.seed, charlm, single_backward=options.single_backward)
    check(terms, options.pairs, batch)
    folder = Path(tempfile.mkdtemp(prefix="relume-bench-"))
    try:
        return as_json(measure(Request(terms, options.pairs, batch, options.quick), folder, _tell))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(text: str) -> None:
    print(f"relume bench: {text}", file=sys.stderr, flush=True)
