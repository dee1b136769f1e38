"""A shard has the same bits wherever it is loaded, and prefetching follows what is wanted (Invariant 2)."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate, get_worker_info

import relume.train
from relume.errors import BatchError, DataError
from relume.train import pool
from relume.train.batches import ALIGNMENT_BYTES, leaves
from relume.train.rng import derive, seed_all
from relume.train.shards import Shards

STEPS, SHARDS = 6, 3
KEYS = [(step, shard) for step in range(STEPS) for shard in range(SHARDS)]


class Augmented:
    """Samples that draw from every generator, and say who loaded them."""

    def __init__(self, samples=20):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {
            "index": index,
            "torch": torch.randn(5) * index,
            "numpy": np.random.rand(4).astype(np.float32),  # noqa: NPY002 - what augmentation does
            "python": random.random(),
            "sum": torch.rand(3000).sum(),  # its bits depend on the number of threads
            "image": torch.rand(1, 3, 4, 5).to(memory_format=torch.channels_last),
            "name": f"sample {index}",
        }


class Whereabouts(Augmented):
    """Samples that say which process loaded them."""

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


class Broken(Augmented):
    def __getitem__(self, index):
        if index == 7:
            raise BrokenSampleError(index, "is broken")
        return torch.tensor(index)


class BrokenSampleError(Exception):
    def __init__(self, index, words):
        super().__init__(index, words)
        self.index = index


class Plan:
    """The part of the engine that says what is wanted next: a list of keys that a change of view replaces."""

    def __init__(self, keys=KEYS):
        self.keys = list(keys)
        self.asked = []

    def __call__(self, previous):
        self.asked.append(previous)
        return next((key for key in self.keys if previous is None or key > previous), None)


@pytest.fixture
def open_loader(monkeypatch):
    monkeypatch.setattr(pool, "GRACE_S", 0.2)
    loaders = []

    def open_one(source=None, plan=None, **settings):
        defaults = {} if callable(source) else {"global_batch_size": 7}
        data = Shards(source or Augmented(), **{"shards": SHARDS, **defaults, **settings})
        loader = data.bind(seed=11, default_shards=None).open(plan or Plan())
        loaders.append(loader)
        return loader

    yield open_one
    for loader in loaders:
        loader.close()


def bits(loaded):
    """Return all that a step can depend on: values, dtypes, sizes, strides, alignment."""
    return loaded.samples, [(path, leaf_bits(leaf)) for path, leaf in leaves(loaded.batch)]


def leaf_bits(leaf):
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return leaf.dtype, leaf.shape, leaf.stride(), leaf.data_ptr() % ALIGNMENT_BYTES, leaf.reshape(-1).numpy().tobytes()


def process_of(loaded):
    return set(loaded.batch[:, 1].tolist())


def collate_in_a_collate_function(samples):
    assert get_worker_info() is None, "a batch must not depend on which process made it"
    return [default_collate(samples), np.stack([sample["numpy"] for sample in samples])]


# --- the same bits ---


@pytest.mark.parametrize("collate_fn", [None, collate_in_a_collate_function])
def test_loader_processes_make_the_bits_that_the_training_process_makes(open_loader, collate_fn):
    here, there = open_loader(collate_fn=collate_fn), open_loader(collate_fn=collate_fn, num_workers=2)
    for key in KEYS:
        assert bits(there.get(*key)) == bits(here.get(*key)), key


def test_a_spawned_loader_process_makes_them_too(open_loader):
    torch.set_default_dtype(torch.float64)
    try:
        here, there = open_loader(), open_loader(num_workers=1, multiprocessing_context="spawn")
        assert bits(there.get(0, 0)) == bits(here.get(0, 0))
        assert there.get(0, 1).batch["torch"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_order_of_asking_changes_nothing(open_loader, num_workers, seed):
    in_order, shuffled = open_loader(), open_loader(num_workers=num_workers)
    expected = {key: bits(in_order.get(*key)) for key in KEYS}
    keys = list(KEYS)
    random.Random(seed).shuffle(keys)
    seed_all(seed)
    assert {key: bits(shuffled.get(*key)) for key in keys} == expected
    assert bits(shuffled.get(*keys[0])) == expected[keys[0]], "asked for again"


def test_what_the_loop_around_has_switched_on_changes_nothing(open_loader):
    plain = open_loader()
    expected = bits(plain.get(0, 0))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert bits(plain.get(0, 0)) == expected
            assert not torch.is_grad_enabled()
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_num_threads() == 2
        with torch.inference_mode():
            batch = plain.get(0, 0).batch
        assert not batch["torch"].is_inference()
    finally:
        torch.set_num_threads(threads)


def test_a_shard_is_loaded_under_the_documented_seed(open_loader):
    loaded = open_loader(shuffle=False).get(4, 1)
    seed_all(derive(11, 4, 1, "data"))
    expected = default_collate([Augmented()[index] for index in (loaded.batch["index"].tolist())])
    assert torch.equal(loaded.batch["torch"], expected["torch"])
    assert torch.equal(loaded.batch["python"], expected["python"])


def test_starting_loader_processes_leaves_the_users_randomness_alone(open_loader):
    loader = open_loader(num_workers=1)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    loader.get(0, 0)
    assert torch.equal(torch.rand(1), expected)


def test_batches_that_share_the_datasets_memory_are_aligned(open_loader):
    rows = torch.arange(21.0 * 3).view(21, 3)

    def cut(samples):
        return rows[1:5], rows.numpy()[1:5]

    loader = open_loader(TensorDataset(rows), collate_fn=cut)
    tensor, array = loader.get(0, 0).batch
    assert tensor.data_ptr() % ALIGNMENT_BYTES == array.ctypes.data % ALIGNMENT_BYTES == 0
    assert torch.equal(tensor, rows[1:5])
    assert np.array_equal(array, rows[1:5])


# --- kinds of data ---


def test_every_kind_of_map_style_dataset_is_loaded(open_loader):
    class AtOnce(Augmented):
        """As datasets of Hugging Face do."""

        def __getitem__(self, index):
            raise AssertionError("one by one")

        def __getitems__(self, indices):
            return [{"x": index} for index in indices]

    settings = {"global_batch_size": 2, "shards": 1, "shuffle": False}
    assert open_loader([10, 11, 12], **settings).get(0, 0).batch.tolist() == [10, 11]
    pair = open_loader(TensorDataset(torch.arange(3), torch.arange(3) * 2), **settings).get(1, 0)
    assert [part.tolist() for part in pair.batch] == [[2], [4]]
    assert pair.samples == 1
    assert open_loader(AtOnce(), **settings).get(0, 0).batch["x"].tolist() == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_makes_its_own_batches(open_loader, num_workers):
    def stream(step, shard):
        return None if shard == 2 else {"x": torch.rand(shard + 2, 3), "key": [step, shard]}

    loader = open_loader(stream, num_workers=num_workers)
    first, second, empty = (loader.get(5, shard) for shard in range(3))
    assert (first.samples, second.samples) == (2, 3)
    assert second.batch["key"] == [5, 1]
    assert (empty.batch, empty.samples) == (None, 0)
    seed_all(derive(11, 5, 0, "data"))
    assert torch.equal(first.batch["x"], torch.rand(2, 3))
    assert loader.fingerprint() == ""


def test_a_stream_may_say_how_many_samples_a_batch_has(open_loader):
    loader = open_loader(lambda step, shard: ["a"] * shard, samples=len)
    assert [loader.get(0, shard).samples for shard in range(3)] == [0, 1, 2]
    assert loader.get(0, 0).batch is None
    assert open_loader(lambda step, shard: ["a"]).get(0, 0).samples is None, "nobody knows"
    with pytest.raises(DataError, match=r"samples= returned -1 for shard 2 of step 1"):
        open_loader(lambda step, shard: ["a"], samples=lambda batch: -1).get(1, 2)
    with pytest.raises(DataError, match=r"samples= returned 0\.5"):
        open_loader(lambda step, shard: ["a"], samples=lambda batch: 0.5).get(1, 2)


def test_an_empty_shard_is_not_loaded(open_loader):
    loader = open_loader(Augmented(2), global_batch_size=2, shards=4)
    assert loader.get(0, 1).samples == 1
    assert (loader.get(0, 2).batch, loader.get(0, 2).samples) == (None, 0)


# --- what is refused ---


def test_a_batch_that_is_not_built_like_the_first_is_refused(open_loader):
    def stream(step, shard):
        return {"x": torch.zeros(4, dtype=torch.float64 if (step, shard) == (3, 1) else torch.float32)}

    loader = open_loader(stream)
    for key in KEYS[: KEYS.index((3, 1))]:
        loader.get(*key)
    with pytest.raises(BatchError) as error:
        loader.get(3, 1)
    assert "shard 1 of step 3 is not built like the first one: batch['x'] is float64 tensor" in str(error.value)


def test_a_collate_function_that_forgets_to_return_is_refused(open_loader):
    with pytest.raises(BatchError, match="collate_fn returned None for shard 0 of step 0"):
        open_loader(collate_fn=lambda samples: None).get(0, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_datasets_own_exception_comes_with_its_shard_and_not_before(open_loader, num_workers):
    loader = open_loader(Broken(), num_workers=num_workers, shuffle=False, prefetch_factor=4)
    for key in [(0, 0), (0, 1)]:  # samples 0 to 4
        loader.get(*key)
    loader.get(0, 2)
    with pytest.raises(BrokenSampleError) as error:
        loader.get(1, 0)  # samples 7 to 9
    assert error.value.index == 7, "the user's own exception, with what they put into it"
    if num_workers:
        assert "raise BrokenSampleError(index" in "".join(error.value.__notes__)
    assert loader.get(1, 1).samples == 2, "and the others are not lost for it"


def test_an_exception_that_cannot_travel_is_told(open_loader):
    class LocalError(Exception):
        pass

    def stream(step, shard):
        raise LocalError("only here")

    with pytest.raises(DataError, match=r"Loading raised .*LocalError: only here"):
        open_loader(stream, num_workers=1).get(0, 0)


def test_a_batch_that_cannot_travel_is_refused_instead_of_waited_for(open_loader):
    loader = open_loader(lambda step, shard: {"x": torch.zeros(3), "f": lambda: 1}, num_workers=1)
    with pytest.raises(DataError, match=r"cannot be sent from a loader process .* num_workers=0"):
        loader.get(0, 0)


# --- prefetching ---


class Gated:
    """A stream whose shards wait until the test lets them be loaded, and say that they were begun."""

    def __init__(self, folder):
        self.folder = folder
        self.closed = True

    def __call__(self, step, shard):
        (self.folder / f"begun-{step}-{shard}-{os.getpid()}").touch()
        gate = self.folder / f"gate-{step}-{shard}"
        if gate.exists():
            gate.open().close()  # a pipe: it opens when the test opens the other end
        return torch.tensor([[step, os.getpid()]])

    def shut(self, *keys):
        for step, shard in keys:
            os.mkfifo(self.folder / f"gate-{step}-{shard}")

    def let(self, *keys):
        for step, shard in keys:
            (self.folder / f"gate-{step}-{shard}").open("w").close()

    def begun(self):
        """The shards whose loading has begun, by the process that does it, in no order."""
        found = {}
        for path in self.folder.glob("begun-*"):
            step, shard, pid = map(int, path.name.split("-")[1:])
            found[step, shard] = pid
        return found

    def wait_for(self, *keys):
        deadline = time.monotonic() + 10
        while not set(keys) <= set(self.begun()):
            assert time.monotonic() < deadline, f"begun are {self.begun()}"
            time.sleep(0.002)


@pytest.fixture
def gated(tmp_path):
    return Gated(tmp_path)


def settled(loader):
    """Wait until everything that is foreseen has been loaded; return it."""
    deadline = time.monotonic() + 10
    while True:
        with loader._pool.changed:
            if not loader._pending and not loader._look_again and not loader._pool._rung:
                return set(loader._arrived)
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_is_foreseen_is_loaded_by_loader_processes(open_loader):
    loader = open_loader(Whereabouts(), num_workers=2)
    processes = [process_of(loader.get(*key)) for key in KEYS]
    assert len(set.union(*processes)) == 2
    assert os.getpid() not in set.union(*processes)


def test_what_is_not_foreseen_is_loaded_here(open_loader):
    plan = Plan([key for key in KEYS if key[1] == 0])
    loader = open_loader(Whereabouts(), plan, num_workers=1)
    assert os.getpid() not in process_of(loader.get(0, 0))
    assert process_of(loader.get(0, 2)) == {os.getpid()}
    assert os.getpid() not in process_of(loader.get(1, 0)), "and the foreseen ones go on"


def test_while_a_step_is_computed_the_next_ones_are_loaded_in_the_order_of_need(open_loader, gated):
    loader = open_loader(gated, num_workers=2, prefetch_factor=2)
    loader.get(0, 0)
    gated.wait_for(*KEYS[:5])  # nobody asks for anything meanwhile: the user's forward goes on
    assert settled(loader) == set(KEYS[1:5]), "two for each process, and no further: they take memory"
    assert set(gated.begun()) == set(KEYS[:5])
    loader.get(*KEYS[1])
    gated.wait_for(KEYS[5])
    assert settled(loader) == set(KEYS[2:6])


def test_what_a_dead_worker_leaves_is_loaded_at_once_by_all_processes_and_before_later_steps(open_loader, gated):
    """It is not asked for meanwhile: the user's forward goes on. Both processes have more to do than they can."""
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=2, prefetch_factor=2)
    gated.shut((1, 0), (2, 0), (0, 1), (0, 2))
    loader.get(0, 0)
    gated.wait_for((1, 0), (2, 0))  # in both processes; more is waiting behind them
    plan.keys = [(0, 0), (0, 1), (0, 2), *((step, shard) for step in range(1, STEPS) for shard in (0, 1))]
    loader.look()
    with loader._pool.changed:
        while not {(0, 1), (0, 2)} <= loader._pending:
            loader._pool.changed.wait(0.01)
    gated.let((1, 0), (2, 0))
    gated.wait_for((0, 1), (0, 2))
    assert set(gated.begun()) == {(0, 0), (1, 0), (2, 0), (0, 1), (0, 2)}, "ahead of steps 3 and 4"
    assert gated.begun()[0, 1] != gated.begun()[0, 2]
    gated.let((0, 1), (0, 2))
    assert os.getpid() not in {*process_of(loader.get(0, 1)), *process_of(loader.get(0, 2))}


