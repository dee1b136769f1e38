"""The tools around the code: the changelog gathers, and make refuses a Python that cannot work."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_fragments_make_a_changelog():
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--date", "2000-01-01"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "## 9.9.9 (2000-01-01)" in done.stdout


def test_every_fragment_has_a_known_kind():
    kinds = (".added.md", ".changed.md", ".fixed.md", ".removed.md")
    strays = [path.name for path in ROOT.glob("changelog.d/[!.]*") if not path.name.endswith(kinds)]
    assert strays == []


def test_make_says_which_python_it_needs(tmp_path):
    old = tmp_path / "python-of-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.18" && exit\nexit 1\n')
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "test", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "relume needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.18" in done.stderr
    assert not (tmp_path / ".venv").exists()
