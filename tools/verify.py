"""Compare the records of a fleet with those of the same script run plainly, and give a verdict.

    python tools/verify.py --reference DIR --run DIR [--survivors 0,2.1] [--events FILE] [--json]

It imports nothing of relume, so that what it says does not rest on the code it judges: it reads what each process
wrote under RELUME_RECORD=DIR, `record-RANK.jsonl` with one line per step and, at the end, `final-RANK.pt` with the
state itself. It does not know how the digests were made: it asks that they are equal, and counts bits in the states.

When a worker is lost, a new process may take its rank: its *life* is one higher, and stands in the names of its files
(`record-2.1.jsonl`). Such a joiner begins at a later step, with lines of steps that it only *replayed*, which must have
the very digests that they have in the reference too. From its first step as a member on it records every step.

A worker that was killed may lack its line for the step that it died in, and all that come after. Nothing else may be
missing, doubled or different; no shard of a step may be counted by two workers, or by none if nobody died in that step;
and the loss must fall. `--events` (the run's events.jsonl) tells which view each loss ended: then it is exact who may
be missing where. Exit status: 0 when nothing differs, 1 when something does.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# A worker may be named a member for so many steps in a row without a line of its own. It may have taken a step and died
# before it wrote the line; the others may then finish one more step without it for each result that is kept (two, or
# more where workers come back), since a result is overwritten only when every member has taken it.
STEPS_NAMED_WITHOUT_LINE_MAX = 3
STEPS_NAMED_WITHOUT_LINE_MAX_IF_ANY_CAME_BACK = 16
STEPS_MAX = 1_000_000  # so that a damaged number cannot make us count for hours

State = dict[str, object]  # the state dict of each protected object, by its name
Key = tuple[int, int]  # (rank, life)
Number = tuple[int, int]  # of a view


@dataclass
class Line:
    """What one worker wrote about one step. `shards` are those that it computed; `replay`: it was no member then."""

    run: str
    step: int
    view: Number
    members: tuple[int, ...]
    digest: str
    means: dict[str, str]
    shards: tuple[int, ...] = ()
    replay: bool = False


@dataclass
class Worker:
    """All that one process left in a folder."""

    rank: int
    life: int = 0
    lines: list[Line] = field(default_factory=list)
    torn: bool = False  # the file ends in the middle of a line
    final: State | None = None
    final_step: object = None
    final_error: str = "left no final state"  # why there is no `final`; "" when there is

    @property
    def key(self) -> Key:
        """Who it is."""
        return self.rank, self.life

    @property
    def last(self) -> int:
        """The last step that it recorded, -1 for none."""
        return max((line.step for line in self.lines), default=-1)

    def __str__(self) -> str:
        return f"worker {self.rank} (life {self.life})" if self.life else f"worker {self.rank}"


@dataclass
class Told:
    """What the agent's events tell: the members of each view, and who was lost: the first view without it, its step."""

    views: dict[Number, tuple[int, ...]] = field(default_factory=dict)
    begins: dict[Number, int] = field(default_factory=dict)  # a view's first step; one before it may be taken under it
    lost: dict[Key, tuple[Number, int]] = field(default_factory=dict)
    left: set[Key] = field(default_factory=set)


def verify(
    reference_dir: Path | str,
    run_dir: Path | str,
    survivors: Collection[int | Key] | None = None,
    loss: str = "loss",
    events: Path | str | None = None,
) -> dict[str, Any]:
    """Judge `run_dir` by `reference_dir`.

    `survivors` are the ranks, or (rank, life), known (from their exit status) to have finished: each must have left
    everything. Without it, whoever left a final state or recorded the last step is held to have finished. `loss` is the
    logged value that must fall, `events` the run's events.jsonl. The answer is the object that `--json` prints; "ok" in
    it is true when "differences" is empty.
    """
    differences: list[str] = []
    if Path(reference_dir).resolve() == Path(run_dir).resolve():
        differences.append("the reference and the run are the same folder")
    reference = read_folder(Path(reference_dir), "reference: ", differences)
    workers = read_folder(Path(run_dir), "", differences)
    told = None if events is None else read_events(Path(events), differences)
    by_step = {line.step: line for line in check_reference(reference, differences)}

    last = max((worker.last for worker in workers.values()), default=-1)
    finished = find_finished(workers, survivors, last)
    for key in sorted(finished - workers.keys()):
        workers[key] = Worker(*key)
    if not finished:
        differences.append("no worker finished")
    check_lines(workers, finished, last, differences)
    check_named(workers, finished, told, differences)
    check_views(workers, differences)
    if told is not None:
        check_told(workers, finished, told, differences)
    lost = check_steps(workers, by_step, last, differences)
    check_shards(workers, finished, by_step, differences)
    original = reference[0, 0].final if (0, 0) in reference else None
    bits = {key: check_final(workers[key], original, last, differences) for key in sorted(workers)}
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
        "survivors": sorted({rank for rank, _ in finished}),
        "workers": [
            {
                "rank": w.rank,
                "life": w.life,
                "lines": len(w.lines),
                "replayed": sum(line.replay for line in w.lines),
                "last": w.last,
                "finished": w.key in finished,
                "bits": bits[w.key],
            }
            for _, w in sorted(workers.items())
        ],
        "differences": differences,
    }


