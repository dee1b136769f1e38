"""A sweep measures each point once, forgets none, and draws what it has."""

import builtins
import json
import re

import pytest

from relume.bench.plots import plot
from relume.bench.report import as_json
from relume.bench.sweep import Notebook, Point, points, sweep
from relume.errors import ConfigError
from tests.unit.bench.paper import measured


def one(point):
    return as_json(measured(workers=point.workers, size_mb=point.size_mb))


def test_the_points_are_over_sizes_and_over_workers_each_once():
    wanted = points(quick=False)
    assert len(wanted) == len(set(wanted))
    for workers in (2, 4):
        assert {point.size_mb for point in wanted if point.workers == workers} == {1, 4, 16, 64}
    assert sorted(point.workers for point in wanted if point.size_mb == 16) == list(range(1, 9))


def test_a_sweep_that_was_ended_goes_on_where_it_was(tmp_path):
    wanted = [Point(1, 1.0), Point(2, 1.0), Point(3, 1.0)]

    def dies(point):
        if point == wanted[1]:
            raise KeyboardInterrupt
        return one(point)

    with pytest.raises(KeyboardInterrupt):
        list(sweep(Notebook(tmp_path, go_on=False), wanted, dies))
    again = Notebook(tmp_path, go_on=True)
    assert [point for point, _ in sweep(again, wanted, one)] == wanted[1:]
    assert len(json.loads((tmp_path / "sweep.json").read_text())["points"]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_without_resume_it_begins_anew(tmp_path):
    list(sweep(Notebook(tmp_path, go_on=False), [Point(1, 1.0)], one))
    assert not Notebook(tmp_path, go_on=False).has(Point(1, 1.0))


def test_a_file_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "sweep.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"sweep\.json is no sweep's file"):
        Notebook(tmp_path, go_on=True)


def test_the_plots_name_their_axes_with_units_and_their_lines(tmp_path):
    found = [one(point) for point in points(quick=False)]
    files = plot(found, tmp_path)
    assert [path.name for path in files] == ["step-by-size.svg", "step-by-workers.svg"]
    for path, axis in zip(files, ("gradient (MiB of float32)", "workers on one host"), strict=True):
        texts = re.findall(r"<text [^>]*>([^<]+)</text>", path.read_text())
        for wanted in (axis, "ms per step", "relume ÷ DDP", "relume", "DDP (best setting)", "no exchange"):
            assert wanted in texts, (path.name, wanted, texts)
    before = files[0].read_bytes()
    plot(found, tmp_path)  # again, over the files, to the same bytes
    assert files[0].read_bytes() == before


def test_without_matplotlib_it_says_what_to_install(monkeypatch, tmp_path):
    imports = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imports(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'relume\[bench\]'"):
        plot([], tmp_path)
