"""The live view: everything fits, whatever the terminal; and where there is none, each thing is said once."""

import io
import math

import pytest
from rich.console import Console

from relume.observe.live import follow
from relume.observe.marks import Strips
from relume.observe.observer import Observer
from relume.observe.plain import Lines
from relume.observe.screen import frame
from tests.unit.observe.paper import (
    events_of_a_comeback,
    events_of_a_run,
    loss_of,
    reply_with,
    snapshot_of,
    story_of,
    text_of,
    worker,
    write_run,
)

SIZES = [(80, 23), (120, 39), (60, 15)]


def draw(snapshot, width, height, *, looks=1, encoding="utf-8"):
    strips = Strips(ascii_only=encoding != "utf-8")
    for _ in range(looks):
        strips.look(snapshot)
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=file, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(frame(snapshot, strips, width, height))
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


@pytest.fixture
def under_way(tmp_path):
    workers = [worker(0), worker(1, phase="wait", shard=-1), worker(2, "lost"), worker(3, phase="load", shard=6)]
    return snapshot_of(tmp_path, story_of(events_of_a_run(ended=False)), reply_with(*workers))


def test_one_row_for_each_worker_with_what_it_does(under_way):
    text = draw(under_way, 80, 23, looks=30)
    rows = [line.strip("│ ") for line in text if line[2:3].isdecimal()][:4]
    assert [row.split()[:2] for row in rows] == [["0", "alive"], ["1", "alive"], ["2", "lost"], ["3", "alive"]]
    assert rows[0].endswith("▅▅▅ backward  shard 1  main")
    assert rows[1].endswith("··· wait")
    assert rows[2].endswith("backward of step 12, shard 4")
    assert rows[3].endswith("▁▁▁ load      shard 6")
    text = "\n".join(text)
    assert "step 24 of 60" in text
    assert "310 ms/step  loss 2.4100  0:34" in text
    assert "12    2       killed (SIGKILL)  backward, shard 4  0 and 1    12 ms" in text
    assert "worker 0 prints: step   20  loss 2.4410" in text


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("workers", [1, 4, 32])
@pytest.mark.parametrize("losses", [0, 3, 30])
def test_it_always_fits(tmp_path, width, height, workers, losses):
    incidents = [loss_of(min(n, workers - 1), step=n, phase="between", shard=4095) for n in range(losses)]
    story = story_of(events_of_a_run(workers=workers, incidents=incidents, ended=False))
    reply = reply_with(*[worker(rank, shard=4095, idle_s=999.0) for rank in range(workers)])
    text = draw(snapshot_of(tmp_path, story, reply, says="x" * 300), width, height, looks=300)
    assert len(text) <= height, "\n".join(text)
    assert {len(line) for line in text} == {width}
    if losses:
        assert any(line.startswith(f"│ {losses - 1}") for line in text), "the newest incident is always shown"


def test_strips_keep_the_same_time_and_a_lost_worker_goes_dark(tmp_path):
    strips = Strips(ascii_only=False)
    story = story_of(events_of_a_run(ended=False))
    for states in (("starting", "starting"), ("in", "in"), ("in", "lost"), ("in", "lost")):
        strips.look(
            snapshot_of(tmp_path, story, reply_with(*[worker(rank, state) for rank, state in enumerate(states)]))
        )
    assert [strips.strip(rank, 5).plain for rank in (0, 1, 2)] == ["  ▅▅▅", "  ▅✗ ", "     "]


def test_a_strip_shows_the_way_back(tmp_path):
    strips = Strips(ascii_only=False)
    story = story_of(events_of_a_run(ended=False))
    ways = [("in", 0), ("lost", 0), ("lost", 0), ("starting", 1), ("replaying", 1), ("spare", 1), ("in", 1), ("in", 2)]
    for state, life in ways:
        strips.look(snapshot_of(tmp_path, story, reply_with(worker(0, state, life=life))))
    assert strips.strip(0, len(ways)).plain == "▅✗  »○▅✗", "the last one was lost and replaced between two looks"


@pytest.fixture
def coming_back(tmp_path):
    workers = [worker(0, "leaving"), worker(1), worker(2, "replaying", life=1, step=21), worker(3, "spare", step=26)]
    reply = reply_with(
        *workers, worker(4, "starting"), target=4, spares=1, restarts=1, mirror_step=24, mirror_bytes=7**8
    )
    return snapshot_of(tmp_path, story_of(events_of_a_comeback(ended=False)[:-2], at_s=0.0), reply)


def test_those_who_come_and_go_say_so(coming_back):
    text = draw(coming_back, 80, 23, looks=3)
    rows = [line.strip("│ ") for line in text[3:] if line[2:3].isdecimal()][:5]
    assert [row.split()[1] for row in rows] == ["leaving", "alive", "replaying", "spare", "starting"]
    assert rows[0].endswith("▅▅▅ backward  shard 1  main")
    assert rows[2].endswith("»»» step 21")
    assert rows[3].endswith("○○○ level, step 26")
    assert text[2].strip("│ ") == "2 of 4 workers, 1 of 1 spare, 1 restart  mirror: step 24  disk: step 30"
    assert "whole in" in "\n".join(text)


def test_a_wide_terminal_is_told_everything(coming_back):
    text = draw(coming_back, 120, 30)
    assert "mirror: step 24 (5.8 MB)" in text[2]
    (header,) = [line for line in text if "what happened" in line]
    assert all(name in header for name in ("redone by", "handled in", "whole in"))
    assert any("pid 202" in line for line in text)


