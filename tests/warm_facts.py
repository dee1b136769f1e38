"""A script that prints, as JSON, all that a process can know of itself and that the way it came to be could change."""

from __future__ import annotations

import builtins
import faulthandler
import gc
import hashlib
import inspect
import json
import locale
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from torch import nn

import relume
from relume.train import numerics

SHOWN = ["Umask", "Threads", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Cpus_allowed", "CapEff", "Seccomp"]


class Own:
    """A class of `__main__`, which pickle finds by that name."""

    def __init__(self):
        self.value = 7


def about_main():
    main = sys.modules["__main__"]
    return [
        sorted(vars(main)),
        [__name__, __file__, repr(__spec__), __package__, __cached__, __doc__],
        [type(__loader__).__name__, __loader__.path, __builtins__ is builtins, vars(main) is globals()],
        [inspect.getsource(Own), pickle.loads(pickle.dumps(Own())).value, repr(Own)],  # noqa: S301 - our own
    ]


def about_sys():
    return [
        [sys.argv, sys.orig_argv, sys.path, sys.executable, str(sys.flags), sys._xoptions, sys.warnoptions],
        [sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode, sys.getfilesystemencoding()],
        [sys.excepthook is sys.__excepthook__, sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
        [sys.gettrace(), hash("relume"), repr(sys.breakpointhook), repr(warnings.filters), locale.setlocale(0)],
    ]


def about_streams():
    names = ["name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed"]
    streams = [sys.stdin, sys.stdout, sys.stderr]
    return [
        [[repr(getattr(stream, name)) for name in names] for stream in streams],
        [[stream.isatty(), stream.seekable(), stream.fileno(), repr(type(stream.buffer))] for stream in streams],
        [sys.stdin.read(), str(Path("/proc/self/fd/0").readlink())],
    ]


def about_signals():
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    handlers = [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
    return [handlers, blocked, signal.set_wakeup_fd(-1), faulthandler.is_enabled()]


def about_process():
    status = Path("/proc/self/status").read_text().splitlines()
    return [
        [line for line in status if line.split(":")[0] in SHOWN],
        [
            str(Path.cwd()),
            os.getsid(0),
            os.getpgid(0) == os.getpid(),
            os.getppid(),
            os.nice(0),
            os.sched_getscheduler(0),
        ],
        [resource.getrlimit(number) for number in range(16)],
        [Path(f"/proc/self/{name}").read_text() for name in ("oom_score_adj", "comm")],
        [
            Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
            str(Path("/proc/self/exe").readlink()),
        ],
        [threading.active_count(), threading.current_thread() is threading.main_thread(), threading.main_thread().name],
        [threading.get_native_id() == os.getpid(), gc.isenabled(), gc.get_threshold(), tracemalloc.is_tracing()],
    ]


def about_descriptors():
    found = {}
    for number in range(256):
        link = Path(f"/proc/self/fd/{number}")
        if link.exists():
            found[number] = [re.sub(r"\d+", "N", str(link.readlink())), os.get_inheritable(number)]
    return found


def about_environment():
    environ = dict(sorted(os.environ.items()))
    for_children = subprocess.run(["env"], capture_output=True, check=True).stdout.decode(errors="replace")
    return [environ, sorted(for_children.splitlines())]


def about_multiprocessing():
    process = multiprocessing.current_process()
    tracker = resource_tracker._resource_tracker._fd
    children = len(multiprocessing.active_children())
    return [multiprocessing.get_start_method(allow_none=True), process.name, len(process.authkey), tracker, children]


def about_torch():
    threads = [torch.get_num_threads(), torch.get_num_interop_threads(), torch.__config__.parallel_info()]
    return [threads, torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), numerics.profile(exact=True)]


def trained():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 3, 8, 8)), torch.randint(0, 4, (16,))).backward()
        optimizer.step()
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def about_bits():
    run = relume.init(seed=3)
    return [run.profile, trained(), float(torch.rand(1)), float(np.random.rand())]  # noqa: NPY002 - what init seeds


if __name__ == "__main__":
    abouts = [about for name, about in sorted(globals().items()) if name.startswith("about_")]
    print(json.dumps({about.__name__: about() for about in abouts}, default=repr))
