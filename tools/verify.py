"""Compare the records of a fleet with those of the same script run plainly, and give a verdict.

    python tools/verify.py --reference DIR --run DIR [--survivors 0,2] [--json]

It imports nothing of relume, so that what it says does not rest on the code it judges: it reads what each process
wrote under RELUME_RECORD=DIR, `record-RANK.jsonl` with one line per step and, at the end, `final-RANK.pt` with the
state itself. It does not know how the digests were made: it asks that they are equal, and counts bits in the states.

A worker that was killed may lack its line for the step that it died in, and all that come after. Nothing else may be
missing, doubled or different, and the loss must fall. Exit status: 0 when nothing differs, 1 when something does.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# A worker may be named a member for so many steps after the last that it recorded. It may have taken a step and died
# before it wrote the line; the others may then finish one more step without it, or two if results are kept twice, since
# a result is overwritten only when every member has taken it.
STEPS_NAMED_AFTER_LAST_LINE_MAX = 3
STEPS_MAX = 1_000_000  # so that a damaged number cannot make us count for hours

State = dict[str, object]  # the state dict of each protected object, by its name


@dataclass
class Line:
    """What one worker wrote about one step."""

    run: str
    step: int
    view: tuple[int, int]
    members: tuple[int, ...]
    digest: str
    means: dict[str, str]


@dataclass
class Worker:
    """All that one rank left in a folder."""

    rank: int
    lines: list[Line] = field(default_factory=list)
    torn: bool = False  # the file ends in the middle of a line
    final: State | None = None
    final_step: object = None
    final_error: str = "left no final state"  # why there is no `final`; "" when there is

    @property
    def last(self) -> int:
        """The last step that it recorded, -1 for none."""
        return max((line.step for line in self.lines), default=-1)


def verify(
    reference_dir: Path | str, run_dir: Path | str, survivors: Collection[int] | None = None, loss: str = "loss"
) -> dict[str, Any]:
    """Judge `run_dir` by `reference_dir`.

    `survivors` are the ranks known (from their exit status) to have finished: each must have left everything. Without
    it, whoever left a final state or recorded the last step is held to have finished. `loss` is the logged value that
    must fall. The answer is the object that `--json` prints; its "ok" is true when "differences" is empty.
    """
    differences: list[str] = []
    if Path(reference_dir).resolve() == Path(run_dir).resolve():
        differences.append("the reference and the run are the same folder")
    reference = read_folder(Path(reference_dir), "reference: ", differences)
    workers = read_folder(Path(run_dir), "", differences)
    by_step = {line.step: line for line in check_reference(reference, differences)}

    last = max((worker.last for worker in workers.values()), default=-1)
    finished = {rank for rank, worker in workers.items() if not worker.final_error or worker.last == last}
    if survivors is not None:
        finished = set(survivors)
    for rank in sorted(finished - workers.keys()):
        workers[rank] = Worker(rank)
    if not finished:
        differences.append("no worker finished")
    check_lines(workers, finished, last, differences)
    check_views(workers, differences)
    lost = check_steps(workers, by_step, last, differences)
    original = reference[0].final if 0 in reference else None
    bits = {rank: check_final(workers[rank], original, last, differences) for rank in sorted(workers)}
    counted = [n for n in bits.values() if n is not None]
    loss_first, loss_last = check_loss(workers, loss, differences)
    return {
        "ok": not differences,
        "steps": last + 1,
        "reference_steps": len(by_step),
        "lost_steps": lost,
        "differing_bits": sum(counted) if counted else None,
        "final_states": len(counted),
        "loss_first": loss_first,
        "loss_last": loss_last,
        "survivors": sorted(finished),
        "workers": [
            {
                "rank": w.rank,
                "lines": len(w.lines),
                "last": w.last,
                "finished": w.rank in finished,
                "bits": bits[w.rank],
            }
            for _, w in sorted(workers.items())
        ],
        "differences": differences,
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def read_folder(folder: Path, prefix: str, differences: list[str]) -> dict[int, Worker]:
    """Everything that the workers left in `folder`, by rank."""
    workers: dict[int, Worker] = {}
    for path in sorted(folder.glob("*")):
        if match := re.fullmatch(r"(?:record|final)-(\d+)\.(?:jsonl|pt)", path.name):
            workers.setdefault(int(match[1]), Worker(int(match[1])))
    if not workers:
        differences.append(f"{prefix}no records in {folder}")
    for worker in workers.values():
        read_final(worker, folder / f"final-{worker.rank}.pt")
        read_lines(worker, folder / f"record-{worker.rank}.jsonl", prefix, differences)
    if len(runs := {line.run for worker in workers.values() for line in worker.lines}) > 1:
        differences.append(f"{prefix}records of several runs lie in {folder}: {', '.join(sorted(runs))}")
    return workers


def read_lines(worker: Worker, path: Path, prefix: str, differences: list[str]) -> None:
    """Read a worker's lines; only what follows the last newline may be torn."""
    *texts, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    for number, text in enumerate([*texts, rest] if rest else texts, start=1):
        try:
            worker.lines.append(parse_line(text, worker.rank))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number > len(texts):
                worker.torn = True
            else:
                differences.append(f"{prefix}worker {worker.rank}, line {number}: cannot be read ({error!r})")


