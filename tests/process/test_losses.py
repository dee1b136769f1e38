"""Whatever ends a worker, the others go on to the same bits, and the incident says what it was.

Kills at exact points of a step are in `test_exactness.py`; here are the other ways to be lost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from relume.wire.events import Remarked, ScriptRaised, WorkerLost
from tests import processes
from tests.fleet import run_fleet
from tests.training import at, check, script


def kill_self(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(30)


def events(result, kind):
    return [event for event in result.seen if isinstance(event, kind)]


# Killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doomed", [(0,), (2,), (1, 2), (0, 1, 3)], ids=str)
def test_workers_killed_from_outside_change_nothing(doomed, tmp_path):
    """All at once, wherever each of them is just then; a survivor shoots, as it knows when training is under way."""
    survivor = min({0, 1, 2, 3} - set(doomed))

    def start(rank):
        (tmp_path / f"pid-{rank}").write_text(str(os.getpid()))

    def shoot(rank, step):
        if (rank, step.number) == (survivor, 3) and not (tmp_path / "shot").exists():
            (tmp_path / "shot").touch()
            for each in doomed:
                os.kill(int((tmp_path / f"pid-{each}").read_text()), signal.SIGKILL)

    result = run_fleet(script(tmp_path, total=9, start=start, inside=shoot), workers=4, shards=4, tmp_path=tmp_path)
    check(tmp_path, result, lost=dict.fromkeys(doomed, "signal"), total=9)
    for incident in result.incidents:
        assert incident.wait_status == signal.SIGKILL
        assert incident.pid == int((tmp_path / f"pid-{incident.rank}").read_text())
        assert 0 < incident.lost_ns <= incident.fenced_ns <= incident.installed_ns


@pytest.mark.parametrize("doomed", [(0,), (1, 2), (0, 1, 2)], ids=str)
def test_workers_killed_before_the_first_step_are_not_missed(doomed, tmp_path):
    def start(rank):
        if rank in doomed:
            kill_self()

    result = run_fleet(script(tmp_path, start=start), workers=4, tmp_path=tmp_path)
    check(tmp_path, result, lost=dict.fromkeys(doomed, "signal"))


def test_a_worker_killed_while_it_waits_for_the_others_to_join_is_not_missed(tmp_path):
    def start(rank):
        if rank == 2:
            time.sleep(0.5)

    traps = [{"rank": 0, "phase": "joining", "nth": 0, "action": "kill"}]
    result = run_fleet(script(tmp_path, start=start), workers=3, tmp_path=tmp_path, traps=traps)
    check(tmp_path, result, lost={0: "signal"})


def test_the_end_of_a_worker_that_is_not_main_changes_nothing_after_the_last_step(tmp_path):
    result = run_fleet(
        script(tmp_path, tail=lambda rank, run: kill_self() if rank == 1 else None), workers=3, tmp_path=tmp_path
    )
    check(tmp_path, result, lost={1: "signal"})


def test_a_main_that_is_lost_after_the_last_step_is_told(tmp_path):
    """What the script does then, such as saving, is not done by anybody else: not yet."""
    result = run_fleet(
        script(tmp_path, tail=lambda rank, run: kill_self() if run.is_main else None), workers=2, tmp_path=tmp_path
    )
    assert (result.exit_code, result.outcome) == (8, "tail_lost")
    assert "worker 0 (main) was lost" in result.reason


def test_a_run_that_loses_everybody_ends_with_their_causes(tmp_path):
    result = run_fleet(
        script(tmp_path, inside=lambda rank, step: kill_self() if step.number == 2 else None),
        workers=3,
        tmp_path=tmp_path,
    )
    assert (result.exit_code, result.outcome) == (6, "all_lost")
    assert "killed by signal 9 (SIGKILL) (3x)" in result.reason
    assert len(result.incidents) == 3


def test_a_run_below_its_minimum_ends_and_says_so(tmp_path):
    result = run_fleet(script(tmp_path, inside=at(1, 2, kill_self)), workers=2, min_workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (7, "too_few")
    assert "1 worker is left and --min-workers is 2" in result.reason


def test_a_segmentation_fault_is_a_loss_like_any_other(tmp_path):
    result = run_fleet(script(tmp_path, inside=at(1, 2, lambda: ctypes.string_at(0))), workers=2, tmp_path=tmp_path)
    check(tmp_path, result, lost={1: "signal"})
    assert "SIGSEGV" in result.incidents[0].text


# Stopped and hanging ----------------------------------------------------------------------------------------------


def test_a_stopped_worker_is_fenced(tmp_path):
    result = run_fleet(
        script(tmp_path, inside=at(1, 2, lambda: kill_self(signal.SIGSTOP))),
        workers=2,
        tmp_path=tmp_path,
        hang_timeout_s=2.0,
    )
    check(tmp_path, result, lost={1: "stopped"})
    assert "has been stopped for" in result.incidents[0].text


def test_a_worker_that_is_stopped_only_for_a_moment_is_not_lost(tmp_path):
    def nap():
        pid = os.getpid()
        subprocess.Popen([sys.executable, "-S", "-c", f"import os,time; time.sleep(1); os.kill({pid}, 18)"])
        os.kill(pid, signal.SIGSTOP)

    result = run_fleet(script(tmp_path, inside=at(1, 2, nap)), workers=2, tmp_path=tmp_path, hang_timeout_s=4.0)
    check(tmp_path, result, lost={})


def sleep_in_my_own_code():
    time.sleep(60)


def spin_in_my_own_code():
    while True:
        pass


def hold_the_interpreter_in_c():
    read, _ = os.pipe()
    ctypes.PyDLL(None).read(read, ctypes.create_string_buffer(1), 1)  # PyDLL keeps the GIL: no other thread runs


@pytest.mark.parametrize("hang", [sleep_in_my_own_code, spin_in_my_own_code, hold_the_interpreter_in_c])
def test_a_hang_in_the_script_is_an_incident_with_the_main_threads_stack(hang, tmp_path):
    """Scenario 2: the background thread of the culprit goes on all the while, and is not what is watched."""
    result = run_fleet(script(tmp_path, inside=at(1, 2, hang)), workers=3, tmp_path=tmp_path, hang_timeout_s=1.5)
    check(tmp_path, result, lost={1: "hung"})
    incident = result.incidents[0]
    assert (incident.phase, incident.step) == ("forward", 2)
    assert "made no progress" in incident.text
    assert f"in {hang.__name__}" in incident.evidence["stack"]
    assert f"in {hang.__name__}" in incident.text
    assert f"in {hang.__name__}" in (result.run_dir / "worker-1.log").read_text()


def test_a_loss_does_not_wait_for_a_worker_that_cannot_answer(tmp_path):
    """One holds its interpreter in C when another one is killed: it promises nothing, and is lost too (scenario 8)."""

    def hook(rank, step):
        if step.number == 2 and rank == 0:
            hold_the_interpreter_in_c()
        if step.number == 2 and rank == 1:
            time.sleep(0.3)
            kill_self()

    result = run_fleet(script(tmp_path, inside=hook), workers=4, tmp_path=tmp_path, hang_timeout_s=4.0)
    check(tmp_path, result, lost={0: "silent", 1: "signal"})


def test_a_worker_that_never_comes_to_its_first_step_is_not_waited_for_for_ever(tmp_path):
    result = run_fleet(
        script(tmp_path, start=lambda rank: time.sleep(60) if rank == 1 else None),
        workers=3,
        tmp_path=tmp_path,
        hang_timeout_s=1.2,
    )
    check(tmp_path, result, lost={1: "silent"})
    assert "did not reach run.steps() within" in result.incidents[0].text


def test_a_hang_between_the_steps_is_seen_too(tmp_path):
    result = run_fleet(
        script(tmp_path, after=at(0, 2, sleep_in_my_own_code)), workers=2, tmp_path=tmp_path, hang_timeout_s=1.5
    )
    check(tmp_path, result, lost={0: "hung"})


def test_time_is_free_in_an_aside_and_after_the_last_step(tmp_path):
    import relume.train.run as run_module

    def evaluate():
        with run_module._current.aside("evaluation"):
            time.sleep(1.8)

    result = run_fleet(
        script(tmp_path, after=at(0, 2, evaluate), tail=lambda rank, run: time.sleep(1.8)),
        workers=2,
        tmp_path=tmp_path,
        hang_timeout_s=1.2,
    )
    check(tmp_path, result, lost={})


# The script fails -------------------------------------------------------------------------------------------------


def a_mistake_of_mine():
    raise ValueError("a mistake of mine")


@pytest.mark.parametrize("place", ["start", "before", "inside", "after"])
def test_a_worker_whose_script_raises_is_lost_and_its_traceback_told(place, tmp_path):
    hooks = {place: at(1, 2, a_mistake_of_mine)}
    if place == "start":
        hooks = {place: lambda rank: a_mistake_of_mine() if rank == 1 else None}
    result = run_fleet(script(tmp_path, **hooks), workers=3, tmp_path=tmp_path)
    cause = "exit_code" if place == "start" else "raised"  # before relume.init there is nobody to ask
    check(tmp_path, result, lost={1: cause})
    assert "a mistake of mine" in result.incidents[0].text
    assert "in a_mistake_of_mine" in (result.run_dir / "worker-1.log").read_text()
    if place != "start":
        told = events(result, ScriptRaised)
        assert [event.rank for event in told] == [1]
        assert "in a_mistake_of_mine" in told[0].traceback
        assert __file__ in told[0].where
        assert __file__ in result.incidents[0].text


def test_an_excepthook_of_the_users_own_hides_nothing(tmp_path):
    """Many a library puts one over the one that was there."""

    def fail():
        sys.excepthook = lambda *_: print("how pretty", file=sys.stderr)
        a_mistake_of_mine()

    result = run_fleet(script(tmp_path, after=at(1, 2, fail)), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={1: "raised"})
    assert "how pretty" in (result.run_dir / "worker-1.log").read_text()
    assert "in a_mistake_of_mine" in events(result, ScriptRaised)[0].traceback


def test_a_script_that_asks_who_is_main_while_it_fails_is_not_kept_waiting(tmp_path):
    """A `finally` that runs on the way out of the loop is no end of the loop."""
    inner = script(tmp_path, after=at(0, 2, a_mistake_of_mine))

    def body(rank):
        try:
            inner(rank)
        finally:
            import relume.train.run as run_module

            print("main" if run_module._current.is_main else "not main", flush=True)
            time.sleep(1.5 if rank == 0 else 0)

    result = run_fleet(body, workers=2, tmp_path=tmp_path)
    check(tmp_path, result, lost={0: "raised"})
    assert "a mistake of mine" in result.incidents[0].text


def test_a_script_that_raises_everywhere_ends_the_run_with_its_error(tmp_path):
    def fail(rank, step):
        if step.number == 2:
            a_mistake_of_mine()

    result = run_fleet(script(tmp_path, after=fail), workers=3, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert result.reason.startswith(
        "the script failed in all 3 workers: its script raised ValueError: a mistake of mine"
    )


def test_a_script_that_raises_everywhere_with_other_words_is_one_error_all_the_same(tmp_path):
    def fail(rank, step):
        if step.number == 2:
            raise ValueError(f"worker {rank} does not like it")

    result = run_fleet(script(tmp_path, after=fail), workers=3, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert result.reason.startswith("the script failed in all 3 workers: its script raised ValueError: worker ")


def test_a_shard_that_nobody_can_compute_ends_the_run_with_its_error(tmp_path):
    """It goes from heir to heir, and each of them raises."""

    class Rows:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5:
                a_mistake_of_mine()
            return [float(index)] * 4

    def body(rank):
        import torch

        import relume

        run = relume.init()
        model = torch.nn.Linear(4, 1)
        run.protect(model=model)
        for step in run.steps(relume.Shards(Rows(), global_batch_size=8, shards=4), total=3):
            for batch in step:
                model(torch.stack(batch, 1).float()).sum().backward()

    result = run_fleet(body, workers=3, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert "a mistake of mine" in result.reason


def test_a_name_that_only_the_inner_loop_sets_is_explained(tmp_path):
    """Three workers for two shards: one of them never runs the inner loop's body."""

    def body(rank):
        import torch

        import relume

        run = relume.init()
        model = torch.nn.Linear(4, 1)
        run.protect(model=model)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=8, shards=2), total=3):
            for batch in step:
                loss = model(batch).sum()
                loss.backward()
            loss.detach()

    result = run_fleet(body, workers=3, tmp_path=tmp_path)
    assert result.exit_code == 0
    (incident,) = result.incidents
    assert incident.cause == "raised"
    assert "'loss'" in incident.text
    assert "step.mean('x')" in (result.run_dir / f"worker-{incident.rank}.log").read_text()