def test_a_view_that_nobody_told_of_is_met_when_a_shard_is_asked_for(open_loader, gated):
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=2, prefetch_factor=1)
    loader.get(0, 0)
    settled(loader)
    plan.keys = list(KEYS)
    gated.shut((0, 1), (0, 2))
    opener = threading.Thread(target=lambda: (gated.wait_for((0, 1), (0, 2)), gated.let((0, 1), (0, 2))))
    opener.start()
    found = [process_of(loader.get(0, shard)) for shard in (1, 2)]
    opener.join()
    assert set.union(*found) == {hand.process.pid for hand in loader._pool._hands}, "both at once"


@pytest.mark.parametrize("told", [True, False])
def test_what_a_dead_worker_leaves_is_loaded_here_if_all_processes_are_busy(open_loader, gated, told):
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=1, prefetch_factor=3)
    gated.shut((1, 0))
    loader.get(0, 0)
    gated.wait_for((1, 0))
    plan.keys = [(0, 0), (0, 1), (0, 2), *((step, shard) for step in range(1, STEPS) for shard in (0, 1))]
    if told:
        loader.look()
        with loader._pool.changed:
            while not {(0, 1), (0, 2)} <= loader._pending:
                loader._pool.changed.wait(0.01)
    assert process_of(loader.get(0, 1)) == {os.getpid()}
    gated.let((1, 0))
    gated.wait_for((0, 2))
    settled(loader)
    assert gated.begun()[0, 2] != os.getpid(), "the process has gone on with what was not taken back"
    assert process_of(loader.get(0, 2)) == {gated.begun()[0, 2]}
    assert len(list(gated.folder.glob("begun-0-1-*"))) == 1, "nor does it load what was"


