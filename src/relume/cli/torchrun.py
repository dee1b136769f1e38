"""Flags that people bring along from torchrun: some mean the same here, and for the others there is advice."""

from __future__ import annotations

_HERE = "here a run is on one host"
_LOST = "here lost workers are replaced one by one, while the others go on"
_OUTPUT = "here the output of every worker is in the run's folder, which --run-dir names"

ADVICE = {
    **dict.fromkeys(("--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr"), _HERE),
    **dict.fromkeys(("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"), _HERE),
    **dict.fromkeys(("--monitor-interval", "--start-method"), _LOST),
    **dict.fromkeys(("--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--logs-specs"), _OUTPUT),
    "--no-python": "here the script is run by this Python; a program of another kind has no run.steps()",
    "--run-path": "give the path of the script as it is",
    "--role": "here every worker is a worker",
}


def advice(message: str) -> str:
    """Return what to do about torchrun's flags in argparse's `message`; empty if there are none."""
    flags = [word.partition("=")[0].replace("_", "-") for word in message.split() if word.startswith("--")]
    return "".join(f"\n{flag} is torchrun's: {ADVICE[flag]}. Leave it out" for flag in flags if flag in ADVICE)
