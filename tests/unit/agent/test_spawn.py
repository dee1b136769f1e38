"""How workers come to be."""

from __future__ import annotations

import os
import sys

from relume.agent.spawn import FreshInterpreter, environment, python_command


def test_the_environment_is_torchruns_and_then_ours(monkeypatch):
    monkeypatch.setenv("RANK", "77")
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "0")
    made = environment(2, 4, threads=3, port=1234, run={"RELUME_RUN_ID": "one", "RELUME_SHARDS": "8"})
    assert (made["RANK"], made["LOCAL_RANK"], made["WORLD_SIZE"], made["MASTER_PORT"]) == ("2", "2", "4", "1234")
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"], made["RELUME_THREADS"]) == ("3", "3", "3")
    assert (made["MINE"], made["PYTHONUNBUFFERED"], made["RELUME_SHARDS"]) == ("1", "0", "8")
    assert made["TORCHELASTIC_RUN_ID"] == "one"
    assert os.environ["RANK"] == "77"


def test_a_fresh_interpreter_leads_a_group_and_has_just_what_it_is_given():
    kept, other = os.pipe()
    os.set_inheritable(other, True)
    open_here = "[fd for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')]"
    code = f"import os; print(os.getpgrp() == os.getpid(), {open_here})"
    started = FreshInterpreter().spawn([*python_command(["-c", code])], dict(os.environ), [kept])
    with os.fdopen(started.out) as out, os.fdopen(started.err) as err:
        text, trouble = out.read(), err.read()
    _, status = os.waitpid(started.pid, 0)
    os.close(kept)
    os.close(other)
    assert (status, trouble) == (0, "")
    assert text.strip() == f"True [{kept}]"
    assert python_command(["x.py", "1"]) == [sys.executable, "-u", "x.py", "1"]
