"""What a campaign showed, for people and for programs."""

from __future__ import annotations

from typing import Any

from relume.simulate.campaign import Summary


def as_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as one JSON object. `coverage`: shares from 0.0 to 1.0, and what is missing by name."""
    coverage = summary.coverage
    return {
        "histories": summary.histories,
        "first_seed": summary.first_seed,
        "violations": len(summary.findings),
        "coverage": coverage.shares(),
        "missing": {
            "rows": coverage.missing_rows(),
            "faults": coverage.missing_faults(),
            "pairs": coverage.missing_pairs(),
        },
        "outcomes": dict(sorted(coverage.outcomes.items())),
        "faults": coverage.faults(),
        "actions": summary.actions,
        "seconds": round(summary.seconds, 2),
        "histories_per_second": round(summary.histories / summary.seconds, 1) if summary.seconds else None,
        "findings": [{"seed": f.seed, "checker": f.checker, "text": f.text} for f in summary.findings],
    }


def as_text(summary: Summary) -> str:
    """Return the summary in a few lines."""
    coverage = summary.coverage
    last = summary.first_seed + summary.histories - 1
    rate = f", {summary.histories / summary.seconds:.0f} a second" if summary.seconds else ""
    lines = [f"{summary.histories} histories (seeds {summary.first_seed} to {last}) in {summary.seconds:.1f} s{rate}"]
    lines.append(f"violations: {len(summary.findings)}")
    lines += [f"  seed {finding.seed}: {finding.text.splitlines()[-1]}" for finding in summary.findings]
    shares = coverage.shares()
    lines.append("coverage: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    missing = coverage.missing_rows() + coverage.missing_pairs()
    if missing:
        lines.append(
            "never met: " + "; ".join(missing[:12]) + (f"; and {len(missing) - 12} more" if missing[12:] else "")
        )
    lines.append("ends: " + ", ".join(f"{name} {times}" for name, times in sorted(coverage.outcomes.items())))
    lines.append("faults: " + ", ".join(f"{name} {times}" for name, times in coverage.faults().items()))
    return "\n".join(lines)
