"""A model out of a checkpoint, as every tool of the field reads it."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from relume.errors import ConfigError
from relume.state import export
from tests.unit.state import states


def test_the_fields_own_reader_finds_every_bit(tmp_path, seed):
    state = states.small(seed)
    tensors = {**state["model"], **{name: v for name, v in state["relume"]["vars"].items() if torch.is_tensor(v)}}
    tensors["tied"] = tensors["0.weight"]
    size = export.write(tmp_path / "model.safetensors", tensors, {"relume_step": "40"})
    assert (tmp_path / "model.safetensors").stat().st_size == size
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert states.difference(read[name], tensor.detach().contiguous()) is None
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "relume_step": "40"}
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_model_is_told_from_other_state():
    weight = {"weight": torch.ones(1)}
    optimizer = {"state": {0: weight}, "param_groups": [{"lr": 0.1}]}
    state = {"net": weight, "optimizer": optimizer, "scheduler": {"last_epoch": 3}, "relume": {"vars": {}}}
    assert export.models(state) == ["net"]
    assert export.choose(state, None) == "net"
    two = {**state, "ema": weight}
    assert export.choose(two, "ema") == "ema"
    assert export.choose({**two, "model": weight}, None) == "model"
    for name, text in {
        None: "--name must say which model is meant: net, ema",
        "scheduler": "'scheduler' holds no tensors by name; what can be exported: net, ema",
        "nte": "'nte' is not there; what can be exported: net, ema",
    }.items():
        with pytest.raises(ConfigError, match=text):
            export.choose(two, name)
    with pytest.raises(ConfigError, match="no model"):
        export.choose({"scheduler": {"last_epoch": 3}}, None)


def test_a_dtype_without_a_name_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"odd is of torch.complex128, which safetensors has no name for"):
        export.write(tmp_path / "x.safetensors", {"odd": torch.ones(1, dtype=torch.complex128)}, {})
    assert list(tmp_path.iterdir()) == []
