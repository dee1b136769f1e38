"""The knell: a word in the arena that the kernel changes when a worker begins to die, and a thread that hears it.

A pidfd and a socket's end tell of a death once the dead process's memory has been torn down: 50 ms for 512 MB, 200 for
two gigabytes. Before the kernel does that, it walks the dying thread's list of *robust futexes*, marks each as one
whose owner died, and wakes who waits for it. So a worker puts one word on the list of its background thread, and the
agent waits for that word (ADR 9).

This is no lock: nobody ever takes it, and no data hang on it (rule 1). The word has one writer, the worker; the mark is
made on its behalf. It says "look now", never what to see: whoever is woken looks at the process. Where the kernel or
the machine lacks something of it, nobody is woken, and the agent learns of deaths by looking and from the pidfd.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import platform
import sys
import threading
import time
from collections.abc import Callable

from relume.arena.layout import PROGRESS_WORDS, WORD, ControlLayout
from relume.arena.prompt import be_prompt

LOOK_S = 1.0
"""The listener looks again after so long, rung or not (Invariant 6)."""
JOIN_S = 2.0
OWNER_DIED, WAITERS = 0x40000000, 0x80000000
_SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99, "riscv64": 99}
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX_WAITV = 449
_WAKE = 1
_SIZE_U32 = 2
_WAITV_MAX = 128
_CLOCK_MONOTONIC = 1


class _Link(ctypes.Structure):
    """An entry of the list, which holds nothing but the way to the next one."""

    _fields_ = (("next", ctypes.c_void_p),)


class _Head(ctypes.Structure):
    """The list's head: where a word stands, counted from its entry, is the same for all."""

    _fields_ = (("next", ctypes.c_void_p), ("offset", ctypes.c_long), ("pending", ctypes.c_void_p))


class _Waiter(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def supported() -> bool:
    """True if this machine has what a knell takes, as far as can be told without trying."""
    known = sys.platform == "linux" and platform.machine() in _FUTEX
    return known and sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == WORD


def place(layout: ControlLayout, rank: int) -> int:
    """Return which word of the control part is the knell of `rank`: the last one of its progress block."""
    return layout.progress(rank) + PROGRESS_WORDS - 1


def hang(words: memoryview, layout: ControlLayout, rank: int) -> bool:
    """Have the kernel mark the word of `rank` when the calling thread ends, however it ends; False if it will not.

    The thread must be one of ours: it gives up the list that the C library keeps for it, and with it the robustness
    of any such mutex that it might take. A forked child does not inherit the list.
    """
    if not supported():
        return False
    address = _address(words, place(layout, rank))
    head, entry = _Head(), _Link()
    entry.next = ctypes.addressof(head)
    head.next, head.offset = ctypes.addressof(entry), address - ctypes.addressof(entry)
    for part in (head, entry):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # the kernel reads them at the very end
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SET_ROBUST_LIST[platform.machine()]
    if libc.syscall(ctypes.c_long(number), ctypes.byref(head), ctypes.c_size_t(ctypes.sizeof(head))):
        return False
    words[place(layout, rank)] = threading.get_native_id() | WAITERS  # or the kernel would wake nobody
    return True


class Listener:
    """Waits, in a thread of its own, for the knells of all seats; `tolled(rank)` is called there.

    Seats beyond the most that one call can wait for are not listened to.
    """

    def __init__(self, words: memoryview, layout: ControlLayout, tolled: Callable[[int], None]) -> None:
        self._tolled = tolled
        self._closed = False
        self._own = ctypes.c_uint32(0)
        self._words = words
        self._places = [place(layout, rank) for rank in range(min(layout.workers, _WAITV_MAX - 1))]
        self._addresses = [_address(words, index) for index in self._places]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._thread = threading.Thread(target=self._listen, name="relume-knell", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        if supported():
            self._thread.start()

    @property
    def listening(self) -> bool:
        """True as long as somebody listens."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop, before the words are unmapped. Returns within moments."""
        self._closed = True
        if self._thread.ident is None:
            return
        self._own.value = 1
        self._futex_wake()
        self._thread.join(JOIN_S)

    def _listen(self) -> None:
        be_prompt()
        seen = [0] * len(self._places)  # who is dead already is told of too
        while not self._closed:
            number = self._wait(seen)
            if number in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:
                return  # no such call here: whoever looks for deaths finds them
            now = self._look()
            for rank, (before, word) in enumerate(zip(seen, now, strict=True)):
                if word & OWNER_DIED and (word != before or rank == -number - 1) and not self._closed:
                    self._tolled(rank)
            seen = now

    def _look(self) -> list[int]:
        with contextlib.suppress(ValueError):  # the arena is closed
            return [self._words[index] & 0xFFFFFFFF for index in self._places]
        self._closed = True
        return [0] * len(self._places)

    def _wait(self, seen: list[int]) -> int:
        """Wait until a word is another than `seen`; return an errno, or which was rung, as a negative number."""
        expected = [*zip(seen, self._addresses, strict=True), (0, ctypes.addressof(self._own))]
        waiters = (_Waiter * len(expected))(*(_Waiter(value, place, _SIZE_U32, 0) for value, place in expected))
        end_ns = time.monotonic_ns() + int(LOOK_S * 1e9)
        until = _Time(*divmod(end_ns, 1_000_000_000))
        rung = self._libc.syscall(
            ctypes.c_long(_FUTEX_WAITV),
            waiters,
            ctypes.c_uint(len(expected)),
            ctypes.c_uint(0),
            ctypes.byref(until),
            ctypes.c_int(_CLOCK_MONOTONIC),
        )
        return ctypes.get_errno() if rung < 0 else -rung - 1

    def _futex_wake(self) -> None:
        number = _FUTEX[platform.machine()]
        self._libc.syscall(ctypes.c_long(number), ctypes.byref(self._own), ctypes.c_int(_WAKE), ctypes.c_int(1), None)


def _address(words: memoryview, index: int) -> int:
    """Return where a word stands in this process. The view is not held: its owner may release it."""
    return ctypes.addressof(ctypes.c_uint64.from_buffer(words, index * WORD))
