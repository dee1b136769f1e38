"""When a checkpoint is due, what is told of trouble, how it ends. The scribe is a puppet; `process/` has real ones."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os

import pytest

from relume.agent import keeper as keeper_module
from relume.agent.keeper import Keeper
from relume.agent.upkeep import RETRY_S_MAX, RETRY_S_MIN, SLOW_S, Upkeep
from relume.errors import ConfigError
from relume.state import errands, folder
from relume.wire.events import CheckpointFailed, CheckpointWritten

# When: pure ---------------------------------------------------------------------------------------------------------


def written_at(upkeep, mirrors, seconds_each=1.0):
    """The steps that are written, if mirrors of these steps appear one after the other and all goes well at once."""
    steps, now = [], 0.0
    for newest in mirrors:
        now += seconds_each
        if upkeep.due(now, newest):
            upkeep.begin(now)
            upkeep.succeed(newest)
            steps.append(newest)
    return steps


def test_steps_are_kept_to_without_drift():
    """Mirrors are of every eighth step: the first at or after each hundred is written."""
    assert written_at(Upkeep(100, None, 0.0), range(0, 420, 8)) == [104, 200, 304, 400]
    assert written_at(Upkeep(8, None, 0.0), range(0, 40, 8)) == [8, 16, 24, 32]
    assert written_at(Upkeep(1, None, 0.0), [0, 0, 8, 8, 8, 16]) == [8, 16]


def test_seconds_are_kept_to_and_nothing_is_written_twice():
    assert written_at(Upkeep(None, 10.0, 0.0), range(1, 36)) == [10, 20, 30]
    assert written_at(Upkeep(None, 10.0, 0.0), [5] * 40) == [5]
    assert written_at(Upkeep(None, 10.0, 0.0), [0] * 40) == []


def test_a_run_that_goes_on_counts_from_where_it_did():
    upkeep = Upkeep(100, None, 0.0)
    upkeep.resumed(304)
    assert written_at(upkeep, range(304, 420, 8)) == [400]


def test_one_at_a_time():
    upkeep = Upkeep(8, None, 0.0)
    assert upkeep.due(1.0, 8)
    upkeep.begin(1.0)
    assert not upkeep.due(100.0, 80)


def test_trouble_is_told_once_and_tried_again_ever_more_seldom():
    upkeep, now, tries, told = Upkeep(8, None, 0.0), 0.0, [], []
    while now < 1000:
        now += 0.5
        if upkeep.due(now, 8):
            tries.append(now)
            upkeep.begin(now)
            told.append(upkeep.fail("full", now))
    assert told.count(True) == 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps[0] == RETRY_S_MIN
    assert gaps == sorted(gaps)
    assert gaps[-1] == RETRY_S_MAX
    assert upkeep.fail("read-only", now)  # another sort is news
    assert upkeep.succeed(8)  # and so is the end of it
    assert upkeep.fail("full", now)
    assert not upkeep.may_start(now)
    assert upkeep.may_start(now + RETRY_S_MIN)


def test_only_the_first_success_is_news():
    upkeep = Upkeep(8, None, 0.0)
    assert [upkeep.succeed(8), upkeep.succeed(16)] == [True, False]
    resumed = Upkeep(8, None, 0.0)
    resumed.resumed(8)
    assert resumed.succeed(16)


def test_a_slow_disk_is_told_once_per_trouble():
    upkeep = Upkeep(8, None, 0.0)
    upkeep.begin(1.0)
    assert not upkeep.slow(SLOW_S)
    assert upkeep.slow(1.0 + SLOW_S)
    assert not upkeep.slow(2 * SLOW_S)
    upkeep.succeed(8)
    assert not upkeep.slow(3 * SLOW_S)


# With a puppet for a scribe ------------------------------------------------------------------------------------------


class Puppet:
    """Does what `answers` say: a reply, words for its death, or None for silence."""

    answers: list = []  # noqa: RUF012 - set anew for each test
    lives: list = []  # noqa: RUF012

    def __init__(self, arguments, descriptors, on_reply, on_end):
        self.arguments, self.descriptors, self.on_reply, self.on_end = arguments, descriptors, on_reply, on_end
        self.asked, self.gone, self.killed, self.dismissed, self.pid = [], False, False, False, 4711
        Puppet.lives.append(self)
        asyncio.get_running_loop().call_soon(on_reply, errands.Ready())

    def ask(self, request):
        self.asked.append(request)
        answer = Puppet.answers.pop(0) if Puppet.answers else None
        if isinstance(answer, str):
            asyncio.get_running_loop().call_soon(self._end, answer)
        elif answer is not None:
            asyncio.get_running_loop().call_soon(self.on_reply, answer)
        return True

    def dismiss(self):
        self.dismissed = True
        self._end("")

    def kill(self):
        if not self.gone:
            self.killed = True
            self._end("it was killed by SIGKILL")

    async def until_gone(self, limit_s):
        return self.gone

    def _end(self, cause):
        if not self.gone:
            self.gone = True
            self.on_end(cause)


class Stage:
    """A keeper, what it emitted and what it said."""

    def __init__(self, directory, answers=(), **options):
        self.events, self.said, self.newest = [], [], 8
        Puppet.answers, Puppet.lives = list(answers), []
        arguments = {
            "every_steps": 8,
            "every_s": None,
            "keep": 3,
            "mirror": "control=3 mirrors=4,5",
            "descriptors": [3, 4, 5],
        }
        self.keeper = Keeper(
            directory,
            **{**arguments, **options},
            newest=lambda: self.newest,
            facts=lambda: {"run": "me"},
            emit=self.events.append,
            say=self.said.append,
        )


@pytest.fixture(autouse=True)
def _puppets(monkeypatch):
    monkeypatch.setattr(keeper_module, "Scribe", Puppet)
    monkeypatch.setattr(keeper_module, "POLL_S", 0.001)


def saved(step):
    return errands.Saved(step, f"DIR/step-{step:08}", 3 << 20, 0.5)


def run(body):
    return asyncio.run(body())


async def until(what):
    async with asyncio.timeout(5):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_what_is_written_is_told_once_and_recorded_each_time(tmp_path):
    async def body():
        stage = Stage(tmp_path, [saved(8), saved(16), saved(24)])
        stage.keeper.start()
        await until(lambda: stage.keeper.written == 8)
        stage.newest = 16
        await until(lambda: stage.keeper.written == 16)
        assert stage.said == ["checkpoint of step 8 is in DIR/step-00000008 (3.0 MiB, 0.5 s)"]
        stage.newest = 24
        assert await stage.keeper.finish(5.0) == 24
        assert [event.step for event in stage.events] == [8, 16, 24]
        assert all(isinstance(event, CheckpointWritten) for event in stage.events)
        assert stage.said[1:] == ["checkpoint of step 24 is in DIR/step-00000024 (3.0 MiB, 0.5 s)"]
        (life,) = Puppet.lives
        assert life.arguments == [str(tmp_path), "3", "control=3", "mirrors=4,5"]
        assert life.descriptors == [3, 4, 5]
        assert life.asked == [errands.Save({"run": "me"})] * 3
        assert (life.dismissed, life.killed) == (True, False)
        assert await stage.keeper.finish(5.0) == 24  # a second time: nothing
        assert len(Puppet.lives) == 1

    run(body)


def test_a_full_disk_is_told_once_and_training_is_not_mentioned_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MIN", 0.002)
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MAX", 0.002)
    full = errands.Failed(16, "full", "the disk of DIR is full")

    async def body():
        stage = Stage(tmp_path, [saved(8), full, full, full, saved(16), full])
        stage.keeper.start()
        await until(lambda: stage.keeper.written == 8)
        stage.newest = 16
        await until(lambda: stage.keeper.written == 16)
        told = "no checkpoint was written: the disk of DIR is full; the one of step 8 stands; training goes on"
        again = "checkpoint of step 16 is in DIR/step-00000016 (3.0 MiB, 0.5 s)"
        assert stage.said[1:] == [told, again]
        failed = [event for event in stage.events if isinstance(event, CheckpointFailed)]
        path = str(tmp_path / "step-00000016")
        assert failed == [CheckpointFailed(16, path, "the disk of DIR is full")] * 3
        stage.newest = 24
        assert await stage.keeper.finish(5.0) == 16
        assert stage.said[-1] == "no checkpoint was written: the disk of DIR is full; the one of step 16 stands"

    run(body)


def test_a_scribe_that_is_killed_is_replaced_and_the_checkpoint_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MIN", 0.01)

    async def body():
        stage = Stage(tmp_path, ["it was killed by SIGKILL", saved(8)])
        stage.keeper.start()
        await until(lambda: stage.keeper.written == 8)
        gone = "the process that writes checkpoints is gone: it was killed by SIGKILL"
        assert stage.said[0] == f"no checkpoint was written: {gone}; training goes on"
        assert len(Puppet.lives) == 2
        await stage.keeper.finish(5.0)
        assert all(life.gone for life in Puppet.lives)

    run(body)


def test_a_disk_that_hangs_at_the_end_is_waited_for_no_longer_than_was_said(tmp_path):
    async def body():
        stage = Stage(tmp_path, [None])
        began = asyncio.get_running_loop().time()
        assert await stage.keeper.finish(0.05) == 0
        assert asyncio.get_running_loop().time() - began < 5
        assert stage.said == [
            "no checkpoint was written: the last one was not written in time: the disk is too slow or hangs"
        ]
        assert Puppet.lives[0].killed

    run(body)


def test_a_second_interrupt_cuts_the_last_one_short(tmp_path):
    async def body():
        stage = Stage(tmp_path, [None])
        asyncio.get_running_loop().call_later(0.02, stage.keeper.cut_short)
        async with asyncio.timeout(5):
            assert await stage.keeper.finish(60.0) == 0
        assert stage.said == ["no checkpoint was written: the last one was not written in time: it was cut short"]
        assert Puppet.lives[0].killed

    run(body)


def test_one_that_is_under_way_at_the_end_is_waited_for_and_then_the_newest_is_written(tmp_path):
    async def body():
        stage = Stage(tmp_path, [None, saved(16)])
        stage.keeper.start()
        await until(lambda: Puppet.lives and Puppet.lives[0].asked)
        stage.newest = 16
        asyncio.get_running_loop().call_later(0.02, Puppet.lives[0].on_reply, saved(8))
        assert await stage.keeper.finish(5.0) == 16
        assert [event.step for event in stage.events] == [8, 16]

    run(body)


def test_without_a_mirror_there_is_nothing_to_write(tmp_path):
    async def body():
        stage = Stage(tmp_path)
        stage.newest = 0
        stage.keeper.start()
        await until(lambda: Puppet.lives)
        assert await stage.keeper.finish(5.0) == 0
        assert (stage.said, stage.events) == ([], [])
        assert Puppet.lives[0].asked == []

    run(body)


def test_a_scribe_that_cannot_be_started_costs_no_training(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(keeper_module, "Scribe", refuse)
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MIN", 0.002)

    async def body():
        stage = Stage(tmp_path)
        stage.keeper.start()
        await asyncio.sleep(0.05)
        (told,) = stage.said
        assert "cannot be started (Resource temporarily unavailable)" in told
        assert "training goes on" in told
        assert await stage.keeper.finish(5.0) == 0

    run(body)


def test_state_that_is_not_worth_keeping_is_not_written(tmp_path):
    async def body():
        stage = Stage(tmp_path, [None])
        stage.keeper.start()
        await until(lambda: Puppet.lives and Puppet.lives[0].asked)
        assert await stage.keeper.finish(5.0, write=False) == 0
        assert len(Puppet.lives[0].asked) == 1
        assert Puppet.lives[0].killed  # what was under way is not worth keeping either

    run(body)


# Going on from a checkpoint -------------------------------------------------------------------------------------------


def test_resuming_tells_what_was_passed_over(tmp_path):
    passed = errands.PassedOver(f"{tmp_path}/step-00000048", "skeleton is missing")
    answer = errands.Loaded(40, "DIR/step-00000040", {"run": "before"}, (passed,))

    async def body():
        stage = Stage(tmp_path, [answer, saved(56)])
        resumed = await stage.keeper.resume()
        assert (resumed.step, resumed.path, resumed.facts) == (40, "DIR/step-00000040", {"run": "before"})
        assert resumed.passed_over == (passed,)
        assert stage.events == [CheckpointFailed(48, passed.path, "skeleton is missing")]
        assert stage.said == [f"the checkpoint {passed.path} cannot be trusted and is passed over: skeleton is missing"]
        stage.newest = 40
        stage.keeper.start()
        stage.newest = 56
        await until(lambda: stage.keeper.written == 56)
        assert len(Puppet.lives) == 1  # the same scribe goes on
        await stage.keeper.finish(5.0)

    run(body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (errands.NothingLoaded(()), ["none is there"]),
        (
            errands.NothingLoaded(
                (errands.PassedOver("D/step-8", "cut short"), errands.PassedOver("D/step-4", "gone"))
            ),
            ["\n  D/step-8: cut short\n  D/step-4: gone\n", "relume checkpoint verify", "without --resume"],
        ),
        (errands.Failed(0, "mirror", "the mirror needs 9 MiB more"), ["could be read: the mirror needs 9 MiB more"]),
        ("it was killed by SIGKILL", ["is gone: it was killed by SIGKILL"]),
    ],
)
def test_resuming_from_nothing_is_refused_with_each_reason(tmp_path, answer, words):
    async def body():
        stage = Stage(tmp_path, [answer])
        with pytest.raises(ConfigError) as error:
            await stage.keeper.resume()
        for text in words:
            assert text in str(error.value)
        assert Puppet.lives[0].gone

    run(body)


def test_the_folder_is_looked_at_before_anything_starts(tmp_path):
    where = tmp_path / "deep" / "checkpoints"
    fresh = Stage(where).keeper
    with pytest.raises(ConfigError, match=r"no checkpoint in .*deep/checkpoints.*start without --resume"):
        fresh.check(resume=True)
    assert not where.exists()
    fresh.check(resume=False)
    assert where.is_dir()
    (where / folder.name(40)).mkdir()
    fresh.check(resume=True)
    with pytest.raises(ConfigError, match=r"holds checkpoints already, the newest of step 40: --resume goes on"):
        fresh.check(resume=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used \(.*choose another --checkpoint-dir"):
        Stage(tmp_path / "file").keeper.check(resume=False)
