"""The numerics profile: everything beside state, data and seed that bits depend on.

`relume.init` sets it, records it in the run folder, and every worker's is compared before the first step. One
against two threads changes convolution and LayerNorm gradients, tanh and sums; two threads make indexed backward
differ from run to run unless deterministic algorithms are on (DESIGN.md).
"""

from __future__ import annotations

import os
import sys

import torch

from relume.version import __version__


def apply(*, threads: int, exact: bool) -> None:
    """Set what can be set in this process."""
    torch.set_num_threads(threads)
    if not exact:
        return
    # cuBLAS reads this when its handle is made; harmless without a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    # Writing to memory that will be written to anyway costs a microsecond for each result of each operation. Who reads
    # what nobody wrote gets different bits on each worker, and is found out.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        guard_compiled(dynamo)


def guard_compiled(dynamo: object) -> None:
    """Make a recompile limit an error: falling to eager on one worker alone would change its bits."""
    config = dynamo.config  # type: ignore[attr-defined]
    for name in ("fail_on_recompile_limit_hit", "error_on_recompile"):
        if hasattr(config, name) and name == "fail_on_recompile_limit_hit":
            setattr(config, name, True)


def profile(*, exact: bool) -> dict[str, str]:
    """Return the profile of this process as text, in a fixed order."""
    denormal = torch.tensor(1e-310, dtype=torch.float64) * 1.0
    facts: dict[str, object] = {
        "relume": __version__,
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "exact": exact,
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "flush_denormal": float(denormal) == 0.0,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "default_dtype": torch.get_default_dtype(),
        "python_hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
        "cuda": torch.version.cuda,
    }
    return {name: str(value) for name, value in facts.items()}