def find_finished(workers: Mapping[Key, Worker], survivors: Collection[int | Key] | None, last: int) -> set[Key]:
    """Return who finished, as told or as found; a rank without a life is the newest that left anything."""
    if survivors is None:
        ended = (
            w for w in workers.values() if not w.final_error or any(x.step == last and not x.replay for x in w.lines)
        )
        return {worker.key for worker in ended}
    newest = dict(sorted(workers))
    return {who if isinstance(who, tuple) else (who, newest.get(who, 0)) for who in survivors}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_folder(folder: Path, prefix: str, differences: list[str]) -> dict[Key, Worker]:
    """Everything that the workers left in `folder`, by rank and life."""
    workers: dict[Key, Worker] = {}
    for path in sorted(folder.glob("*")):
        if match := re.fullmatch(r"(record|final)-(\d+)(?:\.(\d+))?\.(?:jsonl|pt)", path.name):
            key = int(match[2]), int(match[3] or 0)
            worker = workers.setdefault(key, Worker(*key))
            if match[1] == "final":
                read_final(worker, path)
            else:
                read_lines(worker, path, prefix, differences)
    if not workers:
        differences.append(f"{prefix}no records in {folder}")
    if len(runs := {line.run for worker in workers.values() for line in worker.lines}) > 1:
        differences.append(f"{prefix}records of several runs lie in {folder}: {', '.join(sorted(runs))}")
    return workers


def read_lines(worker: Worker, path: Path, prefix: str, differences: list[str]) -> None:
    """Read a worker's lines; only what follows the last newline may be torn."""
    *texts, rest = path.read_bytes().split(b"\n")
    for number, text in enumerate([*texts, rest] if rest else texts, start=1):
        try:
            worker.lines.append(parse_line(text, worker))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number > len(texts):
                worker.torn = True
            else:
                differences.append(f"{prefix}{worker}, line {number}: cannot be read ({error!r})")


def parse_line(text: bytes, worker: Worker) -> Line:
    """Parse one line, and refuse whatever is not exactly as it should be."""
    data = json.loads(text.decode())
    run, step, view, members, digest = (data[key] for key in ("run", "step", "epoch_view", "members", "digest"))
    life, replay, shards = data.get("life", 0), data.get("replay", False), [entry[0] for entry in data["shards"]]
    if data["v"] != 1 or (data["rank"], life) != worker.key:
        raise ValueError(f"version {data['v']}, rank {data['rank']}, life {life}")
    if not (isinstance(run, str) and isinstance(digest, str) and digest):
        raise ValueError("run and digest must be text")
    if any(type(value) is not int for value in (step, *view, *members, *shards)) or len(view) != 2:
        raise ValueError("step, view, members and shards must be whole numbers")
    if type(replay) is not bool or (replay and shards):
        raise ValueError("replay must be true or false, and nothing is computed in a step that is replayed")
    if not 0 <= step < STEPS_MAX:
        raise ValueError(f"step {step} is out of range")
    if len(set(members)) != len(members) or (worker.rank not in members and not replay):
        raise ValueError(f"rank {worker.rank} must stand among the members {members}, nobody twice")
    for value in data["means"].values():
        float.fromhex(value)
    return Line(run, step, (view[0], view[1]), tuple(members), digest, data["means"], tuple(shards), replay)


