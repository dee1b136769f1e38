"""verify.py and charlm.py are found wherever relume is installed from: its wheel, a checkout, an editable install."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from relume.chaos.shipped import shipped

ROOT = Path(__file__).parents[2]
ORIGINALS = {"verify.py": ROOT / "tools" / "verify.py", "charlm.py": ROOT / "examples" / "charlm.py"}
ASK = "from relume.chaos.shipped import shipped; print(shipped('verify.py')); print(shipped('charlm.py'))"

pytestmark = pytest.mark.timeout(300)  # it is done in 20 s, if the registry is awake


def call(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_checkout_has_them_in_their_places():
    assert {name: shipped(name) for name in ORIGINALS} == ORIGINALS


def test_the_wheel_has_copies_of_them(tmp_path):
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    call(*command)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    found = [Path(line) for line in call(sys.executable, "-S", "-c", ASK, PYTHONPATH=str(site)).splitlines()]
    assert found == [site / "relume" / "shipped" / name for name in ORIGINALS]
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in ORIGINALS.values()]


def test_an_editable_install_uses_those_of_the_checkout(tmp_path):
    venv.create(tmp_path, with_pip=True)
    python = str(tmp_path / "bin" / "python")
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", str(ROOT))
    assert [Path(line) for line in call(python, "-c", ASK).splitlines()] == list(ORIGINALS.values())
