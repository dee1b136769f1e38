"""Which names a loop carries from one round to the next, read off its source."""

from __future__ import annotations

import ast
import textwrap

import pytest

from relume.train.carried import Carried, carried, place_of


def look(body: str) -> Carried:
    loop = ast.parse("for i, step in steps:\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")).body[0]
    return carried(loop)


def names(places) -> set[str]:
    return {".".join(place) for place in places}


@pytest.mark.parametrize(
    ("body", "rebound"),
    [
        ("a = 1; b = a", set()),
        ("b = a; a = 1", {"a"}),
        ("a = b; b = a", {"b"}),
        ("a, (b, *c) = b, 1", {"b"}),
        ("a: int = a + 1\nb: int", {"a"}),
        ("a[0] = 1; b = a", set()),
        ("self.n = self.n + 1; self.m = 1; print(self.m)", {"self.n"}),
        ("self = make(); self.n += 1", set()),
        ("print(a.b.c); a.b = 1", {"a.b"}),
        ("while a < 3:\n    a = a + 1", {"a"}),
        ("a = 0\nwhile a < 3:\n    a = a + 1", set()),
        ("for x in y:\n    a = x\nprint(a)", {"a"}),
        ("for x in y:\n    pass\nprint(x)", {"x"}),
        ("for batch in step:\n    a = a + 1", set()),
        ("for n, batch in enumerate(step):\n    a = 1\nprint(a); a = 2", set()),
        ("if x:\n    a = 1\nprint(a)", {"a"}),
        ("if x:\n    a = 1\nelse:\n    a = 2\nprint(a)", set()),
        ("if x:\n    a = 1\nelif y:\n    a = 2\nelse:\n    raise E\nprint(a)", set()),
        ("try:\n    a = f()\nexcept E:\n    a = 0\nprint(a)", set()),
        ("try:\n    f()\nexcept E:\n    a = a + 1", {"a"}),
        ("try:\n    f()\nexcept* E:\n    a = a + 1\nfinally:\n    b = b + 1", {"a", "b"}),
        ("with f() as a:\n    b = a\nprint(b)", set()),
        ("with a:\n    a = 1", {"a"}),
        ("with run.aside('x'), f() as g:\n    a = a + 1\n    b = 1\nprint(b); b = 2", set()),
        (
            "match x:\n    case [a, *b] if a + e:\n        a = e = b\n    case {'k': c}:\n        c = c",
            {"e"},
        ),
        ("match a:\n    case _:\n        a = 1", {"a"}),
        ("print(a := a + 1)", {"a"}),
        ("[a for a in range(3)]; a = 1", set()),
        ("b = [a for _ in range(3)]; a = 1", {"a"}),
        ("f = lambda a, *b, c=d: a + b + c; a = b = c = 1; d = 2", {"d"}),
        ("def a(): return b\nprint(a, b); b = 1", {"b"}),
        ("import a.b as c\nimport d.e\nprint(c)", set()),
        ("if step.is_main:\n    a = a + 1\nelse:\n    b = b + 1", {"b"}),
        ("if run.is_main and x:\n    a = 1\nprint(a)", set()),
        ("i = i + 1; step = step", set()),
        ("t = time.time(); d = t - u; u = t", set()),
        ("n = n + 1; t = time.time() + n", {"n"}),
        ("u = perf_counter() - v; v = 1 if x else u", set()),
    ],
)
def test_a_name_is_carried_if_a_round_may_read_what_an_earlier_one_left(body, rebound):
    assert names(look(body).rebound) == rebound


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("a.append(1); b.c.update(x=1); d.sort(); e.copy()", {"a", "b.c", "d"}),
        ("a = []; a.append(1)", set()),
        ("a[i] = 1; b['k'] = 1; c['k'] += 1; d[0][i] = 1", {"a", "c"}),
        ("x.mul_(2); x.y.zero_(); z.requires_grad_(); w.__init__()", {"x", "x.y"}),
        ("for batch in step:\n    a.append(1)", set()),
        ("with run.aside('x'):\n    a.append(1)", set()),
        ("if step.is_main:\n    a.append(1)", set()),
        ("f().append(1); [].append(1)", set()),
    ],
)
def test_what_is_changed_in_place(body, changes):
    assert names(look(body).changes) == changes


def test_what_moves_on():
    found = look("x = next(a); y = next(self.b, None); c = iter(d); next(c); next(f()); next(e) if step.is_main else 0")
    assert names(found.advances) == {"a", "self.b", "e"}


def test_what_is_used_counts_in_the_inner_loop_and_not_aside():
    found = look("for b in step:\n    m.f(b)\nwith run.aside('x'):\n    n.f()\nif step.is_main:\n    o.f()\np[0].q = 1")
    assert names(found.uses) == {"m.f", "run.aside", "p", "b"}


def test_lines_are_those_of_the_source():
    found = look("print(a)\n\na = 1\nb.append(\n    1\n)")
    assert (found.stores[("a",)], found.reads[("a",)], found.changes[("b",)][0]) == (4, 2, 5)


def test_a_place_is_names_with_dots_between():
    assert place_of(ast.parse("a.b.c", mode="eval").body) == ("a", "b", "c")
    assert place_of(ast.parse("a().b", mode="eval").body) is None