def read_final(worker: Worker, path: Path) -> None:
    """Load a final state. Only tame types are loaded: nothing in the file can run code."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        worker.final, worker.final_step, worker.final_error = dict(data["state"]), data["step"], ""
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything; whatever it is, it is reported
        worker.final_error = f"its final state cannot be read ({str(error).splitlines()[0] if str(error) else error!r})"


def read_events(path: Path, differences: list[str]) -> Told:
    """Read what the agent told; what follows the last newline does not count."""
    told = Told()
    try:
        for text in path.read_bytes().split(b"\n")[:-1]:
            event = json.loads(text)["event"]
            key = event.get("rank", -1), event.get("life", 0)
            if event["kind"] == "view_installed":
                number = tuple(event["view"])
                told.views[number], told.begins[number] = tuple(sorted(event["members"])), int(event["step"])
            elif event["kind"] == "incident":
                told.lost[key] = tuple(event["view"]), int(event["step"])
            elif event["kind"] == "worker_left":
                told.left.add(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        differences.append(f"the events in {path} cannot be read ({error!r})")
    return told


# --- judging ----------------------------------------------------------------------------------------------------------


def check_reference(workers: Mapping[Key, Worker], differences: list[str]) -> list[Line]:
    """The reference must itself be whole: one worker, every step once, a final state."""
    if not workers:
        return []
    if set(workers) != {(0, 0)}:
        differences.append(f"reference: a plain run is rank 0 alone, found {[rank for rank, _ in sorted(workers)]}")
    reference = workers.get((0, 0), Worker(0))
    steps = [line.step for line in reference.lines]
    if steps != list(range(len(steps))) or not steps or any(line.replay for line in reference.lines):
        differences.append("reference: its steps are not 0, 1, 2, ... each once")
    if reference.torn:
        differences.append("reference: its last line is torn")
    if reference.final_error:
        differences.append(f"reference: {reference.final_error}")
    elif reference.final_step != reference.last:
        differences.append(f"reference: its final state is of step {reference.final_step}, not {reference.last}")
    return reference.lines


def check_lines(workers: Mapping[Key, Worker], finished: Collection[Key], last: int, differences: list[str]) -> None:
    """Every worker wrote every step once and in order, from when it was let in; only those who are gone stop early."""
    for key, worker in sorted(workers.items()):
        steps = [line.step for line in worker.lines]
        doubled = sorted(step for step, times in Counter(steps).items() if times > 1)
        ended = key in finished or not worker.final_error
        missing = missing_steps(worker, last if ended else worker.last, founder=is_founder(worker, workers))
        if doubled:
            differences.append(f"{worker}: recorded twice: {ranges(doubled)}")
        if missing:
            differences.append(f"{worker}: no record of: {ranges(missing)}")
        if not doubled and steps != sorted(steps):
            differences.append(f"{worker}: its records are not in the order of the steps")
        if back := [line.step for before, line in pairwise(worker.lines) if line.replay and not before.replay]:
            differences.append(f"{worker}: replayed after it had been let in: {ranges(back)}")
        if key in finished and worker.final_error:
            differences.append(f"{worker}: finished, but {worker.final_error}")
        if worker.torn and ended:
            differences.append(f"{worker}: finished, but its last line is torn")


def is_founder(worker: Worker, workers: Mapping[Key, Worker]) -> bool:
    """True if it was there from the first step on: it is its rank's first, and a member of that step."""
    first = [line for other in workers.values() for line in other.lines if line.step == 0 and not line.replay]
    return worker.life == 0 and (not first or any(worker.rank in line.members for line in first))


def missing_steps(worker: Worker, end: int, *, founder: bool) -> list[int]:
    """Return the steps up to `end` that it should have recorded. Who replays may jump, to a newer mirror."""
    found = {line.step: line for line in worker.lines}
    if not found:
        return list(range(end + 1))
    steps = sorted(found)
    missing = list(range(steps[0])) if founder else []
    for before, after in pairwise([*steps, end + 1]):
        if after <= end and found[before].replay and not founder:
            continue
        missing += range(before + 1, after)
    return missing


def check_named(
    workers: Mapping[Key, Worker], finished: Collection[Key], told: Told | None, differences: list[str]
) -> None:
    """Whoever is named a member of a step has recorded it, or died. With `told`: in just that view."""
    came_back = any(line.replay for worker in workers.values() for line in worker.lines)
    most = STEPS_NAMED_WITHOUT_LINE_MAX_IF_ANY_CAME_BACK if came_back else STEPS_NAMED_WITHOUT_LINE_MAX
    views: dict[int, dict[int, Number]] = {}  # by rank and step: the newest view in which it was named
    recorded: dict[int, set[int]] = {}
    for worker in workers.values():
        for line in worker.lines:
            recorded.setdefault(worker.rank, set()).add(line.step)
            if line.replay:
                continue  # a step that was complete when the one that was let in for it came by
            if told is not None and line.step < told.begins.get(line.view, 0):
                continue  # complete before the view began, and taken late
            for member in line.members:
                by_step = views.setdefault(member, {})
                by_step[line.step] = max(by_step.get(line.step, line.view), line.view)
    for rank, by_step in sorted(views.items()):
        ended = [key for key in finished if key[0] == rank]
        end = min((line.step for key in ended for line in workers[key].lines if not line.replay), default=STEPS_MAX)
        absent = sorted(step for step in by_step if step not in recorded.get(rank, ()) and step < end)
        if told is not None:
            absent = [step for step in absent if not died_in(told, rank, by_step[step], step)]
        for first, until in stretches(absent):
            if told is not None or until - first >= most:
                before = max((step for step in recorded.get(rank, ()) if step < first), default=-1)
                differences.append(f"worker {rank}: last record {before}, named a member until step {until}")


