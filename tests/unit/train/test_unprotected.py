"""What a script keeps from step to step outside `run.protect` is named, and what it may keep is not."""

from __future__ import annotations

import gc
import linecache
import random
import re
import sys
import textwrap
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import relume
from relume.train import unprotected
from relume.train.protect import Protected
from relume.train.unprotected import warn
from relume.train.variables import Vars
from tests import exact
from tests.scenarios_exact import ALL

ROOT = Path(__file__).parents[3]
SETUP = """
model = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
run.protect(model=model, optimizer=optimizer)
data = None
"""
INNER = """
    for batch in step:
        loss = model(batch).sum()
        loss.backward()
        step.log(loss=loss)
"""


def cases(text):
    """Read cases by name: what stands before the loop, what in it, and the names that are told."""
    found = {}
    for part in text.split("## ")[1:]:
        title, _, rest = part.partition("\n")
        name, _, names = title.partition(": ")
        before, _, within = ("\n" + rest).partition("\n--\n")
        found[name] = (before.lstrip("\n") + "\n", within, set(names.split(", ")) - {""})
    return found


class FakeRun:
    """Protects, and looks at whoever asks for steps, of which there are none."""

    def __init__(self):
        self.protected, self.vars, self.texts, self.took_s = Protected(), Vars(), None, 0.0
        self.is_main, self.rank = True, 0

    def protect(self, **objects):
        self.protected.add(objects)

    def aside(self, label):
        raise AssertionError("no step is run")

    def steps(self, data, *, total=0, epochs=0, single_backward=False):
        begin = time.perf_counter()
        self.texts = warn(sys._getframe(1), self.protected, self.vars)
        self.took_s = time.perf_counter() - begin
        return iter(())


class Ema:
    """A moving average of the script's own, as people write it."""

    def __init__(self):
        self.shadow = {}

    def update(self, model):
        pass

    def state_dict(self):
        raise AssertionError("it is not asked: it could compute")

    load_state_dict = state_dict


def look(source, tmp_path, *, inside_a_function=False, name="train.py", **more):
    """Run `source` from a file and return what is said to it."""
    if inside_a_function:
        source = "def main():\n" + textwrap.indent(source, "    ") + "\nmain()\n"
    file = tmp_path / name
    file.write_text(source)
    linecache.checkcache()
    run = FakeRun()
    names = {"__name__": "script", "run": run, "Ema": Ema, "AveragedModel": AveragedModel, "lr_scheduler": lr_scheduler}
    names |= {"nn": nn, "torch": torch, "np": np, "random": random, "time": time, "types": types}
    exec(compile(source, str(file), "exec"), names | more)  # noqa: S102 - a script, as people write it
    return run


def subjects(run):
    """The names that were told, with the line of each."""
    return {m[2]: int(m[1]) for m in (re.match(r"train\.py:(\d+): (\S+)", text) for text in run.texts)}


@pytest.fixture(params=[False, True], ids=["in the module", "in a function"])
def said(request, tmp_path):
    def say(before, within, header="for step in run.steps(data, total=10):"):
        source = SETUP + textwrap.dedent(before) + header + INNER
        source += textwrap.indent(textwrap.dedent(within).strip("\n"), "    ") + "\n"
        run = look(source, tmp_path, inside_a_function=request.param)
        lines = (tmp_path / "train.py").read_text().splitlines()
        told = subjects(run)
        for name, line in told.items():
            assert name.removesuffix("[...]").split(".")[-1] in lines[line - 1], "the line is the one where it stands"
        return set(told)

    return say


