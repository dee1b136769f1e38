"""Mechanical mutants of the core: every condition negated, one at a time. Does anything notice?

A mutant lives in a process of its own, forked from one that has not imported relume yet: there an import hook gives it
the mutated module, and then the transcripts are played and histories are lived, until something differs or is
violated. What survives is printed with its line.

    python -m tests.simulation.mutants [--every N] [--histories N] [--only FILE:LINE]
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src" / "relume" / "core"
MODULES = (
    "coordinator",
    "closing",
    "admitting",
    "roster",
    "admission",
    "staffing",
    "plan",
    "view",
    "ranges",
    "verdict",
    "members",
    "limits",
    "detect",
)
LIMIT_S = 240


@dataclass(frozen=True)
class Mutant:
    """The `index`th place of a module at which something can be changed in this way."""

    way: str
    module: str
    index: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.text}"


class Negate(ast.NodeTransformer):
    """Finds conditions in a fixed order, and negates the one that is wanted."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.found: list[ast.expr] = []

    def condition(self, test: ast.expr) -> ast.expr:
        """Count `test` (and the parts of an and/or), and negate it if it is the one."""
        if isinstance(test, ast.BoolOp):
            self.found.append(test)
            here = len(self.found) - 1 == self.wanted
            test.values = [self.condition(value) for value in test.values]
            return ast.UnaryOp(ast.Not(), test) if here else test
        self.found.append(test)
        return ast.UnaryOp(ast.Not(), test) if len(self.found) - 1 == self.wanted else test

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self.condition(node.test)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        node.test = self.condition(node.test)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.condition(node.test)
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.ifs = [self.condition(test) for test in node.ifs]
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if isinstance(node.value, ast.Compare | ast.BoolOp) or _is_not(node.value):
            node.value = self.condition(node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """The condition that `any` and `all` are asked about."""
        if isinstance(node.func, ast.Name) and node.func.id in {"any", "all"}:
            generator = node.args[0]
            if isinstance(generator, ast.GeneratorExp):
                generator.elt = self.condition(generator.elt)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """A comparison anywhere else."""
        if node not in self.found:
            return self.generic_visit(self.condition(node))
        return self.generic_visit(node)


class Nudge(ast.NodeTransformer):
    """Finer changes: a bound that is off by one, plus for minus, max for min, a statement left out."""

    BOUNDS: ClassVar = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
    SIGNS: ClassVar = {ast.Add: ast.Sub, ast.Sub: ast.Add}
    NAMES: ClassVar = {"max": "min", "min": "max", "any": "all", "all": "any"}

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.found: list[ast.AST] = []

    def _is_it(self, node: ast.AST) -> bool:
        self.found.append(copy.deepcopy(node))
        return len(self.found) - 1 == self.wanted

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for place, operator in enumerate(node.ops):
            if type(operator) in self.BOUNDS and self._is_it(node):
                node.ops[place] = self.BOUNDS[type(operator)]()
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if type(node.op) in self.SIGNS and self._is_it(node):
            node.op = self.SIGNS[type(node.op)]()
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.NAMES and self._is_it(node):
            node.id = self.NAMES[node.id]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """A call for its effect."""
        if isinstance(node.value, ast.Call) and self._is_it(node):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Something remembered."""
        if isinstance(node.targets[0], ast.Attribute) and self._is_it(node):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


WAYS: dict[str, type[Negate | Nudge]] = {"negate": Negate, "nudge": Nudge}


def _is_not(node: ast.expr | None) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def mutants(way: str = "negate") -> list[Mutant]:
    """Return every mutant."""
    found = []
    for module in MODULES:
        finder = WAYS[way](None)
        finder.visit(ast.parse((CORE / f"{module}.py").read_text()))
        for index, node in enumerate(finder.found):
            found.append(Mutant(way, module, index, node.lineno, f"{way} {ast.unparse(node)}"))
    return found


def mutated(mutant: Mutant) -> ast.Module:
    """Return the module with that one change."""
    tree = WAYS[mutant.way](mutant.index).visit(ast.parse((CORE / f"{mutant.module}.py").read_text()))
    return ast.fix_missing_locations(tree)


class Graft(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutated module to whoever imports it."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = f"relume.core.{mutant.module}"

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == self.name else None

    def exec_module(self, module) -> None:
        path = str(CORE / f"{self.mutant.module}.py")
        module.__file__ = path
        exec(compile(mutated(self.mutant), path, "exec"), module.__dict__)  # noqa: S102


def notice(histories: int) -> str:
    """Return what noticed that something is wrong with the core, or "" if nothing did."""
    from relume.simulate.campaign import campaign
    from tests.scenarios.interpreter import Stage, rendered, transcripts

    for path in transcripts():
        written = path.read_text()
        if "\n".join(rendered(written, Stage())) + "\n" != written:
            return f"transcript {path.stem}"
    summary = campaign(range(histories), proceed=lambda so_far: not so_far.findings)
    if summary.findings:
        return f"seed {summary.findings[0].seed}: {summary.findings[0].checker}"
    return ""


def try_out(mutant: Mutant | None, histories: int, *, transcripts: bool = True) -> str:
    """Live a mutant (None: the core as it is) in a forked process; return what noticed it, or ""."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(LIMIT_S)
        text = ""
        try:
            if mutant is not None:
                sys.meta_path.insert(0, Graft(mutant))
            text = notice(histories) if transcripts else notice_by_histories(histories)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it was noticed
            text = f"{type(error).__name__}: {error}"[:200]
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return text or ("it does not come to an end" if status else "")


def notice_by_histories(histories: int) -> str:
    """As `notice`, without the transcripts."""
    from relume.simulate.campaign import campaign

    summary = campaign(range(histories), proceed=lambda so_far: not so_far.findings)
    return f"seed {summary.findings[0].seed}: {summary.findings[0].checker}" if summary.findings else ""


def main() -> int:
    """Try every Nth mutant; print a JSON object."""
    parser = argparse.ArgumentParser(description="Mutants of the core, against transcripts and simulated histories.")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth mutant")
    parser.add_argument("--offset", type=int, default=0, metavar="K", help="beginning with the Kth")
    parser.add_argument("--way", choices=WAYS, default="negate", help="negate conditions (default), or change less")
    parser.add_argument("--histories", type=int, default=400, metavar="N", help="at most so many for each")
    parser.add_argument("--no-transcripts", action="store_true", help="let the simulator find them alone")
    parser.add_argument("--verbose", action="store_true", help="tell of every mutant, on standard error")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    began_s = time.monotonic()
    trouble = try_out(None, 30)
    if trouble:
        print(json.dumps({"error": f"the core as it is does not pass: {trouble}"}))
        return 2
    chosen = mutants(options.way)[options.offset :: options.every]
    survived = []
    for mutant in chosen:
        what = try_out(mutant, options.histories, transcripts=not options.no_transcripts)
        if options.verbose:
            print(f"{mutant}\n    {what or 'SURVIVED'}", file=sys.stderr, flush=True)
        if not what:
            survived.append(str(mutant))
    killed = len(chosen) - len(survived)
    share = killed / len(chosen)
    result = {"mutants": len(chosen), "killed": killed, "share": round(share, 3), "survived": survived}
    print(json.dumps({**result, "seconds": round(time.monotonic() - began_s, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