def died_in(told: Told, rank: int, view: Number, step: int) -> bool:
    """True if a process of `rank` that was a member of `view` died before it could write the line of `step`."""
    losses = (loss for (who, _), loss in told.lost.items() if who == rank)
    kept = STEPS_NAMED_WITHOUT_LINE_MAX_IF_ANY_CAME_BACK
    return any(number > view and 0 <= step - doing <= kept for number, doing in losses)


def check_views(workers: Mapping[Key, Worker], differences: list[str]) -> None:
    """A view means the same members to all, and nobody goes back to an older one."""
    members: dict[Number, tuple[int, ...]] = {}
    for _, worker in sorted(workers.items()):
        for line in worker.lines:
            known = members.setdefault(line.view, tuple(sorted(line.members)))
            if known != tuple(sorted(line.members)):
                differences.append(
                    f"{worker}, step {line.step}: view {line.view} has members {line.members}, elsewhere {known}"
                )
        for before, line in pairwise(worker.lines):
            if line.view < before.view:
                differences.append(f"{worker}, step {line.step}: went back from view {before.view} to {line.view}")


def check_told(workers: Mapping[Key, Worker], finished: Collection[Key], told: Told, differences: list[str]) -> None:
    """What the agent told is what the workers did: the same views, and nobody in one that came after its loss."""
    for key, worker in sorted(workers.items()):
        live = [line for line in worker.lines if not line.replay]
        for number, lines in groupby(live, key=lambda line: line.view):
            line = next(iter(lines))
            if told.views.get(number) != tuple(sorted(line.members)):
                known = told.views.get(number, "none")
                differences.append(
                    f"{worker}, step {line.step}: view {number} with members {line.members}; the events tell of {known}"
                )
            if key in told.lost and number >= told.lost[key][0]:
                differences.append(f"{worker}, step {line.step}: wrote in view {number} after it was lost")
        if live and key not in finished and key not in told.lost and key not in told.left and worker.final_error:
            differences.append(f"{worker}: stopped after step {worker.last}, and the events do not tell why")


def check_steps(workers: Mapping[Key, Worker], reference: Mapping[int, Line], last: int, differences: list[str]) -> int:
    """Each step has one digest and the same means everywhere, the reference's; return how many steps were lost.

    A step is lost when nobody recorded it, or when those who did disagree about the digest.
    """
    recorded: dict[int, list[tuple[Worker, Line]]] = {step: [] for step in range(max(last, *reference, -1) + 1)}
    for _, worker in sorted(workers.items()):
        for line in worker.lines:
            recorded[line.step].append((worker, line))
    lost = 0
    for step, lines in recorded.items():
        digests = sorted({line.digest for _, line in lines})
        lost += len(digests) != 1
        if len(digests) > 1:
            differences.append(f"step {step}: the workers have different digests: {', '.join(digests)}")
        if step not in reference:
            differences.append(f"step {step}: not in the reference")
            continue
        for worker, line in lines:
            check_line(worker, line, reference[step], differences)
    if nobodys := [step for step, lines in recorded.items() if not lines]:
        differences.append(f"nobody recorded {ranges(nobodys)}")
    return lost


def check_line(worker: Worker, line: Line, expected: Line, differences: list[str]) -> None:
    """A worker's digest and means of a step are the reference's, to the last bit."""
    if line.digest != expected.digest:
        differences.append(f"step {line.step}, {worker}: its digest is not the reference's")
    for name in sorted(line.means.keys() | expected.means.keys()):
        here, there = line.means.get(name), expected.means.get(name)
        if here != there:
            differences.append(f"step {line.step}, {worker}: mean of {name!r} is {here}, reference {there}")