def test_a_run_that_waits_for_somebody_to_come_back_says_so(tmp_path):
    story = story_of(events_of_a_run(ended=False))
    reply = reply_with(worker(0, "lost"), worker(1, "starting", life=1), state="paused", target=2)
    text = draw(snapshot_of(tmp_path, story, reply), 80, 23)
    assert text[2].strip("│ ") == "too few workers: waiting for others to come back  0 of 2 workers"


def test_a_worker_that_left_is_no_loss(tmp_path):
    text = draw(snapshot_of(tmp_path, story_of(events_of_a_comeback()), steps=60), 80, 23)
    rows = [line.strip("│ ").split()[:2] for line in text[3:] if line[2:3].isdecimal()][:5]
    assert rows == [["0", "left"], ["1", "done"], ["2", "done"], ["3", "done"], ["4", "done"]]
    live = reply_with(worker(0, "ended"), *[worker(rank) for rank in (1, 2, 3, 4)])
    text = draw(snapshot_of(tmp_path, story_of(events_of_a_comeback(ended=False)), live), 80, 23)
    assert "│ 0 left " in "\n".join(text)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_comeback_fits_too(coming_back, width, height):
    text = draw(coming_back, width, height, looks=300)
    assert len(text) <= height, "\n".join(text)
    assert {len(line) for line in text} == {width}


def test_while_workers_start_it_says_what_takes_the_time(tmp_path):
    story = story_of(events_of_a_run(ended=False, incidents=[])[:5])
    reply = reply_with(worker(0), *[worker(r, "starting") for r in (1, 2, 3)], state="forming", incidents=0)
    text = "\n".join(draw(snapshot_of(tmp_path, story, reply), 80, 23))
    assert "starting: 1 of 4 workers ready, 0:34" in text
    assert "no worker has died so far" in text


def test_the_last_frame_says_how_it_ended(tmp_path):
    snapshot = snapshot_of(tmp_path, story_of(events_of_a_run()), steps=60, loss=math.nan, step_s=None)
    text = "\n".join(draw(snapshot, 80, 23))
    assert "every step is done" in text
    assert "step 60 of 60" in text
    assert text.count(" done   ") == 3  # three workers were not killed


def test_a_terminal_that_knows_only_ascii_gets_ascii(under_way):
    text = draw(under_way, 80, 23, encoding="ascii")
    assert "b backward  shard 1  main" in "\n".join(text)


def test_lines_say_each_thing_once(tmp_path):
    lines, story = Lines(every_s=5), story_of(events_of_a_run(ended=False, incidents=[]))
    reply = reply_with(*[worker(rank, step=0) for rank in range(4)], incidents=0, uptime_s=12.0)
    at = {"steps": 0, "now_s": 100.0}
    assert lines.look(snapshot_of(tmp_path, story, reply, **at)) == [
        " 0:12  run 20260101-000000-abcd: 4 workers, train.py --steps 60",
        " 0:12  training begins: 60 steps, 8 shards each, workers 0, 1, 2 and 3",
    ]
    assert lines.look(snapshot_of(tmp_path, story, reply, **at)) == []
    story.take(story_line(loss_of(2)))
    (line,) = lines.look(snapshot_of(tmp_path, story, reply, **at))
    assert "worker 2 killed (SIGKILL) in backward of step 12, shard 4" in line
    assert lines.look(snapshot_of(tmp_path, story, reply, steps=20, now_s=104.0)) == []
    assert lines.look(snapshot_of(tmp_path, story, reply, steps=21, now_s=105.0)) == [
        " 0:12  step 21 of 60, loss 2.4100, 310 ms a step"
    ]
    story.take(story_line(events_of_a_run()[-1]))
    assert lines.look(snapshot_of(tmp_path, story, steps=60, now_s=106.0, loss=math.nan, step_s=None)) == [
        " 0:12  step 60 of 60",
        " 0:12  every step is done [completed]",
    ]


def story_line(event):
    import msgspec

    from relume.wire.events import Line

    return msgspec.json.decode(text_of(event), type=Line)


def test_lines_tell_of_a_comeback_in_its_order(tmp_path):
    events = events_of_a_comeback()
    (lines, story), told = (Lines(), story_of(events[:7])), []
    for event in events[7:]:  # as they come
        story.take(story_line(event))
        look = snapshot_of(tmp_path, story, reply_with(worker(0, step=0)), steps=0)
        told += [line.split("  ", 1)[1] for line in lines.look(look)]
    words = ["killed", "mirrored", "forked", "level", "is in", "asked for 5", "started", "checkpoint of step 30"]
    words += ["checkpoint of step 40 failed", "level", "is in", "left by plan", "every step is done"]
    for line, word in zip(told[2:], words, strict=True):
        assert word in line


@pytest.mark.parametrize("terminal", [True, False])
def test_following_ends_with_the_run_or_when_told(tmp_path, terminal):
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=terminal, color_system=None)
    folder = write_run(tmp_path, events_of_a_run())
    observer = Observer(folder, asking=lambda *_: None)
    assert follow(observer, console, period_s=0.01).story.ended is not None
    assert "every step is done" in file.getvalue()
    live = Observer(write_run(tmp_path, events_of_a_run(ended=False), "live"), asking=lambda *_: reply_with(worker(0)))
    looks = iter([False, False, True])
    assert follow(live, console, stop=lambda: next(looks), period_s=0.01).story.ended is None