# It leaves --------------------------------------------------------------------------------------------------------


def test_exit_codes_of_one_worker_are_told(tmp_path):
    result = run_fleet(script(tmp_path, inside=at(1, 2, lambda: os._exit(3))), workers=2, tmp_path=tmp_path)
    check(tmp_path, result, lost={1: "exit_code"})
    assert "exit code 3" in result.incidents[0].text


@pytest.mark.parametrize("code", [0, 3])
def test_one_worker_that_exits_between_steps_has_left_early(code, tmp_path):
    result = run_fleet(script(tmp_path, after=at(1, 2, lambda: sys.exit(code))), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={1: "left_early"})
    assert "before step 3" in result.incidents[0].text


def test_one_worker_that_vanishes_quietly_has_left_early(tmp_path):
    result = run_fleet(script(tmp_path, after=at(1, 2, lambda: os._exit(0))), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={1: "left_early"})


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_worker_that_breaks_out_of_the_loop_has_left_early(place, rank, tmp_path):
    def stop(who, step):
        return (who, step.number) == (rank, 3)

    result = run_fleet(script(tmp_path, **{place: stop}), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={rank: "left_early"})


def test_one_worker_that_breaks_and_goes_on_with_something_else_has_left_early(tmp_path):
    """It asks the run for nothing afterwards, so that nothing tells but its progress."""

    def body(rank):
        import torch

        import relume

        run = relume.init()
        model = torch.nn.Linear(4, 1)
        run.protect(model=model)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=8, shards=4), total=8):
            for batch in step:
                model(batch).sum().backward()
            if rank == 1 and step.number == 3:
                break
        if rank == 1:
            time.sleep(60)

    result = run_fleet(body, workers=2, tmp_path=tmp_path)
    assert result.exit_code == 0
    assert [(incident.rank, incident.cause) for incident in result.incidents] == [(1, "left_early")]


