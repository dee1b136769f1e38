"""The warm template without its imports: births, what they are given, and everything that can come between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from relume.agent import template as template_module
from relume.agent.priority import may_lower, restore_priority
from relume.agent.spawn import FreshInterpreter, python_command
from relume.agent.template import Template, import_path, runs
from tests.newborns import LIGHT, SOURCES, Warm, finish, warm_in

NAMED = "import os, sys\nprint(sys.argv, __name__, "
NAMED += "__file__, __spec__ and __spec__.name, __package__, __cached__, sys.path[0])\n"
ENDINGS = {
    "well": "print('said')",
    "without a last newline": "import sys; sys.stdout.write('a'); sys.stderr.write('b')",
    "exit 3": "raise SystemExit(3)",
    "exit with a text": "import sys; sys.exit('why')",
    "exit at once": "import os; os._exit(7)",
    "an exception": "def f():\n    1 / 0\nf()",
    "one from another": "try:\n    {}[1]\nexcept KeyError as error:\n    raise ValueError('two') from error",
    "no syntax": "def f(:\n",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handlers at exit": "import atexit; atexit.register(print, 'last'); atexit.register(print, 'first'); 1 / 0",
    "an exit in a handler": "import atexit, os; atexit.register(os._exit, 5)",
    "a thread that goes on": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')",
    "an excepthook": "import sys; sys.excepthook = lambda k, e, t: print(k, e, t.tb_frame.f_code.co_filename); 1 / 0",
    "an exception in a thread": "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()",
    "a function in a future": "from __future__ import annotations\ndef f(x: no_such): ...\nprint(f.__annotations__)",
    "no future": "def f(x: int): ...\nprint(f.__annotations__)\ny: int = 1\nprint(__annotations__)",
    "its own source": "import inspect\nclass A:\n    b = 1\nprint(inspect.getsource(A))",
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A template for script.py, which each test writes anew."""
    with warm_in(tmp_path_factory.mktemp("warm"), ["./script.py", "one", "--two"], imports=False) as warm:
        yield warm


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that makes a template for this test alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import time; time.sleep(60)")
    made = []

    def make(words=("script.py",), program=LIGHT):
        warm = Warm(words, imports=False)
        warm.template._program = program
        made.append(warm)
        return warm.__enter__()

    yield make
    for warm in made:
        warm.__exit__()


def descriptors(pid="self"):
    found = []
    for link in list(Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one through which they were listed
            found.append(str(link.readlink()))
    return sorted(found)


def niceness(pid):
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return [int(path.read_text().rpartition(")")[2].split()[16]) for path in stats]


# What a newborn is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_ends_as_a_fresh_interpreter_does(warm, ending):
    Path("script.py").write_text(ENDINGS[ending])
    hot, cold = warm.run(), warm.run_cold()
    assert hot == cold
    assert "relume" not in hot.err


def test_a_script_is_named_as_by_python(warm):
    Path("script.py").write_text(NAMED)
    hot = warm.run()
    assert hot == warm.run_cold()
    assert hot.out.startswith("['./script.py', 'one', '--two'] __main__ /")


@pytest.mark.parametrize("name", ["package", "package.inner", "alone"])
def test_so_is_a_module(own, tmp_path, name):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import sys; print('import', sys.argv)")
    relative = NAMED + "from . import part\nfrom .part import x\n1 / x\n"
    (tmp_path / "package" / "__main__.py").write_text(relative)
    (tmp_path / "package" / "inner.py").write_text(relative)
    (tmp_path / "package" / "part.py").write_text("x = 0")
    (tmp_path / "alone.py").write_text(NAMED + "raise KeyboardInterrupt")
    warm = own(["-m", name, "argument"])
    cold = warm.run_cold()
    assert warm.run() == cold
    assert "<frozen runpy>" in cold.err


def test_a_module_that_is_not_there_is_told_of_by_python(own):
    warm = own(["-m", "no_such_module"])
    assert warm.run() == warm.run_cold()


def test_it_has_the_descriptors_it_is_given_and_no_others(warm):
    Path("script.py").write_text(
        "import os\nprint([fd for fd in range(3, 1024) if os.path.exists(f'/proc/self/fd/{fd}')])\n"
        "print(os.environ['RELUME_AGENT'])\nfor fd in map(int, os.environ['RELUME_AGENT'].split(',')):\n"
        "    print(os.get_inheritable(fd), os.fstat(fd).st_ino)"
    )
    made = [*os.pipe(), os.open("/dev/null", os.O_RDONLY)]
    low, high = made[:2], [os.dup2(made[2], 199), os.dup2(made[2], 230)]
    given = [high[1], low[1], high[0], low[0]]
    try:
        listed = ",".join(map(str, given))
        hot = warm.run(given, RELUME_AGENT=listed)
        assert hot == warm.run_cold(given, RELUME_AGENT=listed)
        assert hot.out.startswith(f"{sorted(given)}\n{listed}\nTrue {os.fstat(given[0]).st_ino}\n")
    finally:
        for descriptor in {*made, *high}:
            os.close(descriptor)


def test_a_number_that_an_import_has_taken_is_not_taken_from_it(own):
    warm = own(program=LIGHT.replace("import sys\n", "import os, sys\nos.dup2(1, 77)\n"))
    descriptor = os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 77)
    born = []
    try:
        warm.template.order(warm.command, warm.environment(), [descriptor], born.append)
        warm.until(lambda: born)
    finally:
        os.close(descriptor)
    assert born == [None]
    assert not warm.template.ready
    assert "descriptor 77 is taken by an import (pipe:[" in warm.troubles[0]


