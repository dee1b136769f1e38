"""How a run ends, and in which words: outcomes, and sentences made from causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from relume.core.events import Cause, Joined
from relume.core.members import Loss, Member
from relume.wire.messages import Shape


class Outcome(StrEnum):
    """How a run ends, as told by `EndRun`; the command line turns it into an exit code."""

    COMPLETED = "completed"
    SCRIPT_FAILED = "script_failed"
    NO_STEPS = "no_steps"
    DIVERGED = "diverged"
    NO_MEMORY = "no_memory"
    ALL_LOST = "all_lost"
    TOO_FEW = "too_few"
    TAIL_LOST = "tail_lost"
    UNFENCED = "unfenced"


def after_the_last_step(rank: int, main: Member) -> tuple[Outcome, str]:
    """Judge a run whose steps are all done by how its main worker ended."""
    if main.exited or main.cause is None:
        total = main.joined.total if main.joined is not None else 0
        if main.done is not None and main.done < total:
            return Outcome.COMPLETED, f"the script ended after {main.done} of {total} steps"
        return Outcome.COMPLETED, "every step is done"
    if main.cause.kind in {"raised", "exit_code"}:
        return Outcome.SCRIPT_FAILED, f"worker {rank}, after the last step: {main.cause.text}"
    reason = f"every step is done, but worker {rank} (main) was lost in what the script does after: {main.cause.text}"
    return Outcome.TAIL_LOST, reason


def without_members(losses: Sequence[Loss], *, began: bool) -> tuple[Outcome, str]:
    """Judge a run that has no worker left by how each seat lost its last; `began`: there has been a view."""
    causes = [loss.cause for loss in losses]
    if not began and all(cause.kind == "left_early" for cause in causes):
        reason = "the script ended without calling run.steps(): relume.init(), run.protect(...), "
        return Outcome.NO_STEPS, reason + "then loop `for step in run.steps(data, total=...)`"
    raised = [cause for cause in causes if cause.kind in {"raised", "exit_code"}]
    if raised and max(losses, key=lambda loss: loss.lost_s).cause in raised:
        places = [cause.evidence.get("where", cause.text) for cause in raised]  # words may differ, such as a rank
        place, times = Counter(places).most_common(1)[0]
        text = raised[places.index(place)].text
        everywhere = f" in all {times} workers" if times == len(losses) else f" in {times} of {len(losses)} workers"
        return Outcome.SCRIPT_FAILED, f"the script failed{everywhere if len(losses) > 1 else ''}: {text}"
    return Outcome.ALL_LOST, f"no worker is left: {listing(causes)}"


def listing(causes: Sequence[Cause]) -> str:
    """Return the causes in one line, the most frequent first."""
    return "; ".join(f"{text} ({times}x)" for text, times in Counter(c.text for c in causes).most_common())


def disagreement(joined: dict[int, Joined], reserved: Shape) -> str | None:
    """Say in one sentence how workers differ in what must be equal, or return None."""
    terms = {rank: join.terms for rank, join in joined.items()}
    ranks = sorted(terms)
    counts = Counter(terms.values())
    if len(counts) == 1:
        odd = next((rank for rank in ranks if joined[rank].shape != reserved), None)
        return None if odd is None else f"worker {odd} needs {joined[odd].shape}, and the arena was made for {reserved}"
    usual, _ = counts.most_common(1)[0]
    odd = next(rank for rank in ranks if terms[rank] != usual)
    like = next(rank for rank in ranks if terms[rank] == usual)
    for mine, theirs in zip(terms[odd], usual, strict=False):
        if mine != theirs:
            return f"worker {odd} differs from worker {like}: `{mine}` is not `{theirs}`.{_advice(mine)}"
    return f"worker {odd} differs from worker {like}: {len(terms[odd])} lines of terms against {len(usual)}"


def divergence(when: str, what: str, digests: Mapping[int, str]) -> str:
    """Say in one sentence that workers differ, who with whom, and what makes that happen."""
    groups: dict[str, list[str]] = {}
    for rank, digest in sorted(digests.items()):
        groups.setdefault(digest, []).append(str(rank))
    sides = " | ".join(", ".join(ranks) for ranks in sorted(groups.values(), key=len, reverse=True))
    text = (
        f"{when}, {what} differs between workers ({sides}): something that decides a step was changed on some of them"
    )
    text += " only, such as under `if run.is_main`, or is not protected and began anew on one that came back. "
    return text + "Decide on what is equal everywhere (step.mean, run.vars)"


def _advice(term: str) -> str:
    if term.startswith(("parameter ", "buffer ")):
        text = " Build the model after relume.init(seed), in the same way on all workers"
        return text + ", with no seed that depends on the rank"
    if term.startswith("random seed"):
        return " Give relume.init() the same seed on all workers: each shard has random numbers of its own anyway"
    return ""