LOOP_CARRIED = cases("""
## a sum: total
total = 0.0
--
total += step.mean('loss')
## a minimum: best
best = 9.0
--
best = min(best, step.mean('loss'))
## a patience: bad, best
best, bad = 9.0, 0
--
if step.mean('loss') < best:
    best, bad = step.mean('loss'), 0
else:
    bad += 1
if bad > 3:
    break
## a value kept for later steps: lr
lr = 1.0
--
if step.number % 10 == 0:
    lr = 0.5
optimizer.lr = lr
## a list: history
history = []
--
history.append(step.mean('loss'))
## a dict by step: losses
losses = {}
--
losses[step.number] = step.mean('loss')
## a count by name: counts
counts = {'x': 0}
--
counts['x'] += 1
## a set: seen
seen = set()
--
seen.add(step.number)
## a tensor in place: baseline
baseline = torch.zeros(2)
--
baseline.lerp_(model.weight[0], 0.1)
## a tensor by index: norms
norms = torch.zeros(9)
--
norms[step.number] = 1.0
## an array: norms
norms = np.zeros(9)
--
norms[step.number] = 1.0
## a field of a namespace: state.n
state = types.SimpleNamespace(n=0)
--
state.n += 1
## an iterator: other
other = iter(range(9))
--
print(next(other))
## hidden state: h
h = torch.zeros(2)
--
h = torch.tanh(h + 1).detach()
## in a with: n
n = 0
--
with torch.no_grad():
    n = n + 1
## in a try: n
n = 0
--
try:
    n = n + 1
except ValueError:
    pass
## in a nested loop: n
n = 0
--
for p in model.parameters():
    n = n + p.sum()
## set by a walrus: n
n = 0
--
if (n := n + 1) > 4:
    optimizer.step()
## after a branch that leaves: n
n = 0
--
if step.number:
    n = 1
    continue
print(n)
## a flag of the model: model.warm
model.warm = 0
--
model.warm += 1
## a list that run.vars had: h
run.vars.h = []
h = run.vars.h
--
h.append(1)
""")


@pytest.mark.parametrize("case", LOOP_CARRIED)
def test_a_value_that_is_carried_from_step_to_step_is_named_with_its_line(said, case):
    before, within, names = LOOP_CARRIED[case]
    assert said(before, within) == names


OBJECTS = cases("""
## an EMA: ema
ema = Ema()
--
ema.update(model)
## an averaged model: swa
swa = AveragedModel(model)
--
swa.update_parameters(model)
## an optimizer: second
second = torch.optim.SGD(model.parameters())
--
second.step()
## an optimizer in a protected scheduler: sgd
sgd = torch.optim.SGD(model.parameters())
run.protect(s=lr_scheduler.StepLR(sgd, 3))
--
sgd.step()
## a scheduler: s
s = lr_scheduler.StepLR(optimizer, 3)
--
s.step()
## a scaler: scaler
scaler = torch.amp.GradScaler('cpu')
--
scaler.update()
## a generator: g
g = torch.Generator()
--
torch.rand(2, generator=g)
## numpy's generator: g
g = np.random.default_rng(0)
--
g.random()
## python's generator: g
g = random.Random(0)
--
g.random()
## one in a list: all[...]
all = [optimizer, torch.optim.SGD(model.parameters())]
--
for o in all:
  o.step()
## one of a dict: all[...]
all = {'a': Ema()}
--
all['a'].update(model)
## one in a namespace: t.ema
t = types.SimpleNamespace(ema=Ema())
--
t.ema.update(model)
## a second model: other
other = nn.Linear(2, 2)
--
other(torch.ones(2))
## a teacher whose statistics move: teacher
teacher = nn.BatchNorm1d(2, affine=False)
--
teacher(model.weight)
""")


@pytest.mark.parametrize("case", OBJECTS)
def test_an_object_with_state_that_is_not_protected_is_named(said, case):
    before, within, names = OBJECTS[case]
    assert said(before, within) == names