def test_what_goes_to_somebody_else_is_not_waited_for_and_goes_with_its_step(open_loader, gated):
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=1, prefetch_factor=2)
    loader.get(0, 0)
    assert settled(loader) == {(1, 0), (2, 0)}
    plan.keys = [(step, 1) for step in range(STEPS)]
    loader.look()
    assert settled(loader) == {(0, 1), (1, 1)}, "in the place of what was foreseen before"
    assert process_of(loader.get(2, 0)) == {os.getpid()}, "a mistake, or another view: the bits are there"
    assert settled(loader) == {(2, 1), (3, 1)}, "nothing is kept for steps that are over"


def test_what_is_under_way_when_it_goes_to_somebody_else_is_not_kept(open_loader, gated):
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=1, prefetch_factor=2)
    gated.shut((1, 0))
    loader.get(0, 0)
    gated.wait_for((1, 0))
    plan.keys = [(0, 0), *((step, 1) for step in range(1, STEPS))]
    loader.look()
    with loader._pool.changed:
        while (1, 1) not in loader._pending:
            loader._pool.changed.wait(0.01)
    gated.let((1, 0))
    assert settled(loader) == {(1, 1), (2, 1)}


def test_what_is_waited_for_is_given_whatever_the_view_says_meanwhile(open_loader, gated):
    plan = Plan([(step, 0) for step in range(STEPS)])
    loader = open_loader(gated, plan, num_workers=1, prefetch_factor=2)
    gated.shut((1, 0))
    loader.get(0, 0)
    gated.wait_for((1, 0))

    def change():
        with loader._pool.changed:
            while (1, 0) not in loader._served:
                loader._pool.changed.wait(0.01)
        plan.keys = [(step, 1) for step in range(1, STEPS)]
        loader.look()
        gated.wait_for((0, 0))
        gated.let((1, 0))

    changer = threading.Thread(target=change)
    changer.start()
    assert process_of(loader.get(1, 0)) == {gated.begun()[1, 0]} != {os.getpid()}
    changer.join()


