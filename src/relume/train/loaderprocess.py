"""What a loader process does first: it ties its life to its worker's, and takes on the worker's numerics.

A loader process must not outlive its worker (fencing kills the whole process group; this is the belt to those braces),
must not answer a Ctrl-C that is meant for the run, and must compute what the worker would compute.

This module does not know what will be loaded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.multiprocessing

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a process that was not forked from the worker would not have from it."""

    worker_pid: int
    start_method: str
    dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    flush_denormal: bool

    @classmethod
    def here(cls, multiprocessing_context: Any) -> Conditions:  # noqa: ANN401 - a name, a context or None, as torch's
        """Return the conditions of this process, for processes that it will start with `multiprocessing_context`."""
        if isinstance(multiprocessing_context, str):
            method = multiprocessing_context
        else:
            method = (multiprocessing_context or torch.multiprocessing).get_start_method()
        return cls(
            worker_pid=os.getpid(),
            start_method=method,
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            flush_denormal=_flushes_denormals(),
        )


def settle(conditions: Conditions, worker_id: int) -> None:  # noqa: ARG001 - the DataLoader passes its number
    """Make this new process a good loader process: the DataLoader's `worker_init_fn`."""
    _die_with_parent(conditions)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides what a Ctrl-C means
    signal.set_wakeup_fd(-1)  # a forked one would wake the worker with its own signals
    if conditions.start_method != "fork":
        torch.set_default_dtype(conditions.dtype)
        torch.use_deterministic_algorithms(conditions.deterministic, warn_only=conditions.deterministic_warn_only)
        torch.set_flush_denormal(conditions.flush_denormal)


def _die_with_parent(conditions: Conditions) -> None:
    if sys.platform != "linux":
        return
    # To the kernel the parent is the thread that started this process: the one that runs the loop, so it stays.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The worker may have died before that. A fork server's children have the server for a parent, which ends with the
    # worker by itself.
    if conditions.start_method != "forkserver" and os.getppid() != conditions.worker_pid:
        os._exit(1)


def _flushes_denormals() -> bool:
    """Return whether this thread computes with denormals as zeros: torch can set it, and has no way to ask."""
    return bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0).item() == 0.0)