FINE = cases("""
## nothing
--
optimizer.step()
## values of this step
loss = None
--
loss = step.mean('loss')
print(loss)
## a sum within a step
total = 0
--
total = 0
for p in model.parameters():
    total += p.sum()
print(total)
## set in both branches
a = 0
--
if step.number:
    a = 1
else:
    a = 2
print(a)
## set before a branch that leaves
a = 0
--
if step.number:
    continue
a = 1
print(a)
## what the inner loop sets
loss = 0
--
print(loss)
## run.vars
run.vars.best = 9
run.vars.h = []
--
run.vars.best = min(run.vars.best, 1)
run.vars.h.append(1)
## the model's own
--
for p in model.parameters():
    p.data.mul_(0.9)
model.weight.data.clamp_(-1, 1)
## a learning rate
--
optimizer.param_groups[0]['lr'] = 0.1
for g in optimizer.param_groups:
    g['lr'] *= 0.9
## clocks
t0 = time.time()
spent = 0.0
--
now = time.time()
spent += now - t0
t0 = now
print(spent, now)
## what main does alone
h = []
n = 0
ema = Ema()
--
if step.is_main and step.number % 2 == 0:
    h.append(1)
    n += 1
    ema.update(model)
## what is done aside
best = 9
ema = Ema()
--
with run.aside('eval'):
    ema.update(model)
    best = min(best, 1)
    value = 3
print(value)
## a loss and a layer without state
criterion = nn.CrossEntropyLoss()
drop = nn.Dropout()
--
criterion(drop(1), 2)
## a frozen teacher
teacher = nn.BatchNorm1d(2).eval().requires_grad_(False)
--
teacher(model.weight)
## parts and wrappers of the model
class W(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
net = model
wrapped = W(model)
both = [model, optimizer]
--
net(1), wrapped(1)
for each in both:
    print(each)
## schedulers within a protected one
a, b = (lr_scheduler.StepLR(optimizer, n) for n in (2, 3))
run.protect(s=lr_scheduler.SequentialLR(optimizer, [a, b], [3]))
--
print(a.get_last_lr())
## a scaler that is off
scaler = torch.amp.GradScaler('cpu', enabled=False)
--
scaler.update()
## methods of the same names
class Bar:
    def update(self, n): pass
    append = add = update
bar = Bar()
--
bar.update(1)
bar.append(1)
bar.add(1)
## a dict that is filled anew
row = {}
--
row['loss'] = 1
print(row)
## comprehensions and lambdas
x = 3
--
y = [x for x in range(3)]
f = lambda x: x + 1
print(f(1))
x = 4
## functions that are defined within
f = print
--
def f(): return 1
f()
## global generators
--
torch.rand(1)
np.random.rand()
random.random()
""")


@pytest.mark.parametrize("case", FINE)
def test_nothing_is_said_of_what_cannot_differ_or_decides_nothing(said, case):
    before, within, names = FINE[case]
    assert said(before, within) == names == set()


@pytest.mark.parametrize(
    "header",
    [
        "for n, step in enumerate(run.steps(data, total=10)):",
        "for step in run.steps(\n    data,\n    total=10,\n):",
        "for n, step in zip(\n    range(9),\n    run.steps(data, total=10),\n):",
        "for step in run.steps(data, total=10):  # noqa",
    ],
)
def test_the_loop_is_found_however_it_is_written(said, header):
    assert said("best = 9\n", "best = min(best, 1)", header) == {"best"}


def test_a_loop_with_strings_and_brackets_that_stand_further_left(tmp_path):
    run = look(
        SETUP
        + "n = 0\ndef f():\n    global n\n    for step in run.steps(data):\n        for b in step:\n            pass\n"
        '        print("""\nfar left\n""", r"\\d", [\n1,\n])\n# a comment\n        n += 1\n    return 0\nf()\n',
        tmp_path,
    )
    assert set(subjects(run)) == {"n"}
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert lines[subjects(run)["n"] - 1].strip() == "n += 1"


TRAINER = """
class Trainer:
    def __init__(self):
        self.model, self.ema, self.n = model, Ema(), 0

    def state_dict(self):
        pass

    load_state_dict = state_dict

    def look(self):
        pass

    def train(self):
        for step in run.steps(data):
            for b in step:
                pass
            self.model(1)
            self.look()
            self.ema.update(1)
            self.n += 1

Trainer().train()
"""


def test_a_trainer_that_is_a_class(tmp_path):
    assert set(subjects(look(SETUP + TRAINER, tmp_path))) == {"self.ema", "self.n"}


def test_the_sentences_say_what_to_do(tmp_path):
    run = look(
        SETUP + "best = 9\nema = Ema()\nfor step in run.steps(data):\n    best = min(best, 1)\n    ema.update(1)\n",
        tmp_path,
    )
    assert run.texts == [
        "train.py:9: best is carried from step to step: make it run.vars.best, unless it is only for show",
        "train.py:10: ema (Ema): give it to run.protect(ema=...)",
    ]


