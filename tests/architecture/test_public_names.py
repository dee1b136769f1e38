"""The surface of the package is what it says it is, and costs nothing until it is used."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(program):
    """Run `program` in an interpreter where no other test has imported anything yet, and return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100, cwd=ROOT / "src"
    ).stdout


def test_the_exported_names_are_those_of_all():
    found = json.loads(
        python(
            "import json, types, relume\n"
            "public = [name for name in dir(relume) if not name.startswith('_')]\n"
            "public = [name for name in public if not isinstance(getattr(relume, name), types.ModuleType)]\n"
            "print(json.dumps({'public': public, 'all': list(relume.__all__)}))\n"
        )
    )
    declared = found["all"]
    public = set(found["public"]) - {"annotations"}  # from __future__
    assert len(declared) == len(set(declared))
    assert {name for name in declared if not name.startswith("__")} == public
    assert {"Shards", "init"} <= set(declared)


def test_every_name_of_all_can_be_imported():
    python("from relume import *\nimport relume\nassert set(relume.__all__) <= set(globals()), relume.__all__")


def test_the_command_line_starts_without_torch():
    # torch takes two seconds of CPU to import: `relume --version` and the agent must not pay them, nor need it at all.
    assert python("import sys, relume.cli.main; print('torch' in sys.modules)").strip() == "False"


def test_the_judges_import_nothing_of_what_they_judge():
    judges = [ROOT / "tools" / "verify.py", *ROOT.glob("tests/oracle*.py")]
    assert len(judges) > 1, "tools/verify.py and tests/oracle.py give the verdicts"
    for judge in judges:
        for node in ast.walk(ast.parse(judge.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "relume"], f"{judge}:{node.lineno}"
