"""Settings that make no steps are refused with advice, and those that do say the same on every worker."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from relume.errors import DataError
from relume.train.shards import Shards


class Counting:
    """A map-style dataset without torch's base class."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Lengthless(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


def make_batch(step, shard):
    return torch.full((2,), step * 10 + shard)


def bind(source, *, run_seed=0, default_shards=None, **settings):
    return Shards(source, **settings).bind(seed=run_seed, default_shards=default_shards)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs global_batch_size="),
        ({"global_batch_size": 0}, "global_batch_size has to be at least 1, and is 0"),
        ({"global_batch_size": -3}, "global_batch_size has to be at least 1"),
        ({"global_batch_size": 2.0}, "global_batch_size has to be an int, and is 2.0 (float)"),
        ({"global_batch_size": "4"}, "global_batch_size has to be an int"),
        ({"global_batch_size": True}, "global_batch_size has to be an int"),
        ({"global_batch_size": 4, "shards": 0}, "shards has to be from 1 to 4095, and is 0"),
        ({"global_batch_size": 4, "shards": 4096}, "shards has to be from 1 to 4095, and is 4096"),
        ({"global_batch_size": 4, "shards": 1.5}, "shards has to be an int"),
        ({"global_batch_size": 4, "seed": "now"}, "seed has to be an int"),
        ({"global_batch_size": 4, "num_workers": -1}, "num_workers has to be at least 0, and is -1"),
        ({"global_batch_size": 4, "num_workers": 1, "prefetch_factor": 0}, "prefetch_factor has to be at least 1"),
        ({"global_batch_size": 4, "collate_fn": "default"}, "collate_fn has to be a function"),
        ({"global_batch_size": 4, "multiprocessing_context": "thread"}, "multiprocessing_context has to be one of"),
        ({"global_batch_size": 4, "samples": len}, "samples= is for streams"),
        ({"global_batch_size": 4, "default_shards": 5000}, "--shards has to be from 1 to 4095"),
        ({"global_batch_size": 11, "drop_last": True}, "The dataset has 10 samples, fewer than global_batch_size=11"),
        ({"batch_size": 4}, "Shards takes no batch_size=: say global_batch_size="),
        ({"global_batch_size": 4, "sampler": None}, "Shards takes no sampler="),
        ({"global_batch_size": 4, "worker_init_fn": None}, "Shards takes no worker_init_fn="),
    ],
)
def test_settings_that_make_no_steps_are_refused(settings, words):
    with pytest.raises(DataError) as error:
        bind(Counting(10), **settings)
    assert words in str(error.value)
    assert isinstance(error.value, ValueError), "what a PyTorch user would catch"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Counting(0), "is empty"),
        ([], "is empty"),
        (Stream(), "is an IterableDataset"),
        (Lengthless(), "has not both __len__ and __getitem__"),
        (torch.tensor(1.0), "does not tell its length"),
        (DataLoader(Counting(10)), "pass the DataLoader's dataset"),
        (Counting, "pass an instance of it"),
        ({"train": Counting(1), "test": Counting(1)}, "A dict of 'train', 'test' is not a dataset"),
        ("data.txt", "A str is not a dataset"),
        (iter([1, 2]), "a function (step, shard) -> batch"),
        (None, "a function (step, shard) -> batch"),
    ],
)
def test_what_is_no_source_of_shards_is_refused_with_advice(source, words):
    with pytest.raises(DataError) as error:
        bind(source, global_batch_size=4)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "A stream needs shards="),
        ({"shards": 2, "drop_last": True}, "drop_last= has no meaning for a stream"),
        ({"shards": 2, "collate_fn": list}, "collate_fn= has no meaning for a stream"),
    ],
)
def test_a_stream_is_refused_what_it_has_no_use_for(settings, words):
    with pytest.raises(DataError) as error:
        bind(make_batch, **settings)
    assert words in str(error.value)


def test_an_unknown_setting_is_python_s_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'suffle'"):
        Shards(Counting(4), global_batch_size=2, suffle=True)


@pytest.mark.parametrize(
    ("said", "default", "batch", "shards"),
    [(6, 3, 64, 6), (None, 3, 64, 3), (None, None, 64, 8), (None, None, 5, 5), (12, None, 4, 12)],
)
def test_the_number_of_shards_is_the_scripts_or_the_command_lines_or_eight(said, default, batch, shards):
    assert bind(Counting(100), global_batch_size=batch, shards=said, default_shards=default).shards == shards


def test_numpy_integers_are_integers():
    data = bind(Counting(10), global_batch_size=np.int64(4), shards=np.int32(2), seed=np.int64(7))
    assert (data.shards, data.steps_per_epoch) == (2, 3)
    assert "order: shuffled with seed 7" in data.identity()


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 3), (True, 2)])
def test_an_epoch_has_as_many_steps_as_a_dataloader(drop_last, steps):
    data = bind(Counting(10), global_batch_size=4, drop_last=drop_last)
    assert data.steps_per_epoch == steps == len(DataLoader(Counting(10), batch_size=4, drop_last=drop_last))
    assert [data.epoch(step) for step in range(steps + 1)] == [0] * steps + [1]


def test_unshuffled_batches_are_those_of_a_dataloader():
    data = bind(Counting(10), global_batch_size=4, shards=3, shuffle=False)
    for step, batch in enumerate(DataLoader(Counting(10), batch_size=4)):
        assert [index for shard in range(3) for index in data.indices(step, shard)] == batch.tolist()


def test_the_order_is_the_runs_unless_it_has_a_seed_of_its_own():
    def first(**seeds):
        return bind(Counting(1000), global_batch_size=100, shards=1, **seeds).indices(0, 0)

    assert first(run_seed=1) != first(run_seed=2)
    assert first(run_seed=1, seed=3) == first(run_seed=2, seed=3) == first(run_seed=3)


def test_a_stream_has_no_epochs_indices_or_sizes():
    data = bind(make_batch, shards=2)
    assert data.steps_per_epoch is None
    assert data.epoch(100) == 0
    assert data.size(0, 0) is None
    with pytest.raises(DataError, match="A stream has no indices"):
        data.indices(0, 0)
    assert bind(make_batch, global_batch_size=4).shards == 4, "the default is the same as for a dataset"
    assert bind(functools.partial(make_batch, 1), shards=2).identity()[0] == "stream: functools.partial"


def test_workers_with_different_data_have_different_identities():
    def identity(samples=10, **settings):
        return tuple(bind(Counting(samples), **{"global_batch_size": 4, **settings}).identity())

    different = [
        identity(),
        identity(samples=11),
        identity(run_seed=1),
        identity(global_batch_size=5),
        identity(default_shards=2),
        identity(seed=1),
        identity(shuffle=False),
        identity(drop_last=True),
        identity(collate_fn=list),
        tuple(bind(TensorDataset(torch.zeros(10)), global_batch_size=4).identity()),
        tuple(bind(make_batch, shards=4).identity()),
    ]
    assert len(set(different)) == len(different)
    assert identity() == identity(num_workers=3, prefetch_factor=5, pin_memory=True), "how it is loaded is not what"
    assert identity() == (
        f"dataset: {__name__}.Counting of 10 samples",
        "random seed of loading: 0",
        "shards per step: 4",
        "global batch size: 4",
        "order: shuffled with seed 0",
        "last batch if not full: kept",
        "collate_fn: torch.utils.data._utils.collate.default_collate",
    )