@pytest.mark.parametrize("place", ["before", "after"])
def test_all_may_leave_early_in_the_same_step(place, tmp_path):
    """Slowly, one after the other, so that some have left while others have not come there yet."""

    def stop(rank, step):
        if step.number == 3:
            time.sleep(0.3 * rank)
        return step.number == 3

    result = run_fleet(script(tmp_path, **{place: stop}), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={}, total=3 if place == "before" else 4)


def test_all_may_exit_in_the_same_step(tmp_path):
    result = run_fleet(
        script(tmp_path, after=lambda rank, step: sys.exit(0) if step.number == 3 else None),
        workers=3,
        tmp_path=tmp_path,
    )
    assert (result.exit_code, result.incidents) == (0, [])


def test_a_step_that_is_left_in_the_middle_is_a_mistake_and_no_end(tmp_path):
    def leave(rank, step):
        if step.number == 2:
            sys.exit(0)

    result = run_fleet(script(tmp_path, inside=leave), workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert "step 2 was left before every shard was in" in result.reason


def test_a_worker_that_leaves_a_step_in_the_middle_is_lost_alone(tmp_path):
    result = run_fleet(script(tmp_path, inside=at(0, 2, lambda: sys.exit(3))), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={0: "raised"})
    assert "step 2 was left before every shard was in" in result.incidents[0].text


# What a worker has started ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "stopped", "raised"])
def test_what_a_worker_started_dies_with_it(end, tmp_path):
    """Its data loaders, and a program of the user's own."""
    ends = {"killed": kill_self, "stopped": lambda: kill_self(signal.SIGSTOP), "raised": a_mistake_of_mine}

    def start_something_and_end():
        subprocess.Popen(["sleep", "60"])
        children = [p.pid for p in processes.table().values() if p.parent == os.getpid()]
        (tmp_path / "children").write_text(" ".join(map(str, children)))
        ends[end]()

    gone = []

    def watch(event):
        if isinstance(event, WorkerLost):
            time.sleep(1.0)
            table = processes.table()
            pids = map(int, (tmp_path / "children").read_text().split())
            gone.extend(pid not in table or table[pid].state in {"Z", "X"} for pid in pids)

    result = run_fleet(
        script(tmp_path, inside=at(1, 2, start_something_and_end), num_workers=2),
        workers=2,
        tmp_path=tmp_path,
        hang_timeout_s=2.0,
        watcher=watch,
    )
    check(tmp_path, result, lost={1: {"killed": "signal"}.get(end, end)})
    assert gone == [True] * 3  # two loader processes and `sleep`


# Not a loss at all ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_remarked_and_changes_nothing(tmp_path):
    def body(rank):
        import torch

        import relume

        run = relume.init()
        model = torch.nn.Linear(4, 1)
        run.protect(model=model)
        for step in run.steps(relume.Shards(torch.ones(8, 4), global_batch_size=8, shards=4), total=3):
            for batch in step:
                model(batch).sum().backward()
                step.log(loss=float("nan") if step.number == 1 else 1.0, other=2.0)

    result = run_fleet(body, workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.incidents) == (0, [])
    (remark,) = events(result, Remarked)
    assert (remark.topic, remark.step, remark.text) == ("nonfinite", 1, "loss = nan")


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_may_fork(code, tmp_path):
    """The child is no worker: it says nothing to the agent, waits for nobody, and ends as it likes."""

    def fork():
        pid = os.fork()
        if pid == 0:
            sys.exit(code)  # unwinds the loop over the steps, in the child
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == code

    def fork_and_raise():
        pid = os.fork()
        if pid == 0:
            a_mistake_of_mine()
        os.waitpid(pid, 0)

    forks = {0: fork, 3: fork_and_raise if code else fork}

    def hook(rank, step):
        if rank == 1 and step.number in forks:
            forks[step.number]()

    result = run_fleet(script(tmp_path, inside=hook), workers=2, tmp_path=tmp_path)
    check(tmp_path, result, lost={})


def test_an_aside_on_main_alone_before_the_first_step_changes_no_bit(tmp_path):
    """Buffers too: the workers are compared before they begin."""

    def body(rank):
        import torch

        import relume

        run = relume.init()
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        run.protect(model=model)
        if run.is_main:
            with run.aside("sanity check"):
                model(torch.rand(5, 4)).sum().backward()
                model.eval()
        assert all(parameter.grad is None for parameter in model.parameters())
        assert model.training
        for step in run.steps(relume.Shards(torch.rand(8, 4), global_batch_size=8, shards=4), total=3):
            for batch in step:
                model(batch).sum().backward()

    result = run_fleet(body, workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.incidents) == (0, []), result.output


def test_values_of_the_users_own_are_part_of_every_digest(tmp_path):
    import relume.train.run as run_module

    def digests(name, value):
        def keep(rank, step):
            run_module._current.vars.best = [value, {"step": step.number}]

        folder = tmp_path / name
        folder.mkdir()
        records = {"RELUME_RECORD": str(folder / "records")}
        result = run_fleet(script(folder, after=keep), workers=2, tmp_path=folder, environment=records)
        check(folder, result, lost={})
        lines = [(folder / "records" / f"record-{rank}.jsonl").read_text().splitlines() for rank in range(2)]
        first, second = ([json.loads(line)["digest"] for line in each] for each in lines)
        assert first == second
        return first

    one, again, other = digests("one", 1.0), digests("again", 1.0), digests("other", 1.5)
    assert one == again
    assert not set(one) & set(other)


def test_an_aside_on_main_alone_changes_no_bit(tmp_path):
    import torch

    import relume.train.run as run_module

    def evaluate(rank, step):
        if step.is_main:
            with run_module._current.aside("evaluation"):
                model = run_module._current.protected.objects["model"]
                model.eval()
                torch.rand(7)
                model(torch.rand(2, 4)).sum().backward()

    result = run_fleet(script(tmp_path, after=evaluate), workers=3, tmp_path=tmp_path)
    check(tmp_path, result, lost={})
