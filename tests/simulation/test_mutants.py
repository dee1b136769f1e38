"""Every condition of the core matters to somebody: negate it, and a transcript or a history goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants import MODULES, mutants

ROOT = Path(__file__).parents[2]
SAMPLE = 12


def tried(*arguments, limit_s):
    command = [sys.executable, "-m", "tests.simulation.mutants", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_every_module_that_decides_is_mutated():
    found = mutants()
    assert len(found) > 100
    assert {mutant.module for mutant in found} <= set(MODULES)
    assert {"coordinator", "plan", "view", "ranges"} <= {mutant.module for mutant in found}


def test_a_sample_of_the_core_s_mutants_is_noticed(seed):
    every = len(mutants()) // SAMPLE
    result = tried("--every", str(every), "--offset", str(seed % every), "--histories", "150", limit_s=110)
    assert result["mutants"] >= SAMPLE
    assert result["killed"] >= result["mutants"] - 2, result["survived"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nine_in_ten_of_all_mutants_are_noticed():
    result = tried("--histories", "400", limit_s=1700)
    print(result)
    assert result["share"] >= 0.9, result["survived"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_simulator_alone_notices_most():
    result = tried("--histories", "400", "--no-transcripts", limit_s=1700)
    print(result)
    assert result["share"] >= 0.75, result["survived"]