def test_who_is_about_to_join_finds_its_first_shards_there(open_loader, gated):
    """It replays meanwhile, and asks for none. What it will have begins with step 4."""
    plan = Plan([])
    loader = open_loader(gated, plan, num_workers=2, prefetch_factor=2)
    assert loader.fingerprint() == "", "the processes are there from here on"
    plan.keys = [(step, shard) for step in (4, 5) for shard in (0, 2)]
    loader.look()
    gated.wait_for(*plan.keys)
    assert settled(loader) == set(plan.keys)
    assert os.getpid() not in process_of(loader.get(4, 0))


def test_a_worker_that_has_nothing_to_do_for_a_while_prefetches_again_at_full_depth(open_loader, gated):
    plan = Plan([(0, 0)])
    loader = open_loader(gated, plan, num_workers=2, prefetch_factor=2)
    loader.get(0, 0)
    settled(loader)
    plan.keys = list(KEYS)
    loader.look()
    assert settled(loader) == set(KEYS[1:5])


def test_telling_of_a_view_is_cheap_and_harmless_whenever_it_comes(open_loader):
    here, there = open_loader(), open_loader(num_workers=1)
    here.look()
    there.look()
    there.get(0, 0)
    for _ in range(100_000):  # more than a pipe holds
        there.look()
    assert bits(there.get(0, 1)) == bits(here.get(0, 1))
    there.close()
    there.look()
    assert not there._pool.running


