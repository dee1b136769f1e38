"""What the README says of the surface is what the code does."""

import re
from pathlib import Path

from relume.agent.settings import EXIT_CODES
from relume.cli.main import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_table_of_exit_codes_is_the_code_s():
    table = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", README, re.MULTILINE)}
    assert table == dict(EXIT_CODES)


def test_every_command_is_told():
    for command in COMMANDS:
        assert f"`relume {command}" in README, command
