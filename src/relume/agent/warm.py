"""The template's own side: a process that has imported what every worker imports, and forks workers on order.

It waits with one thread, no CUDA and nothing of the script's. A newborn becomes what a fresh `python -u script.py`
would be: its streams, descriptors, environment, arguments, `__main__` and random state. Then the script runs in it, on
top of the line that the interpreter was started with, so that exit codes, exit handlers and signals are Python's own.

A newborn is forked twice and so adopted by the agent, says its pid over the *cord* (its socket to the agent), and waits
for one word before it touches anything of the run: no worker lives that the agent does not know. How the agent orders
stands in `template.py`; this module imports nothing else of relume, and does not know what a worker does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

if sys.platform != "win32":
    import fcntl

START = """import sys
if not sys.flags.safe_path: sys.path[0] = sys.argv[1]
from relume.agent.warm import main
main()"""
"""What the interpreter runs: from here on `import` finds what it would find in the script."""
IMPORTS = ("numpy", "torch", "torch._dynamo", "relume.train.run")
"""`torch._dynamo` is what optimizers import on their first step."""
READY = b"ready"
GO = b"go"
ORDER_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 253
"""The most that the kernel passes in one message (SCM_MAX_FD)."""
_PR_SET_PDEATHSIG = 1
_ORDERS_FD_MIN = 200
"""Where the template keeps its own socket, out of the way of numbers that workers use."""
_ARG_START, _ARG_END = 45, 46
"""Places in /proc/PID/stat, counted from the field after the command's closing bracket."""


@dataclass(frozen=True, slots=True)
class Order:
    """A worker to be made: `received` descriptors are to have these `numbers`."""

    environment: dict[str, str]
    numbers: list[int]
    received: list[int]
    cord: int


def main() -> None:
    """Be the template; in each process that it forks, be a worker. `sys.argv` is PATH FD, then the worker's words."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    given = int(sys.argv[2])
    orders = socket.socket(fileno=fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, _ORDERS_FD_MIN))
    os.close(given)
    words = sys.argv[3:]
    sys.argv = words if words[0] != "-m" else ["-m", *words[2:]]
    _show([sys.executable, "-m", __name__, *words])
    before = dict(os.environ)
    for name in IMPORTS:
        importlib.import_module(name)
    made = {name: value for name, value in os.environ.items() if name not in before}
    gc.collect()
    gc.freeze()  # what is never looked at is never written to, and stays shared
    with contextlib.suppress(OSError):
        orders.send(READY)
    order = _serve(orders)
    _become(order, made, words)
    _run(words)


# The template ---------------------------------------------------------------------------------------------------------


def _serve(orders: socket.socket) -> Order:
    """Fork workers for as long as the agent lives; return in each of them."""
    while True:
        try:
            data, received, flags, _ = socket.recv_fds(
                orders, ORDER_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)  # the agent is gone, or done
        whole = not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
        if whole and _fork():
            orders.close()
            cord, *rest = received
            return Order(**json.loads(data), received=rest, cord=cord)
        for descriptor in received:  # if nobody was born, the agent sees the cord close
            os.close(descriptor)


def _fork() -> bool:
    """Fork a process whose parent is the agent, which adopts orphans at this time; True in that process."""
    try:
        gate, latch = os.pipe()
    except OSError:
        return False
    middle = _fork_or_fail()
    if middle == 0:
        newborn = _fork_or_fail()
        if newborn != 0:
            os._exit(0)
        os.close(latch)
        os.read(gate, 1)  # until the process between is waited for: from then on this one is the agent's child
        os.close(gate)
        return True
    if middle > 0:
        os.waitpid(middle, 0)
    os.close(latch)
    os.close(gate)
    return False


def _fork_or_fail() -> int:
    try:
        return os.fork()
    except OSError:
        return -1


# The newborn ----------------------------------------------------------------------------------------------------------


def _become(order: Order, made: dict[str, str], words: list[str]) -> None:
    """Take on everything that a fresh process would have been given, and wait for the agent's word."""
    above = max(order.numbers) + 1
    cord = socket.socket(fileno=_moved(order.cord, above))
    try:
        _check_cuda()
        _place(order, above)
    except OSError as error:
        cord.send(str(error).encode())
        os._exit(1)
    command = [sys.executable, "-u", *words]
    _show(command)
    sys.orig_argv = command
    os.environ.clear()
    os.environ.update(order.environment)
    for name, value in made.items():
        os.environ.setdefault(name, value)
    _part_ways()
    cord.send(str(os.getpid()).encode())
    if cord.recv(len(GO)) != GO:
        os._exit(0)
    cord.close()


def _check_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda._is_in_bad_fork():  # noqa: SLF001 - torch has no other word for it
        raise OSError("an import has initialised CUDA, which cannot be used in a process forked after that")


def _place(order: Order, above: int) -> None:
    """Give the received descriptors their numbers. Raises OSError if one of these is taken."""
    moved = [_moved(descriptor, above) for descriptor in order.received]
    for descriptor, number in zip(moved, order.numbers, strict=True):
        taken = Path(f"/proc/self/fd/{number}")
        if number > 2 and taken.exists():
            raise OSError(f"descriptor {number} is taken by an import ({taken.readlink()})")
        os.dup2(descriptor, number)
        os.close(descriptor)


def _moved(descriptor: int, above: int) -> int:
    """Return a number from `above` on that `descriptor` has from now on."""
    result = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return result


def _part_ways() -> None:
    """Have nothing in common by chance with others of the same template."""
    importlib.invalidate_caches()
    multiprocessing.current_process().authkey = os.urandom(32)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()  # `random` does it by itself
    if torch is not None:
        torch.default_generator.seed()  # as in a fresh process: by chance


def _run(words: list[str]) -> None:
    """Run the script or module as `python` does, in a `__main__` of its own."""
    first = vars(sys.modules["__main__"])
    module = ModuleType("__main__")
    vars(module).update({"__loader__": first["__loader__"], "__builtins__": first["__builtins__"]})
    if "__annotations__" in first:
        vars(module)["__annotations__"] = {}
    sys.modules["__main__"] = module
    try:
        if words[0] == "-m":
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` calls
        else:
            _run_file(words[0], vars(module))
    except SystemExit:
        raise
    except BaseException:
        _hide_own_frames()
        raise


def _run_file(script: str, namespace: dict[str, object]) -> None:
    path = script if script.startswith("/") else f"{Path.cwd()}/{script}"  # not made shorter: nor does `python`
    namespace.update({"__file__": path, "__cached__": None, "__loader__": SourceFileLoader("__main__", path)})
    with io.open_code(path) as file:
        source = file.read()
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the script that the person named


def _hide_own_frames() -> None:
    """Have an exception that nobody caught shown without the frames that a fresh process would not have had."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        while trace is not None and trace.tb_frame.f_code.co_filename in {"<string>", __file__}:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show


def _show(command: list[str]) -> None:
    """Have `ps` show `command`, as far as it fits where the kernel keeps the words that a process was started with."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        shown = b"".join(os.fsencode(word) + b"\0" for word in command)
        if begin:
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, shown, min(len(shown), end - begin - 1))
