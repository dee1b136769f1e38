"""What is printed follows from what was measured, and from nothing else."""

import json
import re

import pytest
from rich.console import Console

from relume.bench.ask import block_ms, raw_parts_ms
from relume.bench.orders import ALONE, DDP, RAW, RELUME, Done
from relume.bench.report import as_json
from relume.bench.table import as_tables
from tests.unit.bench.paper import MS, measured


def text(said):
    console = Console(width=160, highlight=False)
    with console.capture() as captured:
        console.print(as_tables(said))
    return captured.get()


def test_the_object_says_everything_once_and_is_json():
    said = json.loads(json.dumps(as_json(measured()), allow_nan=False))
    assert set(said) == {
        "v", "ok", "terms", "machine", "relume_over_ddp", "interval_ms", "median_ms", "pairs", "all_ms",
        "mirrors_per_block", "ddp_variants_ms", "ddp_variant", "calibration", "all_reduce", "own_time_us", "idle",
        "memory", "arena_mib", "parameters_close",
    }  # fmt: skip
    assert said["v"] == 1
    assert said["ok"] is True
    assert said["terms"]["pairs"] == len(said["pairs"]) == 20
    assert {len(pair) for pair in said["pairs"]} == {2}
    assert set(said["machine"]) == {"cpus", "load_1m", "load_1m_after", "torch", "relume", "python"}


def test_the_ratio_is_the_median_of_the_pairs_ratios():
    made = measured()
    made.ms[RELUME][0] = 200.0  # one wild block
    said = as_json(made)
    assert said["relume_over_ddp"]["median"] == 0.8
    assert said["relume_over_ddp"]["low"] <= 0.8 <= said["relume_over_ddp"]["high"] < 0.81
    assert said["pairs"][0] == [200.0, 100.0]


def test_the_engine_s_own_time_is_what_neither_the_script_nor_the_bytes_take():
    own = as_json(measured())["own_time_us"]
    assert own["median"] == pytest.approx(1e3 * (MS[RELUME] - MS[ALONE] - MS[RAW]), rel=0.01)
    assert own["budget"] == 316.0
    assert own["formula"].startswith("relume - alone - raw")


def test_the_exchange_alone_stands_beside_gloo_the_bare_kernel_and_a_copy():
    said = as_json(measured())["all_reduce"]
    assert said["relume_ms"]["median"] == pytest.approx(30.0, rel=0.01)
    ratios = [said[f"relume_over_{name}"]["median"] for name in ("gloo", "raw", "memory_pass")]
    assert ratios == pytest.approx([0.5, 1.2, 6.0], rel=0.01)
    assert sum(said["raw_parts_ms"].values()) == 25.0


def test_what_was_measured_less_often_is_paired_with_its_own_round():
    made = measured(beside_every=4)
    made.ms[RELUME] = [1000.0 if number % 4 else 80.0 for number in range(20)]
    said = as_json(made)
    assert said["terms"]["beside_every"] == 4
    assert len(said["all_ms"][RAW]) == 5
    assert len(said["all_ms"][DDP]) == 20
    assert said["all_reduce"]["relume_ms"]["median"] == pytest.approx(30.0, rel=0.02)


def test_sides_that_are_not_close_fail_and_say_so():
    said = as_json(measured(of_way=0.5))
    assert said["ok"] is False
    assert said["parameters_close"]["ok"] is False
    assert "THE WORK WAS NOT EQUAL" in text(said)
    broken = as_json(measured(of_way=float("nan")))
    assert broken["ok"] is False
    assert json.loads(json.dumps(broken, allow_nan=False))["parameters_close"]["of_way"] is None


def test_the_table_begins_with_the_ratio_and_shows_every_side():
    shown = text(as_json(measured()))
    assert re.match(
        r"A step of relume takes 0\.800 of the time of one of DDP  \(95 %: 0\.800 to 0\.800; 20 pairs\)", shown
    )
    for words in (
        "64 MiB of gradient in 16 tensors, 4 workers, 17 samples each",
        "the best of 2: static_graph",
        "the same loop, nothing exchanged",
        "its budget is 0.316",
        "0.50 times as long as dist.all_reduce",
        "copy in 5.00, sum 12.00, copy out 8.00",
        "results 768.0, slots 512.0, mirror 128.0, other 0.5",
        "the work was equal",
        "machine: 2 CPUs",
    ):
        assert words in shown, words


def test_a_block_is_timed_from_the_slowest_to_the_slowest():
    answers = [Done(1_000_000, 9_000_000), Done(3_000_000, 8_000_000)]
    assert block_ms(answers, steps=3) == 2.0


def test_the_parts_of_a_raw_round_add_up_to_it():
    first = Done(parts=((0, 2_000_000, 5_000_000, 8_000_000), (8_000_000, 10_000_000, 13_000_000, 16_000_000)))
    second = Done(parts=((1_000_000, 3_000_000, 6_000_000, 7_000_000), (7_000_000, 9_000_000, 15_000_000, 16_000_000)))
    parts = raw_parts_ms([first, second])
    assert parts == (2.0, 4.0, 1.5)
    assert sum(parts) == 7.5  # the slowest of each began at 1 and at 8, and was done at 8 and at 16
