"""What every run is compared with."""

import pytest

from tests.unit.tools.records import STEPS, Folder, line, state


@pytest.fixture
def reference(tmp_path):
    folder = Folder(tmp_path / "reference")
    folder.lines[0] = [line(0, step, [0], [1, 0], "plain") for step in range(STEPS)]
    folder.finals[0] = {"step": STEPS - 1, "state": state()}
    return folder