def test_a_plan_that_repeats_itself_does_not_load_anything_twice(open_loader):
    def stuck(previous):
        return (0, 0) if previous is None or previous <= (0, 0) else None

    loader = open_loader(Whereabouts(), stuck, num_workers=1)
    loader.get(0, 0)
    assert process_of(loader.get(0, 1)) == {os.getpid()}


def test_a_plan_that_raises_is_told_where_a_shard_is_asked_for(open_loader):
    def broken(previous):
        if previous is not None:
            raise ZeroDivisionError("in the plan")
        return (0, 0)

    loader = open_loader(Whereabouts(), broken, num_workers=1)
    with pytest.raises(ZeroDivisionError, match="in the plan"):
        loader.get(0, 0)


def test_whatever_views_do_the_bits_stay(open_loader, seed):
    rng = random.Random(seed)
    plan = Plan([])
    here, there = open_loader(), open_loader(plan=plan, num_workers=2, prefetch_factor=rng.randint(1, 3))
    for step in range(30):
        for shard in rng.sample(range(SHARDS), rng.randint(0, SHARDS)):
            if rng.random() < 0.3:
                rank = {shard for shard in range(SHARDS) if rng.random() < 0.5}
                plan.keys = [(step, shard) for step in range(30) for shard in sorted(rank)]
                if rng.random() < 0.5:
                    there.look()
            assert bits(there.get(step, shard)) == bits(here.get(step, shard)), (step, shard)
        assert len(there._arrived) <= 12
        assert len(there._served) <= SHARDS


# --- fingerprints ---


def test_the_fingerprint_is_the_same_wherever_it_is_made(open_loader):
    class Other(Augmented):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "name": "another"}

    here, there = open_loader(), open_loader(num_workers=1)
    seed_all(3)
    expected = here.fingerprint()
    assert there.fingerprint() == expected
    there.get(0, 0)
    assert there.fingerprint() == expected, "also while shards are under way"
    assert open_loader(Other()).fingerprint() != expected


def test_a_sample_that_cannot_be_loaded_raises_in_the_fingerprint(open_loader):
    class Worse(Broken):
        def __getitem__(self, index):
            raise BrokenSampleError(index, "is broken")

    with pytest.raises(BrokenSampleError):
        open_loader(Worse(), num_workers=1, collate_fn=list).fingerprint()


# --- the processes' end ---


class Slow(Augmented):
    def __getitem__(self, index):
        if index:
            signal.pause()
        return torch.tensor([index, os.getpid()])


