"""Imports point down only, and decisions are pure: the contracts stand in pyproject.toml, and they bite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(root):
    # The copy comes before whatever is installed.
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_contracts_hold():
    code, output = lint_imports(ROOT)
    assert code == 0, output


@pytest.mark.parametrize(
    ("added", "contract"),
    [
        ({"errors.py": "import relume.wire"}, "Imports point down only"),
        ({"wire/added.py": "def late():\n    from relume.core import view"}, "Imports point down only"),
        ({"core/added.py": "from relume.reduce import tree"}, "Imports point down only"),
        ({"train/added.py": "import relume.agent"}, "Imports point down only"),
        ({"unplaced.py": ""}, "Imports point down only"),
        ({"core/added.py": "import torch"}, "Decisions are pure"),
        ({"core/added.py": "def late():\n    from time import monotonic"}, "Decisions are pure"),
        ({"core/added.py": "import relume.wire.added", "wire/added.py": "import socket"}, "Decisions are pure"),
        ({"reduce/tree.py": "import asyncio"}, "Decisions are pure"),
    ],
)
def test_the_contracts_bite(copy, added, contract):
    for file, lines in added.items():
        with (copy / "src" / "relume" / file).open("a") as source:
            source.write(f"\n{lines}\n")
    code, output = lint_imports(copy)
    broken = [line for line in output.splitlines() if line.endswith("BROKEN")]
    assert code != 0, output
    assert [line for line in broken if line.startswith(contract)] == broken != [], output


def test_nothing_inside_reaches_for_the_public_names():
    # The package's front imports from every layer: an import of it would be a way around all of the contracts.
    graph = grimp.build_graph("relume", cache_dir=None)
    assert graph.find_modules_that_directly_import("relume") == set()