def check_shards(
    workers: Mapping[Key, Worker], finished: Collection[Key], reference: Mapping[int, Line], differences: list[str]
) -> None:
    """Each shard of a step was counted by one worker; by none that lives to tell only if somebody died in that step."""
    recorded: dict[int, dict[Key, tuple[Worker, Line]]] = {}
    for key, worker in sorted(workers.items()):
        for line in worker.lines:
            if not line.replay:
                recorded.setdefault(line.step, {})[key] = worker, line
    # What it had sealed in the step after its last line stands; its line of that step was never written.
    died = {worker.last + 1 for key, worker in workers.items() if key not in finished}
    died |= {worker.last + 2 for worker in workers.values() if worker.torn}
    for step, by_key in sorted(recorded.items()):
        if step not in reference:
            continue
        lines = list(by_key.values())
        expected = set(reference[step].shards)
        found = [(shard, worker) for worker, line in lines for shard in line.shards]
        for shard, times in sorted(Counter(shard for shard, _ in found).items()):
            if times > 1 or shard not in expected:
                who = " and by ".join(str(worker) for counted, worker in found if counted == shard)
                differences.append(f"step {step}: shard {shard} was counted by {who}")
        ranks = Counter(worker.rank for worker, _ in lines)
        twice = sorted(rank for rank, times in ranks.items() if times > 1)
        differences += [f"step {step}: recorded by worker {rank} in {ranks[rank]} of its lives" for rank in twice]
        unseen = step in died or any(member not in ranks for _, line in lines for member in line.members)
        if (missing := sorted(expected - {shard for shard, _ in found})) and not unseen:
            names = ", ".join(map(str, missing))
            differences.append(f"step {step}: nobody counted shards {names}, though nobody died in it")


def check_final(worker: Worker, original: State | None, last: int, differences: list[str]) -> int | None:
    """Count the bits in which a final state differs from the reference's; None when there are not two to compare."""
    if worker.final is None:
        return None
    if worker.final_step != last:
        differences.append(f"{worker}: its final state is of step {worker.final_step}, the last is {last}")
    if original is None:
        return None
    found = list(compare(worker.final, original, "state"))
    differences.extend(f"{worker}, final {where}: {bits} bits: {what}" for where, bits, what in found)
    return sum(bits for _, bits, _ in found)


def check_loss(workers: Mapping[Key, Worker], name: str, differences: list[str]) -> tuple[float | None, float | None]:
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


def stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """[1, 2, 3, 7] -> [(1, 3), (7, 7)]."""
    starts = [step for i, step in enumerate(steps) if i == 0 or steps[i - 1] != step - 1]
    ends = [step for i, step in enumerate(steps) if i + 1 == len(steps) or steps[i + 1] != step + 1]
    return list(zip(starts, ends, strict=True))


def ranges(steps: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> 'steps 1-3, 7'."""
    return "steps " + ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in stretches(steps))


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
    lines += [
        "",
        f"{'worker':>6}  {'life':>4}  {'lines':>6}  {'replayed':>8}  {'last step':>9}  {'differing bits':>14}  ",
    ]
    lines += [
        f"{w['rank']:>6}  {w['life']:>4}  {w['lines']:>6}  {w['replayed']:>8}  "
        f"{w['last']:>9}  {number(w['bits']):>14}  {'finished' if w['finished'] else 'gone'}"
        for w in verdict["workers"]
    ]
    if differences:
        lines += ["", *differences[:shown_max]]
    if (more := len(differences) - shown_max) > 0:
        lines.append(f"... and {more} more (--json shows all)")
    return "\n".join(lines)


def parse_survivors(texts: Iterable[str]) -> Iterator[int | Key]:
    """["0", "2.1"] -> 0, (2, 1). Raises `ValueError`."""
    for text in texts:
        rank, point, life = text.partition(".")
        yield (int(rank), int(life)) if point else int(rank)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print the verdict, return the exit status."""
    parser = argparse.ArgumentParser(description="Compare a fleet's records with those of the same script run plainly.")
    parser.add_argument("--reference", required=True, type=Path, help="folder of records of the plain run")
    parser.add_argument("--run", required=True, type=Path, help="folder of records of the fleet, the dead included")
    text = "the ranks that are known to have finished; 2.1 is rank 2's life 1"
    parser.add_argument("--survivors", metavar="RANK,RANK.LIFE", help=text)
    parser.add_argument("--loss", default="loss", metavar="NAME", help="the logged value that must fall")
    parser.add_argument("--events", type=Path, metavar="FILE", help="the run's events.jsonl, which tells of each loss")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(arguments)
    try:
        survivors = None if args.survivors is None else set(parse_survivors(re.findall(r"[^,\s]+", args.survivors)))
    except ValueError:
        parser.error(f"--survivors takes ranks, such as 0,2.1,3; got {args.survivors!r}")
    verdict = verify(args.reference, args.run, survivors, args.loss, args.events)
    print(json.dumps(verdict) if args.json else show(verdict))
    return 0 if verdict["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