def has_ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("order", ["idle", "busy"])
def test_closing_leaves_no_process_whatever_they_are_doing(open_loader, order):
    loader = open_loader(
        Whereabouts() if order == "idle" else Slow(), num_workers=2, shuffle=False, global_batch_size=3
    )
    pids = {process.pid for process in (loader.get(0, 0), [hand.process for hand in loader._pool._hands])[1]}
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 3.0
    assert len(pids) == 2
    assert all(has_ended(pid) for pid in pids)
    loader.close()


def test_a_closed_loader_can_be_used_again(open_loader):
    loader = open_loader(Whereabouts(), num_workers=1)
    first = loader.get(0, 0)
    loader.close()
    again = loader.get(0, 0)
    assert torch.equal(first.batch[:, 0], again.batch[:, 0])
    assert process_of(first) != process_of(again)
    assert os.getpid() not in process_of(again)


def test_loops_one_after_the_other_leave_no_descriptor_and_no_thread(open_loader):
    def count():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def loop():
        loader = open_loader(num_workers=1)
        for key in KEYS[:5]:
            loader.get(*key)
        loader.close()

    loop()
    before = count()
    for _ in range(4):
        loop()
    deadline = time.monotonic() + 2.0
    while any(now > then for now, then in zip(count(), before, strict=True)):  # threads of queues are ending
        assert time.monotonic() < deadline, (before, count())
        time.sleep(0.01)


def test_asking_for_pinned_memory_where_there_is_no_accelerator_is_no_mistake(open_loader, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *, check_available: None)
    expected = bits(open_loader().get(0, 0))
    for num_workers in (0, 1):
        assert bits(open_loader(num_workers=num_workers, pin_memory=True).get(0, 0)) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs an accelerator")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pinned_batches_are_pinned_and_aligned(open_loader, num_workers):
    expected = bits(open_loader().get(0, 0))
    loaded = open_loader(num_workers=num_workers, pin_memory=True).get(0, 0)
    assert loaded.batch["torch"].is_pinned()
    assert bits(loaded) == expected


@pytest.mark.parametrize("moment", ["while it is waited for", "while the user's code runs"])
def test_a_loader_process_killed_alone_is_told_with_advice_when_a_shard_is_asked_for(open_loader, moment):
    loader = open_loader(Slow(), num_workers=2, shuffle=False, global_batch_size=3)
    loader.get(0, 0)
    process = loader._pool._hands[0].process
    if moment == "while it is waited for":
        threading.Timer(0.1, os.kill, [process.pid, signal.SIGKILL]).start()
    else:
        os.kill(process.pid, signal.SIGKILL)
        process.join()  # the signal of its end has come when this returns
    with pytest.raises(RuntimeError, match=f"DataLoader worker \\(pid.* {process.pid}\\)") as error:
        loader.get(0, 1)
    assert "memory ran out" in error.value.__notes__[0]
    with pytest.raises(RuntimeError, match="was killed by signal 9"):
        loader.get(0, 1)
    pids = [hand.process.pid for hand in loader._pool._hands]
    loader.close()
    assert all(has_ended(pid) for pid in pids)


def test_a_users_own_dataloader_is_told_of_its_dead_as_torch_does(open_loader):
    open_loader(Slow(), num_workers=1, shuffle=False, global_batch_size=3).get(0, 0)
    before = set(multiprocessing.active_children())
    iterator = iter(DataLoader(Slow(), num_workers=1))
    (process,) = set(multiprocessing.active_children()) - before
    next(iterator)
    begin = time.monotonic()
    threading.Timer(0.1, os.kill, [process.pid, signal.SIGKILL]).start()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        next(iterator)
    assert time.monotonic() - begin < 3.0, "held back until torch looked by itself"
    process.join()


def test_loader_processes_end_with_their_worker_even_if_it_is_killed():
    """Without them its sockets would stay open for five seconds."""
    script = """
import os, signal, torch
from relume.train.shards import Shards
loader = Shards([0] * 100, global_batch_size=4, num_workers=2).bind(seed=0, default_shards=1).open(
    lambda previous: (0, 0) if previous is None else (previous[0] + 1, 0))
loader.get(0, 0)
print(*[hand.process.pid for hand in loader._pool._hands], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(relume.train.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 2.0
    while not all(has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline, "a loader process lives on"
        time.sleep(0.01)


def test_loader_processes_ignore_ctrl_c_and_have_one_thread(open_loader):
    def stream(step, shard):
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return [ignored, torch.get_num_threads(), torch.rand(1)]

    assert open_loader(stream, num_workers=1).get(0, 0).batch[:2] == [True, 1]
