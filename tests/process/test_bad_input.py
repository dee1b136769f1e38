"""What bad input gets: an error that says what happened and what to do, and a run that ends cleanly."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from torch import nn

import relume
from relume.agent import arena
from relume.errors import (
    BatchError,
    ConfigError,
    DataError,
    GradientError,
    IncompatibleTorch,
    ProtectError,
    StepError,
    UsageError,
)
from relume.torch_check import check_torch
from tests import exact
from tests.fleet import Forked, run_fleet
from tests.training import check, script

ROWS = torch.arange(32.0).view(8, 4) / 32


def outcome(body):
    """Run `body` in a child; return what it raised ("" if nothing) as `Type: message`, and what it said on stderr."""

    def work(path):
        with (path.parent / "stderr").open("w", buffering=1) as stream:
            sys.stderr = stream
            try:
                body()
                said = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test asks for
                said = f"{type(error).__name__}: {error}"
        torch.save({"raised": said, "stderr": (path.parent / "stderr").read_text()}, path)

    trace = exact.in_child(work)
    return trace["raised"], trace["stderr"]


def refuses(body, kind, *words):
    """`body` raises an error of ours of just this kind, with these words in it."""
    raised, _ = outcome(body)
    assert raised.startswith(f"{kind.__name__}: "), raised
    for word in words:
        assert word in raised
    return raised


def parts(*, model=None, optimizer=None, rows=ROWS, **options):
    """A run with something protected, and data."""
    run = relume.init(seed=1)
    model = nn.Linear(4, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    run.protect(model=model, optimizer=optimizer)
    return run, model, optimizer, relume.Shards(rows, **{"global_batch_size": 4, "shards": 2, **options})


def train(inside=None, after=None, before=None, total=3, **options):
    """Train with hooks that are given (step, model, optimizer, batch)."""
    run, model, optimizer, data = parts(**options)
    for step in run.steps(data, total=total):
        if before:
            before(step, model, optimizer)
        for batch in step:
            if inside is None:
                model(batch).sum().backward()
            elif inside(step, model, optimizer, batch) == "break":
                break
        if after:
            after(step, model, optimizer)
        optimizer.step()
    return model


# Setting up -------------------------------------------------------------------------------------------------------


def test_a_seed_is_a_number():
    for seed in (-1, 1.5, "a", True):
        refuses(lambda seed=seed: relume.init(seed=seed), ConfigError, repr(seed), "whole number from 0")


def test_threads_are_a_number():
    refuses(lambda: relume.init(threads=0), ConfigError, "at least 1")


@pytest.mark.parametrize("name", ["RELUME_SHARDS", "RELUME_THREADS"])
def test_nonsense_in_the_environment_is_told(name, monkeypatch):
    monkeypatch.setenv(name, "many")
    refuses(lambda: train(shards=None), ConfigError, f"{name}='many'")


def test_nothing_protected():
    def body():
        run = relume.init()
        run.steps(relume.Shards(ROWS, global_batch_size=4), total=1)

    refuses(body, ProtectError, "call run.protect(model=model", "before run.steps()")


def test_protect_after_steps():
    def body():
        run, _, _, data = parts()
        run.steps(data, total=1)
        run.protect(late=nn.Linear(1, 1))

    refuses(body, ProtectError, "protect(late) was called after run.steps()", "before the first step")


def test_an_optimizer_with_a_parameter_that_is_not_protected():
    def body():
        other = nn.Linear(3, 5)
        model = nn.Linear(4, 1)
        train(model=model, optimizer=torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))

    refuses(
        body, ProtectError, "'optimizer'", "(group 0, number 2, shape (5, 3))", "protect the module that holds it too"
    )


def test_one_name_for_two_things():
    def body():
        run, *_ = parts()
        run.protect(model=nn.Linear(1, 1))

    refuses(body, ProtectError, "'model' is protected already")


def test_something_without_a_state():
    refuses(lambda: relume.init().protect(best=0.5), ProtectError, "float without state_dict", "run.vars.best = ...")


def test_a_model_without_anything_to_train():
    refuses(lambda: train(model=nn.Linear(4, 1).requires_grad_(False)), ProtectError, "requires a gradient")


def test_a_lazy_module():
    refuses(lambda: relume.init().protect(model=nn.LazyLinear(2)), ProtectError, "model.weight", "one forward pass")


def test_sync_batch_norm():
    model = nn.Sequential(nn.Linear(4, 2), nn.SyncBatchNorm(2))
    refuses(lambda: relume.init().protect(net=model), ProtectError, "'net.1' is SyncBatchNorm", "Use BatchNorm")


def test_the_users_own_ddp():
    def body():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
        inside = nn.Sequential(wrapped)
        try:
            relume.init().protect(net=wrapped)
        except ProtectError as error:
            assert "ddp.module" in str(error)  # noqa: PT017 - there is one more to come
        relume.init().protect(net=inside)

    refuses(body, ProtectError, "'net.0' is wrapped in DistributedDataParallel", "drop the wrapper")


def test_lbfgs():
    def body():
        model = nn.Linear(4, 1)
        relume.init().protect(model=model, optimizer=torch.optim.LBFGS(model.parameters()))

    refuses(body, ProtectError, "LBFGS", "closure", "Use an optimizer that steps on gradients")


def test_steps_want_shards_and_a_number():
    def steps(data=None, **count):
        run, _, _, shards = parts()
        run.steps(shards if data is None else data, **count)

    refuses(lambda: steps(data=[1, 2], total=1), ConfigError, "relume.Shards(dataset, ...), not a list")
    refuses(steps, ConfigError, "give one of the two")
    refuses(lambda: steps(total=1, epochs=1), ConfigError, "give one of the two")
    refuses(lambda: steps(total=-1), ConfigError, "-1 steps")
    refuses(lambda: steps(total=1.5), ConfigError, "1.5 steps")


def test_steps_are_called_once():
    def body():
        run, _, _, data = parts()
        run.steps(data, total=1)
        run.steps(data, total=1)

    refuses(body, StepError, "called twice", "relume.init() again")


def test_a_loop_is_begun_once():
    def body():
        run, model, _, data = parts()
        steps = run.steps(data, total=4)
        for step in steps:
            for batch in step:
                model(batch).sum().backward()
            break
        for _ in steps:
            pass

    refuses(body, StepError, "begun twice", "run.aside")


def test_values_that_cannot_be_protected():
    def body():
        relume.init().vars.best = object()

    refuses(body, ProtectError, "run.vars.best = a object", "run.protect")
    raised, _ = outcome(lambda: relume.init().vars.best)
    assert raised == "AttributeError: run.vars.best was never set; set so far: nothing yet"


# In a step --------------------------------------------------------------------------------------------------------


def test_a_break_out_of_the_inner_loop():
    def stop(step, model, optimizer, batch):
        model(batch).sum().backward()
        return "break"

    def no_update(step, model, optimizer):
        optimizer.step = lambda: None

    refuses(lambda: train(inside=stop), StepError, "step 0 was left before every shard was in", "no break")
    refuses(
        lambda: train(inside=stop, after=no_update), StepError, "step 0 was left before every shard was in", "no break"
    )


def test_a_step_that_is_not_iterated():
    def body():
        run, _, _, data = parts()
        for _ in run.steps(data, total=2):
            pass

    refuses(body, StepError, "step 0 was left before every shard was in")


def test_a_return_out_of_the_inner_loop_is_told():
    """Nothing can be raised there any more."""

    def body():
        run, model, _, data = parts()

        def loop():
            for step in run.steps(data, total=2):
                for batch in step:
                    model(batch).sum().backward()
                    return

        loop()
        assert run.is_main

    raised, said = outcome(body)
    assert raised == ""
    assert "relume: step 0 was left before every shard was in" in said


def test_a_step_is_iterated_once():
    def again(step, model, optimizer):
        for _ in step:
            pass

    refuses(lambda: train(after=again), StepError, "step 0 was iterated twice")


def test_a_shard_without_backward():
    refuses(
        lambda: train(inside=lambda step, model, optimizer, batch: model(batch)),
        StepError,
        "shard 0 of step 0 brought no gradient",
        "step.skip()",
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_backward_outside_of_the_inner_loop(place):
    def backward(step, model, optimizer):
        model(ROWS[:2]).sum().backward()

    raised = refuses(lambda: train(**{place: backward}), GradientError, "outside the inner loop", "run.aside")
    assert "model.weight" in raised or "model.bias" in raised


def test_step_functions_outside_of_the_inner_loop():
    refuses(
        lambda: train(after=lambda step, model, optimizer: step.backward(model(ROWS[:2]).sum())),
        GradientError,
        "step.backward was called outside the inner loop",
    )
    refuses(lambda: train(after=lambda step, *_: step.skip()), StepError, "step.skip() was called outside")
    refuses(lambda: train(after=lambda step, *_: step.log(a=1)), StepError, "step.log() was called outside")
    refuses(lambda: train(before=lambda step, *_: step.mean("a")), StepError, "call it after the inner loop")


def test_a_mean_that_nobody_logged():
    def inside(step, model, optimizer, batch):
        model(batch).sum().backward()
        step.log(loss=1.0, accuracy=0.5)

    def after(step, model, optimizer):
        step.mean("los")

    refuses(lambda: train(inside=inside, after=after), StepError, "'los'", "logged: accuracy, loss")
    refuses(lambda: train(after=after), StepError, "logged: nothing")


def test_more_logged_than_fits():
    def inside(step, model, optimizer, batch):
        model(batch).sum().backward()
        step.log(**{f"a name that is long {i}": 1.0 for i in range(200)})

    refuses(lambda: train(inside=inside), StepError, "one shard logged", "Log fewer names")


def test_weights():
    def weighing(weight):
        def inside(step, model, optimizer, batch):
            step.backward(model(batch).mean(), weight=weight)

        return inside

    for weight in (0, -1.0, float("nan"), float("inf")):
        refuses(lambda weight=weight: train(inside=weighing(weight)), GradientError, "positive number", "step.skip()")


def test_two_kinds_of_backward_in_one_shard():
    def inside(step, model, optimizer, batch):
        model(batch).mean().backward()
        step.backward(model(batch).mean(), weight=2)

    refuses(lambda: train(inside=inside), GradientError, "mixes loss.backward() with step.backward")


def test_an_update_in_the_inner_loop():
    def inside(step, model, optimizer, batch):
        model(batch).sum().backward()
        optimizer.step()

    refuses(lambda: train(inside=inside), StepError, "inside the inner loop", "Move it below the loop")


def test_an_update_with_a_closure():
    refuses(
        lambda: train(after=lambda step, model, optimizer: optimizer.step(lambda: model(ROWS).sum())),
        StepError,
        "optimizer.step(closure)",
        "without a closure",
    )


def test_a_sparse_gradient():
    rows = torch.arange(8).view(8, 1)
    refuses(
        lambda: train(model=nn.Embedding(8, 2, sparse=True), rows=rows),
        GradientError,
        "model.weight is sparse",
        "sparse=False",
    )


def test_a_parameter_that_comes_later():
    def grow(step, model, optimizer):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]})

    refuses(lambda: train(after=grow), ProtectError, "shape (7,)", "after run.steps() began", "add_param_group")


def test_a_batch_that_is_built_otherwise():
    class Rows:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"x": ROWS[index], **({"y": 1} if index == 6 else {})}

    def collate(items):
        return {key: torch.stack([torch.as_tensor(i.get(key, 0)) for i in items]) for key in items[-1]}

    def inside(step, model, optimizer, batch):
        model(batch["x"]).sum().backward()

    refuses(
        lambda: train(rows=Rows(), inside=inside, collate_fn=collate, shuffle=False, shards=4),
        BatchError,
        "shard 2 of step 1",
        "batch has ['y'], and had none",
    )


def test_data_that_makes_no_step():
    refuses(lambda: train(rows=ROWS[:0]), DataError, "empty")


# Other versions, other runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["2.12.1+cpu", "1.13.0", None])
def test_a_torch_that_is_too_old_or_missing(found, monkeypatch):
    def version(name):
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(IncompatibleTorch, match=r"needs torch 2\.13 or newer") as caught:
        check_torch()
    assert (found or "none is installed") in str(caught.value)


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0a0+git123", "2.15.0+cu130", "3.0"])
def test_a_torch_that_is_new_enough(found, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: found)
    check_torch()


def test_a_cell_that_is_run_again_gives_the_same_bits():
    def body():
        first = train()
        second = train()
        assert torch.equal(first.weight, second.weight)

    assert outcome(body) == ("", "")


def test_a_cell_that_is_run_again_after_it_failed_gives_the_same_bits():
    def fail(step, model, optimizer, batch):
        model(batch).sum().backward()
        raise KeyboardInterrupt

    def body():
        with contextlib.suppress(KeyboardInterrupt):
            train(inside=fail)
        first = train()
        assert torch.equal(first.weight, train().weight)

    assert outcome(body) == ("", "")


def test_a_run_that_was_replaced_says_so():
    def use(run):
        run.protect(model=nn.Linear(1, 1))

    def body(used):
        old = relume.init()
        relume.init()
        used(old)

    def aside(run):
        with run.aside("x"):
            pass

    for used in (use, aside, lambda run: run.steps(relume.Shards(ROWS, global_batch_size=4), total=1)):
        refuses(lambda used=used: body(used), UsageError, "replaced by a newer relume.init()")


def test_the_environment_of_a_run_in_a_plain_process():
    def started_with(text, **others):
        os.environ.update({"RELUME_AGENT": text, "RANK": "0", "WORLD_SIZE": "1", **others})
        relume.init()

    read, write = os.pipe()
    whole = (
        f"socket={read} control={write} data={read} mirrors={read},{write} bells={write} kept=2 every=0 life=0 began=0"
    )
    others = [whole.replace(f"={read} ", "=700 "), whole.replace(" kept=2", ""), whole.replace("life=0", "life=x")]
    for text in ("", "rubbish", "3", "700,701,702,703", "socket=3", whole, *others, f"{whole} more"):
        refuses(lambda text=text: started_with(text), ConfigError, "RELUME_AGENT is set", "do not copy its environment")
    os.close(read)
    os.close(write)


def test_no_promise_of_bits_is_told():
    raised, said = outcome(lambda: relume.init(exact=False))
    assert raised == ""
    assert said == "relume: exact=False: this run's bits are not guaranteed to be reproducible\n"


# Workers that differ ----------------------------------------------------------------------------------------------


def differing(tmp_path, change):
    """Run a fleet in which `change(rank)` gives what is different on each worker; return how it ended."""

    def body(rank):
        other = change(rank)
        run = relume.init(seed=1, **other.pop("init", {}))
        model = other.pop("model", None) or nn.Linear(4, 1)
        if "shift" in other:
            with torch.no_grad():
                model.weight[0, 3] += other.pop("shift")
        optimizer = torch.optim.SGD(model.parameters(), lr=other.pop("lr", 0.1))
        run.protect(model=model, optimizer=optimizer)
        total = other.pop("total", 3)
        data = relume.Shards(other.pop("rows", ROWS), **{"global_batch_size": 4, "shards": 2, **other})
        for step in run.steps(data, total=total):
            for batch in step:
                model(batch).sum().backward()

    result = run_fleet(body, workers=3, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (4, "diverged"), result.output
    assert result.reason.startswith("worker 1 differs from worker 0: "), result.reason
    return result.reason


def test_a_model_that_differs_between_workers_is_named(tmp_path):
    reason = differing(tmp_path, lambda rank: {"shift": 1e-7 if rank == 1 else 0.0})
    assert "parameter model.weight: torch.float32 (1, 4)" in reason


def test_a_model_of_another_shape_is_named(tmp_path):
    reason = differing(tmp_path, lambda rank: {"model": nn.Linear(4, 2) if rank == 1 else None})
    assert "parameter model.weight: torch.float32 (2, 4)" in reason


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rows": ROWS[:7]}, ["of 7 samples", "of 8 samples"]),
        ({"rows": torch.cat([ROWS[:1] + 1e-6, ROWS[1:]])}, ["first sample: "]),
        ({"shuffle": False}, ["order: the dataset's own"]),
        ({"global_batch_size": 8}, ["global batch size: 8"]),
        ({"shards": 4}, ["shards per step: 4"]),
        ({"total": 4}, ["total: 4", "total: 3"]),
        ({"lr": 0.2}, ["optimizer optimizer, group 0: SGD", "'lr': 0.2"]),
        ({"init": {"threads": 2}}, ["threads: 2", "threads: 1"]),
        ({"init": {"exact": False}}, ["exact: False"]),
    ],
    ids=str,
)
def test_data_and_settings_that_differ_between_workers_are_named(other, words, tmp_path):
    reason = differing(tmp_path, lambda rank: dict(other) if rank == 1 else {})
    for word in words:
        assert word in reason


# Runs that cannot be ----------------------------------------------------------------------------------------------


def test_two_runs_in_one_worker_are_refused(tmp_path):
    def body(rank):
        relume.init()
        relume.init()

    result = run_fleet(body, workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert "a worker takes part in one run" in result.reason


@pytest.mark.parametrize("calls_init", [False, True])
def test_a_script_that_never_calls_steps(calls_init, tmp_path):
    result = run_fleet(lambda rank: calls_init and relume.init(), workers=2, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (3, "no_steps")
    assert "run.steps(data, total=...)" in result.reason
    assert result.incidents == []


def test_a_mistake_that_all_workers_make_ends_the_run_with_its_words(tmp_path):
    result = run_fleet(
        lambda rank: train(inside=lambda step, model, optimizer, batch: None), workers=2, tmp_path=tmp_path
    )
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert "brought no gradient: call loss.backward() for every batch" in result.reason


def test_no_memory_for_the_arena(tmp_path, monkeypatch):
    monkeypatch.setattr(arena.memory, "available_bytes", lambda: 300 << 20)

    def body(rank):
        train(model=nn.Linear(4, 2_000_000))

    result = run_fleet(body, workers=4, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (5, "no_memory")
    assert "300 MiB are available" in result.reason
    assert "Use fewer workers on this host (--workers)" in result.reason


# The run's folder -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 64 KiB; yield a function that mounts it anew, read-only if asked."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def noisy(rank, step):
    for _ in range(20):
        print("x" * 999, flush=True)


def test_a_full_disk_costs_lines_and_no_step(small_disk, tmp_path):
    """Scenario 18: training goes on, and it is said once."""
    result = run_fleet(script(tmp_path, inside=noisy), workers=2, tmp_path=tmp_path, run_dir=small_disk / "run")
    check(tmp_path, result, lost={})
    told = [line for line in result.output.splitlines() if "refuses writes" in line]
    trouble = "refuses writes (No space left on device); training goes on without them"
    assert told == [f"relume: the run folder {small_disk}/run {trouble}"]


def test_a_disk_that_is_full_from_the_start(small_disk, tmp_path):
    (small_disk / "filler").write_bytes(bytes(60 << 10))
    (small_disk / "run").mkdir()
    with contextlib.suppress(OSError):
        (small_disk / "filler-2").write_bytes(bytes(60 << 10))
    result = run_fleet(script(tmp_path), workers=2, tmp_path=tmp_path, run_dir=small_disk / "run")
    check(tmp_path, result, lost={})
    assert result.output.count("refuses writes") == 1


def test_a_folder_that_cannot_be_written(small_disk, tmp_path):
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ConfigError, match=r"cannot be written to: choose another --run-dir"):
        run_fleet(script(tmp_path), workers=1, tmp_path=tmp_path, run_dir=small_disk / "run")
    with pytest.raises(ConfigError, match=r"cannot be made \(Read-only file system\)"):
        run_fleet(script(tmp_path), workers=1, tmp_path=tmp_path, run_dir=small_disk / "other")


def test_a_folder_that_holds_another_run(tmp_path):
    folder = tmp_path / "used"
    run_fleet(script(tmp_path), workers=1, tmp_path=tmp_path, run_dir=folder)
    before = (folder / "events.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"holds another run: choose another --run-dir, or remove it"):
        run_fleet(script(tmp_path), workers=1, tmp_path=tmp_path, run_dir=folder)
    assert (folder / "events.jsonl").read_bytes() == before


def test_a_worker_that_cannot_be_started(tmp_path, monkeypatch):
    """The others are ended, and nothing is left."""
    spawn = Forked.spawn

    def limited(self, command, environment, descriptors):
        if environment["RANK"] == "2":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return spawn(self, command, environment, descriptors)

    monkeypatch.setattr(Forked, "spawn", limited)
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"worker 2 cannot be started \(Resource .*\)\. Use fewer workers"):
        run_fleet(script(tmp_path), workers=3, tmp_path=tmp_path, run_dir=folder)
    lines = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run_started", "worker_started", "worker_started", "run_ended"]
    assert lines[-1]["exit_code"] == 2


def test_words_that_are_no_text_are_told_all_the_same(tmp_path):
    """A file name in another encoding, or an error as long as a tensor."""

    def fail(rank, step):
        raise ValueError(os.fsdecode(b"\xff") + "x" * 17_000_000)

    result = run_fleet(script(tmp_path, inside=fail), workers=1, tmp_path=tmp_path)
    assert (result.exit_code, result.outcome) == (1, "script_failed")
    assert "its script raised ValueError: ?xxx" in result.reason
    assert len(result.reason) < 3000
