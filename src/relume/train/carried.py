"""Which names of a loop keep something from one round to the next: read off its source, without running it.

A name is *carried* if a round may read what an earlier round left in it: it is read before it is set on the way there,
and set (or changed in place) somewhere else in the body. `best = min(best, x)`, `count += 1`, `if x < best: best = x`
and `history.append(x)` are; `loss = ...; print(loss)` is not. What the inner loop does, what is done aside and what
main does alone is not looked at: nothing there decides a step. What a clock told is left out for the same reason.

This module knows syntax. It does not know which names exist, or what is in them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

Place = tuple[str, ...]
"""A name and the attributes after it: `self.best` is ("self", "best")."""

CHANGERS = frozenset(
    {"append", "appendleft", "extend", "insert", "pop", "popleft", "remove", "clear", "update", "add", "discard"}
    | {"setdefault", "subtract", "sort", "reverse"}
)
"""Methods that change a list, dict, set, deque or Counter in place."""
CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time"})
ASSIGNED = "[...] ="
_LEAVES = (ast.Continue, ast.Break, ast.Return, ast.Raise)


@dataclass(slots=True)
class Carried:
    """What was found, by place, with the line of it (counted from the source's first line, which is 1)."""

    uses: dict[Place, int] = field(default_factory=dict)
    reads: dict[Place, int] = field(default_factory=dict)
    stores: dict[Place, int] = field(default_factory=dict)
    changes: dict[Place, tuple[int, str]] = field(default_factory=dict)
    advances: dict[Place, int] = field(default_factory=dict)
    clocks: set[Place] = field(default_factory=set)

    @property
    def rebound(self) -> dict[Place, int]:
        """Names that are set anew from round to round, with the line where they are set."""
        return {place: line for place, line in self.stores.items() if place in self.reads and place not in self.clocks}


def carried(loop: ast.For) -> Carried:
    """Look through the body of `loop`, a loop over steps."""
    looker = _Looker(_names_in(loop.target))
    looker.walk(loop.body, set())
    looker.settle_clocks()
    return looker.found


def place_of(node: ast.AST) -> Place | None:
    """Return the place that `node` names, or None if it is more than names with dots between."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        base = place_of(node.value)
        return None if base is None else (*base, node.attr)
    return None


class _Looker:
    """Walks statements in order. `killed`: what was set in this round on every way to where we are."""

    def __init__(self, steps: set[str]) -> None:
        self.found = Carried()
        self._steps = steps
        self._quiet = 0  # inside of the inner loop: what is used counts, what is carried does not
        self._blind = 0  # inside of what decides no step: nothing counts
        self._hidden: set[str] = set()
        self._told: dict[Place, list[ast.expr]] = {}

    # Statements -------------------------------------------------------------------------------------------------

    def walk(self, body: list[ast.stmt], killed: set[Place]) -> set[Place]:
        """Walk `body`; return what is set at its end."""
        for statement in body:
            killed = self._statement(statement, killed)
        return killed

    def _statement(self, node: ast.stmt, killed: set[Place]) -> set[Place]:
        match node:
            case ast.Assign() | ast.AnnAssign():
                self._assign(node, killed)
            case ast.AugAssign():
                self._augment(node, killed)
            case ast.If():
                killed = self._branch(node, killed)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, killed)
            case ast.With() | ast.AsyncWith():
                killed = self._with(node, killed)
            case ast.Try() | ast.TryStar():
                killed = self._try(node, killed)
            case ast.Match():
                self._match(node, killed)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                killed.add((node.name,))
            case _:
                self._read(node, killed)
        return killed

    def _assign(self, node: ast.Assign | ast.AnnAssign, killed: set[Place]) -> None:
        if node.value is not None:
            self._read(node.value, killed)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._store(target, killed, node.value)

    def _augment(self, node: ast.AugAssign, killed: set[Place]) -> None:
        self._read(node.value, killed)
        place = place_of(node.target)
        if place is not None:
            self._note_read(place, node.lineno, killed)
            self._store(node.target, killed, node.value)
        elif isinstance(node.target, ast.Subscript):
            self._change(node.target.value, node.lineno, ASSIGNED, killed)
            self._read(node.target, killed)

    def _branch(self, node: ast.If, killed: set[Place]) -> set[Place]:
        self._read(node.test, killed)
        mains = any(isinstance(part, ast.Attribute) and part.attr == "is_main" for part in ast.walk(node.test))
        self._blind += mains
        then = self.walk(node.body, set(killed))
        self._blind -= mains
        other = self.walk(node.orelse, set(killed))
        if _leaves(node.body):
            return other
        return then if _leaves(node.orelse) else then & other

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, killed: set[Place]) -> None:
        if isinstance(node, ast.While):
            self._read(node.test, killed)
            self.walk([*node.body, *node.orelse], set(killed))
            return
        self._read(node.iter, killed)
        inner = any(isinstance(part, ast.Name) and part.id in self._steps for part in ast.walk(node.iter))
        self._quiet += inner
        within = set(killed)
        self._store(node.target, within, node.iter)
        within = self.walk(node.body, within)
        self._quiet -= inner
        if (
            inner
        ):  # a worker without shards does not run it; what is read below it comes from the same step all the same
            killed |= within
        self.walk(node.orelse, killed if inner else set(killed))

    def _match(self, node: ast.Match, killed: set[Place]) -> None:
        self._read(node.subject, killed)
        for case in node.cases:
            within = killed | {(name,) for name in _names_in(case.pattern)}
            if case.guard is not None:
                self._read(case.guard, within)
            self.walk(case.body, within)

    def _with(self, node: ast.With | ast.AsyncWith, killed: set[Place]) -> set[Place]:
        aside = False
        for item in node.items:
            call = item.context_expr
            aside |= isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "aside"
            self._read(call, killed)
            if item.optional_vars is not None:
                self._store(item.optional_vars, killed, call)
        self._blind += aside
        killed = self.walk(node.body, killed)
        self._blind -= aside
        return killed

    def _try(self, node: ast.Try | ast.TryStar, killed: set[Place]) -> set[Place]:
        before = set(killed)
        killed = self.walk([*node.body, *node.orelse], killed)
        for handler in node.handlers:
            self.walk(handler.body, set(before))
        return self.walk(node.finalbody, killed)

    # Expressions ------------------------------------------------------------------------------------------------

    def _read(self, node: ast.AST, killed: set[Place]) -> None:
        place = place_of(node)
        if place is not None:
            self._note_read(place, node.lineno, killed)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call):
            self._call(node, killed)
        elif isinstance(node, ast.NamedExpr):
            self._read(node.value, killed)
            self._store(node.target, killed, node.value)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            own = {name for generator in node.generators for name in _names_in(generator.target)}
            self._within(own, node, killed)
        elif isinstance(node, ast.Lambda):
            own = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            self._within(own, node, killed)
        else:
            for child in ast.iter_child_nodes(node):
                self._read(child, killed)

    def _within(self, own: set[str], node: ast.AST, killed: set[Place]) -> None:
        hidden, self._hidden = self._hidden, self._hidden | own
        for child in ast.iter_child_nodes(node):
            self._read(child, killed)
        self._hidden = hidden

    def _call(self, node: ast.Call, killed: set[Place]) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and (function.attr in CHANGERS or _in_place(function.attr)):
            self._change(function.value, node.lineno, f".{function.attr}()", killed)
        if (
            isinstance(function, ast.Name)
            and function.id == "next"
            and node.args
            and not self._quiet
            and not self._blind
        ):
            place = place_of(node.args[0])
            if place is not None and place not in killed:
                self.found.advances.setdefault(place, node.lineno)
        for child in ast.iter_child_nodes(node):
            self._read(child, killed)

    def _note_read(self, place: Place, line: int, killed: set[Place]) -> None:
        if self._blind or place[0] in self._hidden or place[0] in self._steps:
            return
        self.found.uses.setdefault(place, line)
        ways = [place[:end] for end in range(1, len(place) + 1)]  # who reads `best.item` reads `best`
        if not self._quiet and not any(way in killed for way in ways):
            for way in ways:
                self.found.reads.setdefault(way, line)

    def _store(self, target: ast.AST, killed: set[Place], value: ast.expr) -> None:
        place = place_of(target)
        if place is not None:
            if not self._quiet and not self._blind:
                self.found.stores.setdefault(place, target.lineno)  # type: ignore[attr-defined]
                self._told.setdefault(place, []).append(value)
            killed.add(place)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._store(element, killed, value)
        elif isinstance(target, ast.Starred):
            self._store(target.value, killed, value)
        elif isinstance(target, ast.Subscript):
            if not isinstance(target.slice, ast.Constant):  # one that is set to something else in each round
                self._change(target.value, target.lineno, ASSIGNED, killed)
            self._read(target.value, killed)
            self._read(target.slice, killed)
        else:
            for child in ast.iter_child_nodes(target):
                self._read(child, killed)

    def _change(self, base: ast.AST, line: int, how: str, killed: set[Place]) -> None:
        place = place_of(base)
        if place is None or self._quiet or self._blind or place[0] in self._hidden or place[0] in self._steps:
            return
        if not any(place[:end] in killed for end in range(1, len(place) + 1)):
            self.found.changes.setdefault(place, (line, how))

    # Clocks -----------------------------------------------------------------------------------------------------

    def settle_clocks(self) -> None:
        """Find the places that hold only what a clock told, or what was computed from that."""
        clocks, before = self.found.clocks, -1
        while len(clocks) > before:
            before = len(clocks)
            clocks |= {place for place, values in self._told.items() if all(map(self._is_of_a_clock, values))}

    def _is_of_a_clock(self, value: ast.expr) -> bool:
        for part in ast.walk(value):
            if isinstance(part, ast.Call):
                place = place_of(part.func)
                if place is not None and place[-1] in CLOCKS:
                    return True
            if place_of(part) in self.found.clocks:
                return True
        return False


def _in_place(method: str) -> bool:
    """Return True for `add_`, `lerp_` and their like, torch's way to say that a tensor is changed."""
    return method.endswith("_") and not method.startswith("_") and method != "requires_grad_"


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _LEAVES)


def _names_in(node: ast.AST) -> set[str]:
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.name for part in ast.walk(node) if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name}