def parse_line(text: bytes, rank: int) -> Line:
    """Parse one line, and refuse whatever is not exactly as it should be."""
    data = json.loads(text.decode())
    run, step, view, members, digest = (data[key] for key in ("run", "step", "epoch_view", "members", "digest"))
    if data["v"] != 1 or data["rank"] != rank:
        raise ValueError(f"version {data['v']}, rank {data['rank']}")
    if not (isinstance(run, str) and isinstance(digest, str) and digest):
        raise ValueError("run and digest must be text")
    if any(type(value) is not int for value in (step, *view, *members)) or len(view) != 2:
        raise ValueError("step, view and members must be whole numbers")
    if not 0 <= step < STEPS_MAX:
        raise ValueError(f"step {step} is out of range")
    if rank not in members or len(set(members)) != len(members):
        raise ValueError(f"rank {rank} must stand among the members {members}, nobody twice")
    for value in data["means"].values():
        float.fromhex(value)
    return Line(run, step, (view[0], view[1]), tuple(members), digest, data["means"])


def read_final(worker: Worker, path: Path) -> None:
    """Load a final state. Only tame types are loaded: nothing in the file can run code."""
    if not path.exists():
        return
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        worker.final, worker.final_step, worker.final_error = dict(data["state"]), data["step"], ""
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything; whatever it is, it is reported
        worker.final_error = f"its final state cannot be read ({str(error).splitlines()[0] if str(error) else error!r})"


# --- judging ----------------------------------------------------------------------------------------------------------


def check_reference(workers: Mapping[int, Worker], differences: list[str]) -> list[Line]:
    """The reference must itself be whole: one worker, every step once, a final state."""
    if not workers:
        return []
    if set(workers) != {0}:
        differences.append(f"reference: a plain run is rank 0 alone, found {sorted(workers)}")
    reference = workers.get(0, Worker(0))
    steps = [line.step for line in reference.lines]
    if steps != list(range(len(steps))) or not steps:
        differences.append("reference: its steps are not 0, 1, 2, ... each once")
    if reference.torn:
        differences.append("reference: its last line is torn")
    if reference.final_error:
        differences.append(f"reference: {reference.final_error}")
    elif reference.final_step != reference.last:
        differences.append(f"reference: its final state is of step {reference.final_step}, not {reference.last}")
    return reference.lines


def check_lines(workers: Mapping[int, Worker], finished: Collection[int], last: int, differences: list[str]) -> None:
    """Every worker wrote every step once and in order; only the dead may stop early, and are soon named no more."""
    named: dict[int, int] = {}  # rank: the last step whose members anyone said it was among
    for line in (line for worker in workers.values() for line in worker.lines):
        for member in line.members:
            named[member] = max(named.get(member, -1), line.step)
    for rank in sorted(workers.keys() | named.keys()):
        worker = workers.get(rank, Worker(rank))
        steps = [line.step for line in worker.lines]
        doubled = sorted(step for step, times in Counter(steps).items() if times > 1)
        end = last if rank in finished or not worker.final_error else worker.last
        missing = sorted(set(range(end + 1)) - set(steps))
        if doubled:
            differences.append(f"worker {rank}: recorded twice: {ranges(doubled)}")
        if missing:
            differences.append(f"worker {rank}: no record of: {ranges(missing)}")
        if not doubled and steps != sorted(steps):
            differences.append(f"worker {rank}: its records are not in the order of the steps")
        if rank in finished and worker.final_error:
            differences.append(f"worker {rank}: finished, but {worker.final_error}")
        if worker.torn and (rank in finished or not worker.final_error):
            differences.append(f"worker {rank}: finished, but its last line is torn")
        if rank not in finished and named.get(rank, -1) > worker.last + STEPS_NAMED_AFTER_LAST_LINE_MAX:
            differences.append(f"worker {rank}: last record {worker.last}, named a member until step {named[rank]}")


