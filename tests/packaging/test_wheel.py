"""What people install: the wheel builds from the sdist, and works in an empty environment without touching torch."""

import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/relume/version.py").read_text(), re.MULTILINE)[1]

pytestmark = pytest.mark.timeout(300)  # it is done in 30 s, if the registry is awake


def call(*command):
    # Without PYTHONPATH: the sources beside us would do the work of what is being tested.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    folder = f"relume-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {"relume", folder}
    assert {"relume/__init__.py", "relume/py.typed", f"{folder}/licenses/LICENSE"} <= set(names)
    sources = ROOT / "src"
    expected = {str(path.relative_to(sources)) for path in sources.rglob("*.py")}
    assert expected <= set(names)


def test_installing_it_never_asks_for_torch(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"relume-{VERSION}.dist-info/METADATA"))
    assert metadata["Version"] == VERSION
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    for_torch = [requirement for requirement in needed if requirement.name == "torch"]
    assert for_torch, "the extra is there for those who want it"
    assert all(not requirement.marker.evaluate({"extra": ""}) for requirement in for_torch)
    assert all(requirement.marker.evaluate({"extra": "torch"}) for requirement in for_torch)


def test_it_runs_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path, with_pip=True)
    binaries = tmp_path / "bin"
    call(str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    assert VERSION in call(str(binaries / "relume"), "--version")
    assert VERSION in call(str(binaries / "python"), "-m", "relume", "--version")
    assert "torch" not in call(str(binaries / "python"), "-m", "pip", "list")
