"""`relume simulate`: what it prints, and with which code it exits."""

from __future__ import annotations

import json

import pytest

from relume.cli import simulate
from relume.cli.main import main
from relume.core.coordinator import Coordinator
from relume.core.events import Counted


def test_one_json_object_tells_it_all(capsys):
    assert main(["simulate", "--seeds", "30", "--first-seed", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["histories"] == 30
    assert told["first_seed"] == 7
    assert told["violations"] == 0
    assert set(told["coverage"]) == {"rows", "faults", "pairs"}
    assert sum(told["outcomes"].values()) == 30


def test_people_get_a_few_lines_and_incomplete_coverage_fails_if_asked(capsys):
    assert main(["simulate", "--seeds", "3", "--workers", "2", "--require-coverage"]) == 1
    out = capsys.readouterr().out
    assert "3 histories (seeds 0 to 2)" in out
    assert "never met: " in out


def test_it_stops_after_the_seconds_given(capsys):
    assert main(["simulate", "--seeds", "100000", "--seconds", "0.2", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["histories"] < 100000


def test_a_violation_is_told_with_its_seed_and_its_end_and_fails(capsys, monkeypatch):
    monkeypatch.setattr(Coordinator, "handle", _blind(Coordinator.handle))
    assert main(["simulate", "--seeds", "40", "--json"]) == 1
    out, err = capsys.readouterr()
    seed = json.loads(out)["findings"][0]["seed"]
    assert f"seed {seed}: " in err
    assert f"again: relume simulate --trace {seed}" in err
    assert main(["simulate", "--trace", str(seed)]) == 1
    assert f"seed {seed}: " in capsys.readouterr().out


def _blind(handle):
    def blind(self, event, now):
        return [] if isinstance(event, Counted) else handle(self, event, now)

    return blind


def test_one_history_from_end_to_end(capsys):
    assert main(["simulate", "--trace", "3"]) == 0
    out = capsys.readouterr().out
    assert "-> InstallView" in out
    assert "seed 3: " in out


@pytest.mark.parametrize("flag", ["--seeds=0", "--first-seed=-1", "--workers=0", "--seconds=0", "--seconds=nan"])
def test_nonsense_is_refused(flag, capsys):
    assert main(["simulate", flag]) == 2
    assert capsys.readouterr().err.startswith("relume simulate: ")


def test_the_parser_knows_its_command():
    assert simulate.parser().prog == "relume simulate"
