"""A warm worker and a fresh interpreter, given the same script: the script cannot tell which it runs in."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.newborns import warm_in

FACTS = (Path(__file__).parents[1] / "warm_facts.py").read_text()

COMPILED = r"""
import pickle, torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i

if __name__ == "__main__":
    f = torch.compile(lambda x: torch.relu(x) * 2 + 1, backend="eager", fullgraph=True)
    print(f(torch.tensor([-1.0, 2.0])).tolist())
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
"""

CHANCE = r"""
import multiprocessing, random, numpy, torch
print(random.random(), numpy.random.rand(), torch.rand(1).item(), multiprocessing.current_process().authkey.hex())
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """One template with everything imported."""
    with warm_in(tmp_path_factory.mktemp("warm"), ["script.py", "--flag", "two words"]) as warm:
        yield warm


def test_a_script_cannot_tell_which_it_runs_in(warm):
    Path("script.py").write_text(FACTS)
    extra = os.memfd_create("relume-test")
    try:
        cold, hot = warm.run_cold([extra], RELUME_MINE="\udce9"), warm.run([extra], RELUME_MINE="\udce9")
    finally:
        os.close(extra)
    assert (cold.err, hot.err, cold.status, hot.status) == ("", "", 0, 0)
    expected, facts = json.loads(cold.out), json.loads(hot.out)
    assert len(expected) == 10
    for name, fact in expected.items():
        assert facts[name] == fact, name
    assert list(facts["about_descriptors"]) == ["0", "1", "2", str(extra)]


def test_what_is_left_to_chance_is_not_shared(warm):
    Path("script.py").write_text(CHANCE)
    one, other = warm.run().out.split(), warm.run().out.split()
    assert len(one) == len(other) == 4
    assert not set(one) & set(other)


def test_loaders_and_compiled_functions_work(warm):
    Path("script.py").write_text(COMPILED)
    ended = warm.run()
    assert (ended.status, ended.err) == (0, "")
    squares = "[[0, 1, 4, 9], [16, 25, 36, 49]]"
    assert ended.out == f"[1.0, 5.0]\nfork {squares}\nspawn {squares}\n"


def test_a_warm_worker_can_be_killed_like_any(warm):
    Path("script.py").write_text("import os, signal\nprint('here')\nos.kill(0, signal.SIGKILL)\n")
    ended = warm.run()
    assert (ended.status, ended.out) == (signal.SIGKILL, "here\n")
    assert warm.template.ready