def test_nobody_is_born_where_cuda_could_not_be_used(own):
    bad = "from types import SimpleNamespace as N\nsys.modules['torch'] = N(cuda=N(_is_in_bad_fork=lambda: True))\n"
    warm = own(program=LIGHT.replace("from relume", bad + "from relume", 1))
    born = []
    warm.template.order(warm.command, warm.environment(), [], born.append)
    warm.until(lambda: born)
    assert born == [None]
    assert "CUDA" in warm.troubles[0]


def test_variables_that_an_import_sets_are_set(own, tmp_path):
    (tmp_path / "script.py").write_text("import os; print(os.environ['RELUME_A'], os.environ.get('B'), os.getenv('C'))")
    text = "warm.IMPORTS = ('sets',)"
    (tmp_path / "sets.py").write_text(
        "import os; os.environ.update(B='import', RELUME_A='import'); os.environ.pop('C', 0)"
    )
    warm = own(program=LIGHT.replace("warm.IMPORTS = ()", text))
    assert warm.run(RELUME_A="order").out == "order import None\n"


# How many, how fast, how eager ------------------------------------------------------------------------------------


def test_fifty_births_leave_nothing_behind(warm):
    Path("script.py").write_text("print('here')")
    warm.run()
    pid, there = warm.template.pid, children()
    before = [descriptors(), descriptors(pid), resident(pid)]
    for _ in range(50):
        assert warm.run().out == "here\n"
    assert [descriptors(), descriptors(pid)] == before[:2]
    assert resident(pid) - before[2] < 1 << 20
    assert children() == there
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def children():
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for path in lists for pid in path.read_text().split()]


def test_many_may_be_under_way_at_once(warm):
    Path("script.py").write_text("import os; print(os.environ['RELUME_WHO'])")
    born = []
    for who in range(8):
        warm.template.order(warm.command, warm.environment(RELUME_WHO=str(who)), [], born.append)
    warm.until(lambda: len(born) == 8)
    assert sorted(finish(started).out for started in born) == [f"{who}\n" for who in range(8)]


def test_it_does_nothing_before_the_agent_knows_of_it(warm):
    Path("script.py").write_text("open('witness', 'w')")
    known = []

    def born(started):
        time.sleep(0.05)
        known.append((Path("witness").exists(), os.getpgid(started.pid) == started.pid, started))

    warm.template.order(warm.command, warm.environment(), [], born)
    warm.until(lambda: known)
    assert known[0][:2] == (False, True)
    assert finish(known[0][2]).status == 0
    assert Path("witness").exists()


@pytest.mark.skipif(not may_lower(), reason="priority could not be restored here")
def test_it_may_be_less_eager_until_it_is_level(warm):
    Path("script.py").write_text(
        "import os, threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "if not os.fork(): time.sleep(60)\nos.write(1, b'up')\ntime.sleep(60)"
    )
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness(warm.template.pid) == [base]
    started = warm.started(nice=4)
    assert os.read(started.out, 2) == b"up"
    child = int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text())
    assert niceness(started.pid) + niceness(child) == [base + 4] * 3
    restore_priority(started.pid)
    assert niceness(started.pid) + niceness(child) == [base] * 3
    os.killpg(started.pid, signal.SIGKILL)
    assert finish(started).status == signal.SIGKILL


# What comes between -----------------------------------------------------------------------------------------------


def test_what_cannot_be_ordered_is_refused(warm):
    born = []
    with pytest.raises(OSError, match="no warm template for this command"):
        warm.template.order([*warm.command, "more"], warm.environment(), [], born.append)
    with pytest.raises(OSError, match="another OMP_NUM_THREADS"):
        warm.template.order(warm.command, {**warm.environment(), "OMP_NUM_THREADS": "7"}, [], born.append)
    without = {name: value for name, value in warm.environment().items() if name != "PYTHONHASHSEED"}
    with pytest.raises(OSError, match="another PYTHONHASHSEED"):
        warm.template.order(warm.command, without, [], born.append)
    with pytest.raises(OSError, match="too many descriptors"):
        warm.template.order(warm.command, warm.environment(), [0] * 251, born.append)
    before = descriptors()
    with pytest.raises(OSError, match="Message too long"):
        warm.template.order(warm.command, warm.environment(RELUME_LONG="x" * (1 << 20)), [], born.append)
    assert descriptors() == before
    assert born == []
    assert warm.template.ready