def check_views(workers: Mapping[int, Worker], differences: list[str]) -> None:
    """A view means the same members to all, and nobody goes back to an older one."""
    members: dict[tuple[int, int], tuple[int, ...]] = {}
    for rank, worker in sorted(workers.items()):
        for line in worker.lines:
            known = members.setdefault(line.view, tuple(sorted(line.members)))
            if known != tuple(sorted(line.members)):
                differences.append(
                    f"worker {rank}, step {line.step}: view {line.view} has members {line.members}, elsewhere {known}"
                )
        for before, line in pairwise(worker.lines):
            if line.view < before.view:
                differences.append(f"worker {rank}, step {line.step}: went back from view {before.view} to {line.view}")


def check_steps(workers: Mapping[int, Worker], reference: Mapping[int, Line], last: int, differences: list[str]) -> int:
    """Each step has one digest and the same means everywhere, the reference's; return how many steps were lost.

    A step is lost when nobody recorded it, or when those who did disagree about the digest.
    """
    recorded: dict[int, list[tuple[int, Line]]] = {step: [] for step in range(max(last, *reference, -1) + 1)}
    for rank, worker in sorted(workers.items()):
        for line in worker.lines:
            recorded[line.step].append((rank, line))
    lost = 0
    for step, lines in recorded.items():
        digests = sorted({line.digest for _, line in lines})
        lost += len(digests) != 1
        if len(digests) > 1:
            differences.append(f"step {step}: the workers have different digests: {', '.join(digests)}")
        if step not in reference:
            differences.append(f"step {step}: not in the reference")
            continue
        for rank, line in lines:
            check_line(rank, line, reference[step], differences)
    if nobodys := [step for step, lines in recorded.items() if not lines]:
        differences.append(f"nobody recorded {ranges(nobodys)}")
    return lost


def check_line(rank: int, line: Line, expected: Line, differences: list[str]) -> None:
    """A worker's digest and means of a step are the reference's, to the last bit."""
    if line.digest != expected.digest:
        differences.append(f"step {line.step}, worker {rank}: its digest is not the reference's")
    for name in sorted(line.means.keys() | expected.means.keys()):
        here, there = line.means.get(name), expected.means.get(name)
        if here != there:
            differences.append(f"step {line.step}, worker {rank}: mean of {name!r} is {here}, reference {there}")


def check_final(worker: Worker, original: State | None, last: int, differences: list[str]) -> int | None:
    """Count the bits in which a final state differs from the reference's; None when there are not two to compare."""
    if worker.final is None:
        return None
    if worker.final_step != last:
        differences.append(f"worker {worker.rank}: its final state is of step {worker.final_step}, the last is {last}")
    if original is None:
        return None
    found = list(compare(worker.final, original, "state"))
    differences.extend(f"worker {worker.rank}, final {where}: {bits} bits: {what}" for where, bits, what in found)
    return sum(bits for _, bits, _ in found)