def test_many_are_not_told_one_by_one(tmp_path):
    names = [f"n{number}" for number in range(20)]
    source = SETUP + "".join(f"{name} = 0\n" for name in names) + "for step in run.steps(data):\n"
    run = look(source + "".join(f"    {name} += 1\n" for name in names), tmp_path)
    assert len(run.texts) == unprotected.TOLD_MAX + 1
    assert run.texts[-1] == f"and {20 - unprotected.TOLD_MAX} more like these"


def test_no_false_alarm_on_the_scripts_that_there_are(tmp_path, monkeypatch):
    """The example, the README's loop and the tests' own training loop, as they stand."""
    monkeypatch.setattr(sys, "argv", ["charlm.py", "--steps", "3", "--width", "8", "--layers", "1"])
    fake = FakeRun()
    monkeypatch.setattr(relume, "init", lambda **_: fake)
    source = (ROOT / "examples" / "charlm.py").read_text().replace("if run.is_main:", "if False:")
    look(source.replace('"__main__"', '"script"'), tmp_path, name="charlm.py")
    assert fake.texts == []

    readme = (ROOT / "README.md").read_text()
    (loop,) = (
        part for part in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "relume.Shards(dataset" in part
    )
    fake.__init__()
    look(loop, tmp_path, Net=lambda: nn.Linear(2, 2), dataset=[1] * 64, loss_fn=None)
    assert fake.texts == []

    monkeypatch.setattr(exact.torch, "save", lambda *_: None)
    for scenario in ALL:
        fake.__init__()
        exact.train(scenario, 4, tmp_path / "trace")
        assert fake.texts == [], scenario.name


@pytest.mark.parametrize(
    "source",
    [
        "steps = run.steps(data)\n",  # no loop to be seen
        "[run.steps(data) for _ in range(1)]\n",
        "for step in (lambda: run.steps(data))():\n    pass\n",
        "exec('for step in run.steps(data):\\n    n = n + 1')\n",  # no source
        "eval('run.steps(data)')\n",
    ],
)
def test_where_no_loop_can_be_seen_nothing_is_said(tmp_path, source):
    assert look(SETUP + "n = 0\n" + source, tmp_path).texts == []


def test_a_file_that_has_changed_or_gone_meanwhile_does_no_harm(tmp_path):
    source = SETUP + "n = 0\nPath(__file__).write_text({!r})\nfor step in run.steps(data):\n    n += 1\n"
    for text in ("", "(" * 50, "for x in (\n" * 20, "\x00", "for step in y:\n    m += 1\n" * 9):
        assert look(source.format(text), tmp_path, __file__=str(tmp_path / "train.py"), Path=Path).texts == []
        linecache.clearcache()


class Hostile:
    """Raises whatever it is asked."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError

    def __hash__(self):
        raise RuntimeError

    def __bool__(self):
        raise RuntimeError

    def __iter__(self):
        raise RuntimeError


def test_objects_that_raise_when_they_are_asked_do_no_harm(tmp_path):
    run = look(
        SETUP + "n = 0\nfor step in run.steps(data):\n    x.y.z()\n    x = x\n    x.append(1)\n    n += 1\n",
        tmp_path,
        x=Hostile(),
    )
    assert "n" in subjects(run)


def test_nothing_is_kept_alive_that_the_script_lets_go(tmp_path):
    class Big:
        pass

    def script():
        run.protect(model=nn.Linear(2, 2))
        big = Big()
        alive = weakref.ref(big)
        for _ in run.steps(None):
            big.n += 1  # pragma: no cover - no step is run
        del big
        gc.collect()
        return alive()

    run = FakeRun()
    assert script() is None
    assert run.texts == []  # `big.n` is nowhere before the loop


def test_it_takes_a_few_milliseconds_at_most(tmp_path):
    """A long script with a long loop and a deep model. The best of five, and a bound far above what it takes."""
    lines = "".join(f"    a{n} = [x * {n} for x in range(3)]\n    print(a{n}, optimizer)\n" for n in range(200))
    source = "x = 1\n" * 3000 + SETUP.replace(
        "nn.Linear(2, 2)", "nn.Sequential(*[nn.Linear(2, 2) for _ in range(300)])"
    )
    source += "other = nn.Linear(2, 2)\nfor step in run.steps(data):\n    other(1)\n" + lines
    took = min(look(source, tmp_path).took_s for _ in range(5))
    assert took < 0.1, took