def test_a_template_that_is_killed_is_started_again_and_not_for_ever(own, monkeypatch):
    monkeypatch.setattr(template_module, "RESTART_S", 0.001)
    monkeypatch.setattr(template_module, "RESTARTS_MAX", 2)
    warm = own()
    for _ in range(2):
        killed = warm.template.pid
        os.kill(killed, signal.SIGKILL)
        warm.until(lambda killed=killed: warm.template.ready and warm.template.pid != killed)
    lowered = template_module.NICE if may_lower() else 0
    assert niceness(warm.template.pid) == [os.getpriority(os.PRIO_PROCESS, 0) + lowered]  # by now they train
    os.kill(warm.template.pid, signal.SIGKILL)
    warm.until(lambda: not warm.template.pid)
    again, gone = "it is started again", "replaced workers start cold from here on"
    assert warm.troubles == [f"the warm template has ended (wait status 9); {then}" for then in (again, again, gone)]
    with pytest.raises(OSError, match="no warm template"):
        warm.template.order(warm.command, warm.environment(), [], print)


def test_one_that_cannot_import_says_why_and_is_let_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").touch()
    before = descriptors()
    warm = Warm(["script.py"], imports=False)
    warm.template._program = LIGHT.replace("()", "('no_such_module',)", 1)
    warm.template.start(warm.loop)
    warm.until(lambda: warm.troubles)
    warm.template.close()
    warm.loop.close()
    text = "the warm template has ended (wait status 256: ModuleNotFoundError: No module named 'no_such_module')"
    assert warm.troubles == [f"{text}; replaced workers start cold from here on"]
    assert descriptors() == before


def test_a_stopped_template_holds_nobody_up(own, monkeypatch):
    monkeypatch.setattr(template_module, "BIRTH_S_MAX", 0.1)
    monkeypatch.setattr(template_module, "RESTART_S", 0.001)
    there = set(children())
    warm = own()
    before = descriptors()
    stopped, born = warm.template.pid, []
    os.kill(stopped, signal.SIGSTOP)
    warm.template.order(warm.command, warm.environment(), [], born.append)
    assert born == []
    warm.until(lambda: born)
    assert born == [None]
    warm.until(lambda: warm.template.ready and warm.template.pid != stopped)
    assert warm.troubles[0] == "the warm template did not make a worker within 0.1 s"
    assert len(descriptors()) == len(before)
    assert set(children()) - there == {warm.template.pid}


def test_an_end_in_the_middle_of_births_leaves_nobody(own):
    before, there = descriptors(), children()
    warm = own()
    born = []
    for _ in range(3):
        warm.template.order(warm.command, warm.environment(), [], born.append)
    time.sleep(0.01)  # some of them are there by now
    warm.template.close()
    warm.loop.close()
    assert born == []
    assert children() == there
    assert descriptors() == before


def test_a_template_without_processes_to_spare_gives_none(own):
    """As under `ulimit -u`; root is not held to that, so the fork itself is made to fail."""
    broken = "import os, errno\ndef fork(): raise BlockingIOError(errno.EAGAIN, 'no more')\nos.fork = fork\n"
    warm = own(program=LIGHT.replace("from relume", broken + "from relume", 1))
    born = []
    warm.template.order(warm.command, warm.environment(), [], born.append)
    warm.until(lambda: born)
    assert born == [None]
    assert warm.troubles == ["no worker came of the warm template (it said nothing)"]
    assert warm.template.ready  # there may be some later


AGENT = """
import os, sys, time
from tests.newborns import Warm
warm = Warm(["script.py"], imports=False).__enter__()
def born(started):
    os.write(1, f"{warm.template.pid} {started.pid}".encode())
    time.sleep(60)
warm.template.order(warm.command, warm.environment(), [], born)
warm.until(lambda: False)
"""


def test_a_template_and_the_unborn_end_with_their_agent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("open('witness', 'w')")
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{SOURCES}"}
    agent = FreshInterpreter().spawn([sys.executable, "-c", AGENT], environment, [])
    said = os.read(agent.out, 100)
    os.kill(agent.pid, signal.SIGKILL)
    assert finish(agent).status == signal.SIGKILL
    template, newborn = map(int, said.split())
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/exe").exists() for pid in (template, newborn)):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert not Path("witness").exists()


# What it is for ---------------------------------------------------------------------------------------------------


def test_what_is_not_plain_python_starts_cold(tmp_path):
    script = tmp_path / "script.py"
    script.touch()
    assert runs(python_command([str(script), "-x"]))
    assert runs(python_command(["-m", "package"]))
    for words in (["-c", "1"], ["-m"], [], [str(tmp_path)], [str(tmp_path / "none.py")]):
        assert not runs(python_command(words)), words
    assert not runs(["/bin/true", "-u", str(script)])
    assert not runs(["forked"])
    template = Template(["forked"], {})
    loop = asyncio.new_event_loop()
    template.start(loop)
    loop.close()
    assert not template.ready
    assert template.pid == 0
    template.close()


def test_a_linked_script_imports_from_where_it_really_is(own, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "script.py").write_text("import beside, sys; print(beside.__file__, sys.path[0], __file__)")
    (tmp_path / "real" / "beside.py").touch()
    (tmp_path / "link.py").symlink_to("real/script.py")
    assert import_path(["link.py"]) == str(tmp_path / "real")
    warm = own(["link.py"])
    assert warm.run() == warm.run_cold()
