"""State that the script keeps from step to step outside `run.protect` and `run.vars`, found where it can be seen.

A worker that comes back runs the script's own beginning, loads what is protected, and replays a few steps at most. What
else lives across steps (a moving average of the script's own, the best value so far, an iterator) would be another on
it. So `run.steps` looks at its caller, once: at the names in reach, and at the source of the loop that it stands in.
What is handed around out of sight (in functions, closures, other modules) is not found, and a find may be only for
show: this is advice, never an error. It holds on to nothing of the script's, and asks no object anything that could
compute or reach for a device.
"""

from __future__ import annotations

import ast
import linecache
import random
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from relume.train.carried import ASSIGNED, Carried, Place, carried

if TYPE_CHECKING:
    from relume.train.protect import Protected
    from relume.train.variables import Vars

TOLD_MAX = 6
_LINES_BACK = 5
"""A call of `run.steps` may stand so many lines below the `for` that it belongs to."""
_LOOP_LINES_MAX = 1000
_ITEMS_MAX = 64
_MISSING = object()
_CONTAINERS = (list, dict, set, bytearray, deque)
_RANDOM = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
HEAD = "what lives across steps and is not protected is another on a worker that comes back, which begins anew:"
"""Stands above what `warn` finds."""


def warn(frame: FrameType, protected: Protected, variables: Vars) -> list[str]:
    """Return a line for each thing in reach of `frame`, the caller of `run.steps`, that should be protected.

    Never raises, and takes a few milliseconds at most.
    """
    try:
        found = loop_of(frame)
        if found is None:
            return []
        loop, first_line = found
        names = _Names(frame)
        where = f"{PurePath(frame.f_code.co_filename).name}:"
        with_lines = [(line, text) for line, text in _tell(carried(loop), names, _Known(protected, variables))]
    except Exception:  # noqa: BLE001 - whatever the script holds, advice must not end it
        return []
    texts = [f"{where}{first_line + line - 1}: {text}" for line, text in sorted(with_lines)]
    more = len(texts) - TOLD_MAX
    return [*texts[:TOLD_MAX], f"and {more} more like these"] if more > 0 else texts


def loop_of(frame: FrameType) -> tuple[ast.For, int] | None:
    """Return the `for` statement that `frame` is about to begin, and the line that its own lines are counted from."""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    here = frame.f_lineno
    for start in range(min(here, len(lines)), max(0, here - _LINES_BACK), -1):
        if lines[start - 1].lstrip().startswith("for "):
            loop = _parse(lines[start - 1 :])
            if loop is not None and loop.iter.lineno <= here - start + 1 <= (loop.iter.end_lineno or 0):
                return loop, start
    return None


def _parse(lines: list[str]) -> ast.For | None:
    """Parse the statement that `lines` begin with: to the next line that stands no deeper, if that makes sense."""
    depth = _depth(lines[0])
    for end in range(1, min(len(lines), _LOOP_LINES_MAX) + 1):
        follows = lines[end] if end < len(lines) else "end"
        if not follows.strip() or follows.lstrip().startswith("#") or _depth(follows) > depth:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler has told them already
                # On one line with what it stands in, so that neither lines nor strings in them are shifted.
                tree = ast.parse("".join(["if 1:\n" if depth else "", *lines[:end]]))
        except SyntaxError:
            continue  # a bracket or a string goes on
        statement = tree.body[0].body[0] if depth else tree.body[0]  # type: ignore[attr-defined]
        if not isinstance(statement, ast.For):
            return None
        if depth:
            ast.increment_lineno(statement, -1)
        return statement
    return None


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Names:
    """What the names in a frame stand for, without running anything to find out."""

    def __init__(self, frame: FrameType) -> None:
        code = frame.f_code
        self._globals: Mapping[str, Any] = frame.f_globals
        self._own = {*code.co_varnames, *code.co_cellvars} if _is_function(code) else set()
        values = frame.f_locals
        self._locals = dict(values) if values is not frame.f_globals else {}
        if _is_function(code) and sys.version_info < (3, 13):
            values.clear()  # a copy that the frame would keep, and with it all that the script deletes later

    def follow(self, place: Place) -> list[Any]:
        """Return the objects on the way along `place`, as far as it can be followed."""
        root = place[0]
        if root in self._locals:
            value = self._locals[root]
        elif root in self._own or root not in self._globals:
            return []
        else:
            value = self._globals[root]
        way = [value]
        if not _is_tame(value):
            return []
        for attribute in place[1:]:
            value = _attribute(value, attribute)
            if value is _MISSING or not _is_tame(value):
                break
            way.append(value)
        while len(way) > 1 and isinstance(way[-1], FunctionType | MethodType):
            way.pop()  # put there by somebody, as a scheduler does with its optimizer's `step`
        return way


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 1)  # CO_OPTIMIZED: names live in the frame, not in a dict


def _is_tame(value: object) -> bool:
    """Return True if `value` can be asked what it is."""
    try:
        return isinstance(value.__class__, type)
    except Exception:  # noqa: BLE001 - whatever it is, it is not for us
        return False


