"""Which run a person means, and what they are told when there is no such run."""

import pytest

from relume.errors import ConfigError
from relume.observe.find import find_run, known_runs
from tests.unit.observe.paper import events_of_a_run, write_run


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "relume-runs"
    for name in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
        write_run(root, events_of_a_run(), name)
    (root / "latest").symlink_to("20260102-000000-bbbb")
    (root / "notes").mkdir()
    return root


def test_a_run_is_found_by_its_id_by_its_folder_and_as_the_latest(root, monkeypatch):
    first, second = root / "20260101-000000-aaaa", root / "20260102-000000-bbbb"
    assert find_run("20260101-000000-aaaa", root) == first
    assert find_run(str(first), root) == first
    assert find_run("latest", root) == second
    monkeypatch.chdir(root.parent)
    assert find_run("relume-runs/20260101-000000-aaaa", root) == first


def test_an_unknown_run_is_answered_with_those_that_there_are(root):
    with pytest.raises(ConfigError, match=r"no run 'gone' in .*20260102-000000-bbbb, 20260101-000000-aaaa"):
        find_run("gone", root)
    assert known_runs(root) == ["20260102-000000-bbbb", "20260101-000000-aaaa"]


def test_where_no_run_was_ever_started_the_answer_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="Start one with `relume run`"):
        find_run("latest", tmp_path / "relume-runs")


def test_a_folder_that_is_no_run_is_named(root):
    with pytest.raises(ConfigError, match=r"notes is no folder of a run: there is no events\.jsonl"):
        find_run("notes", root)


def test_a_latest_that_points_nowhere_counts_as_none(root):
    (root / "latest").unlink()
    (root / "latest").symlink_to("20260103-000000-cccc")
    with pytest.raises(ConfigError, match="no run 'latest'"):
        find_run("latest", root)