def check_loss(workers: Mapping[int, Worker], name: str, differences: list[str]) -> tuple[float | None, float | None]:
    """The mean of the last tenth of the steps must lie below that of the first tenth."""
    lines = (line for worker in workers.values() for line in worker.lines)
    by_step = {line.step: float.fromhex(line.means[name]) for line in lines if name in line.means}
    losses = [by_step[step] for step in sorted(by_step)]
    if not losses:
        differences.append(f"no {name!r} was logged")
        return None, None
    tenth = max(1, len(losses) // 10)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    if not last < first:  # also true when one of them is NaN
        differences.append(f"the {name} did not fall: {first:.6g} at first, {last:.6g} at last")
    return (first, last) if isfinite(first) and isfinite(last) else (None, None)  # JSON has no NaN


# --- comparing states -------------------------------------------------------------------------------------------------


def compare(here: object, there: object, where: str) -> Iterator[tuple[str, int, str]]:
    """Walk two states; yield (place, number of differing bits, what differs) for each difference.

    Tensors and floats are compared by their bits, so that -0.0 is not 0.0 and a NaN equals itself. What has no bits of
    its own (a missing key, another type, another length) counts as one: the sum is 0 only when nothing differs.
    """
    if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
        yield from compare_tensors(here, there, where)
    elif isinstance(here, dict) and isinstance(there, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            if key in here and key in there:
                yield from compare(here[key], there[key], f"{where}[{key!r}]")
            else:
                yield f"{where}[{key!r}]", 1, "missing" if key in there else "not in the reference"
    elif type(here) is not type(there):
        yield where, 1, f"a {type(here).__name__}, in the reference a {type(there).__name__}"
    elif isinstance(here, list | tuple) and isinstance(there, list | tuple):
        yield from compare(dict(enumerate(here)), dict(enumerate(there)), where)
    elif isinstance(here, float) and isinstance(there, float):
        if bits := (as_bits(here) ^ as_bits(there)).bit_count():
            yield where, bits, f"{here!r}, in the reference {there!r}"
    elif here != there:
        yield where, 1, f"{here!r}, in the reference {there!r}"


def compare_tensors(here: torch.Tensor, there: torch.Tensor, where: str) -> Iterator[tuple[str, int, str]]:
    """Compare two tensors byte by byte; of another type or shape, all bits of the larger count."""
    if here.layout != torch.strided or there.layout != torch.strided:
        yield where, 1, f"only dense tensors can be compared: {here.layout}, in the reference {there.layout}"
        return
    if (here.dtype, here.shape) != (there.dtype, there.shape):
        bits = max(1, 8 * here.nbytes, 8 * there.nbytes)
        yield where, bits, f"{here.dtype} {tuple(here.shape)}, in the reference {there.dtype} {tuple(there.shape)}"
        return
    mask = torch.bitwise_xor(as_bytes(here), as_bytes(there))
    if changed := mask[mask != 0].tolist():
        yield where, sum(byte.bit_count() for byte in changed), f"in {len(changed)} bytes of {mask.numel()}"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Give the bytes of its elements, in their logical order, whatever the strides."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def as_bits(value: float) -> int:
    """Give the 64 bits of a float."""
    return int.from_bytes(struct.pack("<d", value), "little")


# --- telling ----------------------------------------------------------------------------------------------------------


def ranges(steps: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> 'steps 1-3, 7'."""
    starts = [step for i, step in enumerate(steps) if i == 0 or steps[i - 1] != step - 1]
    ends = [step for i, step in enumerate(steps) if i + 1 == len(steps) or steps[i + 1] != step + 1]
    return "steps " + ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True))


def show(verdict: Mapping[str, Any], shown_max: int = 20) -> str:
    """The verdict for people."""

    def number(value: object) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value}"

    differences = verdict["differences"]
    rows = [
        ("verdict", f"DIFFERENT: {len(differences)} differences" if differences else "the same, bit for bit"),
        ("steps", f"{verdict['steps']} (reference {verdict['reference_steps']}), lost {verdict['lost_steps']}"),
        ("differing bits", f"{number(verdict['differing_bits'])} in {verdict['final_states']} final states"),
        ("loss", f"{number(verdict['loss_first'])} at first, {number(verdict['loss_last'])} at last"),
    ]
    lines = [f"{name:<16}{value}" for name, value in rows]
    lines += ["", f"{'worker':>6}  {'lines':>6}  {'last step':>9}  {'differing bits':>14}  "]
    lines += [
        f"{w['rank']:>6}  {w['lines']:>6}  {w['last']:>9}  {number(w['bits']):>14}  "
        f"{'finished' if w['finished'] else 'died'}"
        for w in verdict["workers"]
    ]
    if differences:
        lines += ["", *differences[:shown_max]]
    if (more := len(differences) - shown_max) > 0:
        lines.append(f"... and {more} more (--json shows all)")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print the verdict, return the exit status."""
    parser = argparse.ArgumentParser(description="Compare a fleet's records with those of the same script run plainly.")
    parser.add_argument("--reference", required=True, type=Path, help="folder of records of the plain run")
    parser.add_argument("--run", required=True, type=Path, help="folder of records of the fleet, the dead included")
    parser.add_argument("--survivors", metavar="RANK,RANK", help="the ranks that are known to have finished")
    parser.add_argument("--loss", default="loss", metavar="NAME", help="the logged value that must fall")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(arguments)
    try:
        survivors = None if args.survivors is None else {int(rank) for rank in re.findall(r"[^,\s]+", args.survivors)}
    except ValueError:
        parser.error(f"--survivors takes ranks, such as 0,2,3; got {args.survivors!r}")
    verdict = verify(args.reference, args.run, survivors, args.loss)
    print(json.dumps(verdict) if args.json else show(verdict))
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