def _attribute(value: object, name: str) -> Any:  # noqa: ANN401
    """Return what `value` itself holds under `name`; properties and methods are not asked."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _MISSING
    for held in (own, *(own.get(kind) for kind in ("_modules", "_parameters", "_buffers"))):
        if isinstance(held, dict) and name in held:
            return held[name]
    return _MISSING


class _Known:
    """What is taken care of already."""

    def __init__(self, protected: Protected, variables: Vars) -> None:
        self._protected, self._vars = protected, variables
        self._ids = {id(value) for value in protected.objects.values()}
        self._parts: set[int] | None = None
        self._tensors: set[int] | None = None

    def covers(self, way: list[Any]) -> bool:
        """Return True if what `way` leads through is protected, whatever hangs on it: `run.vars`, a scheduler."""
        return any(
            value is self._vars or (id(value) in self._ids and not isinstance(value, nn.Module)) for value in way
        )

    def has(self, value: object) -> bool:
        """Return True if `value` is protected itself."""
        if isinstance(value, torch.Tensor):
            return id(value) in self.tensors
        return value is self._vars or id(value) in self._ids

    def holds(self, value: object) -> bool:
        """Return True if `value`, an object with state, is protected, or part of what is."""
        if self.has(value):
            return True
        if isinstance(value, nn.Module):
            return all(id(tensor) in self.tensors for tensor in (*value.parameters(), *value.buffers()))
        if self._parts is None:
            self._parts = {id(part) for each in self._protected.objects.values() for part in _parts_of(each)}
        return id(value) in self._parts

    @property
    def tensors(self) -> set[int]:
        """The ids of all parameters and buffers of protected modules."""
        if self._tensors is None:
            modules = self._protected.modules.values()
            self._tensors = {id(tensor) for each in modules for tensor in (*each.parameters(), *each.buffers())}
        return self._tensors


def _parts_of(value: object) -> Iterator[Any]:
    """Yield what `value` holds itself. A scheduler holds its optimizer and does not save it."""
    scheduler = isinstance(value, torch.optim.lr_scheduler.LRScheduler)
    for held in getattr(value, "__dict__", {}).values():
        for part in (held, *_items(held)):
            if not (scheduler and isinstance(part, torch.optim.Optimizer)):
                yield part


def _items(value: object) -> list[Any]:
    """Return what a small list, tuple or dict holds."""
    if isinstance(value, dict):
        value = list(value.values())
    return list(value) if isinstance(value, list | tuple) and len(value) <= _ITEMS_MAX else []


def _tell(found: Carried, names: _Names, known: _Known) -> Iterator[tuple[int, str]]:
    """Yield (line in the loop, what is to be said of it)."""
    told: set[int] = set()
    yield from _objects(found, names, known, told)
    for place, line in found.rebound.items():
        value = _at(place, names, known)
        if value is not _MISSING and id(value) not in told and not _is_code(value):
            yield line, _of_name(place, "is carried from step to step")
    for place, (line, how) in found.changes.items():
        if place not in found.rebound and _is_changed(_at(place, names, known), how):
            yield line, _of_name(place, f"is changed in place ({how})")
    for place, line in found.advances.items():
        if hasattr(type(_at(place, names, known)), "__next__"):
            text = "moves on by next(): make what it gives part of the data, or look it up by step.number"
            yield line, f"{'.'.join(place)} {text}"


def _objects(found: Carried, names: _Names, known: _Known, told: set[int]) -> Iterator[tuple[int, str]]:
    """Yield what is to say of objects with state. One is `told` once, however it is reached."""
    for place, line in found.uses.items():
        way = names.follow(place)
        if not way or known.covers(way) or (len(way) == 1 and place[0] == "self"):
            continue
        for index, value in enumerate((way[-1], *_items(way[-1]))):
            if id(value) not in told and _keeps_state(value) and not known.holds(value):
                told.add(id(value))
                yield line, _of_object(".".join(place[: len(way)]) + ("[...]" if index else ""), value)


def _at(place: Place, names: _Names, known: _Known) -> Any:  # noqa: ANN401
    """Return what `place` stands for before the loop; `_MISSING` if nothing, or if it is taken care of."""
    way = names.follow(place)
    taken_care_of = len(way) < len(place) or known.covers(way) or known.has(way[-1])
    return _MISSING if taken_care_of else way[-1]


def _keeps_state(value: object) -> bool:
    """Return True if `value` is an object whose state a step may change. Asks it nothing that could compute."""
    if isinstance(value, type | ModuleType):
        return False
    if isinstance(value, _RANDOM):
        return value is not torch.default_generator
    if isinstance(value, nn.Module):
        if any(parameter.requires_grad for parameter in value.parameters()):
            return True
        return value.training and next(value.buffers(), None) is not None
    if isinstance(value, torch.amp.GradScaler):
        return value.is_enabled()
    return all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict"))


def _is_code(value: object) -> bool:
    return isinstance(value, type | ModuleType) or callable(value)


def _is_changed(value: object, how: str) -> bool:
    """Return True if `how` changes `value`: a method of that name may do anything on an object of another kind."""
    if how.endswith("_()"):
        return isinstance(value, torch.Tensor)
    return isinstance(value, _CONTAINERS) or (how == ASSIGNED and isinstance(value, np.ndarray | torch.Tensor))


def _of_object(name: str, value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, _RANDOM):
        text = f"{name} ({kind}) is a source of random numbers of its own: draw from torch, numpy or random"
        return f"{text} themselves, which are seeded anew in every step"
    return f"{name} ({kind}): give it to run.protect({name.rpartition('.')[2].removesuffix('[...]')}=...)"


def _of_name(place: Place, what: str) -> str:
    return f"{'.'.join(place)} {what}: make it run.vars.{place[-1]}, unless it is only for show"
