"""What is written comes back bit for bit, and plain PyTorch reads it; what is damaged is found and never loaded."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from relume.state import disk, folder, manifest
from relume.state.examine import examine
from relume.state.manifest import Unusable
from tests.unit.state import states

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def newest(directory):
    """The newest that verifies, and what was passed over: step to reason."""
    passed = {}
    loaded = disk.newest(directory, lambda path, why: passed.update({int(path.name[5:]): why}))
    return loaded, passed


def two(directory, seed):
    """Checkpoints of steps 8 and 16; return the state that the older one must give."""
    older = states.small(seed)
    states.save(directory, 8, older)
    states.save(directory, 16, states.small(seed + 1))
    return older


def test_a_state_comes_back_with_every_bit_type_and_stride(tmp_path, seed):
    state = states.small(seed)
    written = states.save(tmp_path, 40, state)
    assert written.path == tmp_path / "step-00000040"
    assert written.note == ""
    loaded = disk.load(written.path)
    assert states.difference(loaded.state(trusting=True), state) is None
    assert (loaded.step, loaded.manifest.facts) == (40, states.FACTS)
    assert written.size == sum(file.stat().st_size for file in states.files(written.path)) - manifest_size(written.path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000040", "latest"}
    assert (tmp_path / "latest").resolve() == written.path
    assert examine(written.path) == []


def manifest_size(path):
    return (path / manifest.MANIFEST).stat().st_size


def test_a_comparison_that_sees_nothing_would_prove_nothing(seed):
    state, other = states.small(seed), states.small(seed)
    assert states.difference(state, other) is None
    other["relume"]["vars"]["nan"].view(torch.int32)[1] ^= 1
    assert "bits" in states.difference(state, other)
    other = states.small(seed)
    other["scheduler"]["last_epoch"] = 2.0
    assert "last_epoch" in states.difference(state, other)
    other = states.small(seed)
    other["relume"]["vars"]["transposed"] = other["relume"]["vars"]["transposed"].contiguous()
    assert "stride" in states.difference(state, other)


def test_tensors_that_share_memory_and_a_large_state_come_back(tmp_path):
    state = states.large(160 << 20)
    state["tied"] = {"weight": state["model"]["layer.0.weight"]}
    state["ema"] = {"weight": state["model"]["layer.0.weight"][:], "part": state["model"]["layer.0.weight"][::2]}
    states.save(tmp_path, 1, state)
    assert states.difference(states.load(tmp_path / "step-00000001"), state) is None


def test_plain_pytorch_reads_model_and_optimizer(tmp_path, seed):
    state = states.small(seed)
    states.save(tmp_path, 40, state)
    dcp_to_torch_save(tmp_path / "latest", tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert set(plain) == set(state)
    assert states.difference(dict(plain["model"]), dict(state["model"])) is None

    torch.manual_seed(seed + 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    wanted = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(wanted, checkpoint_id=tmp_path / "latest", no_dist=True)
    model.load_state_dict(wanted["model"])
    optimizer.load_state_dict(wanted["optimizer"])
    assert states.difference(model.state_dict(), state["model"]) is None
    assert states.difference(optimizer.state_dict(), state["optimizer"]) is None


def test_pytorch_finds_every_tensor_under_a_name_of_its_own(tmp_path, seed):
    """Also those whose names its format would take for one another's."""
    described = manifest.read(states.save(tmp_path, 1, states.small(seed)).path)
    stored = dcp.FileSystemReader(tmp_path / "latest").read_metadata().state_dict_metadata
    keys = [tensor.key for tensor in described.tensors]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(stored)
    assert {"relume.vars.a.b.c", "relume.vars.a.b.c~", "relume.vars.numbers.1", "relume.vars.numbers.1~"} <= set(keys)


# Damage -------------------------------------------------------------------------------------------------------------


def flip(path, chance):
    """Flip one bit, anywhere."""
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"bit flipped at {place}"


def cut(path, chance):
    size = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"cut at {size}"


def blank(path, chance):
    """What file systems leave of data that was never on the disk when the power went: the size, and zeros."""
    size = path.stat().st_size
    path.write_bytes(bytes(size))
    return f"{size} zeros"


def lengthen(path, chance):
    with path.open("ab") as file:
        file.write(b"\0")
    return "a byte too many"


def lose(path, chance):
    path.unlink()
    return "missing"


@pytest.mark.parametrize("damage", [flip, cut, blank, lengthen, lose])
def test_damage_to_any_file_is_found_told_and_survived(tmp_path, seed, damage):
    chance = random.Random(seed)
    older = two(tmp_path / "original", seed)
    names = [file.name for file in states.files(tmp_path / "original" / "step-00000016")]
    assert names == [".metadata", "__0_0.distcp", "manifest.json", "skeleton"]
    for name in names * (5 if damage in {flip, cut} else 1):
        where = tmp_path / "damaged"
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(tmp_path / "original", where, symlinks=True)
        how = damage(where / "step-00000016" / name, chance)
        if damage is lengthen and name == "manifest.json":
            (where / "step-00000016" / name).write_bytes((where / "step-00000016" / name).read_bytes()[:-1] + b"}")
        loaded, passed = newest(where)
        assert loaded is not None, (name, how)
        assert loaded.step == 8, (name, how)
        assert states.difference(loaded.state(trusting=True), older) is None
        if name == "manifest.json" and damage is flip:
            assert "manifest.json" in passed[16] or "newer relume" in passed[16], (how, passed)
        else:
            assert name in passed[16], (name, how, passed)
        assert examine(where / "step-00000016") != []
        assert examine(where / "step-00000008") == []


def test_which_tensors_are_damaged_is_told_by_name(tmp_path, seed):
    state = states.small(seed)
    path = states.save(tmp_path, 16, state).path
    wanted = state["model"]["0.weight"].numpy().tobytes()
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[data.index(wanted) + 5] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    first, second = examine(path)
    assert first == "__0_0.distcp is damaged (its digest differs)"
    assert second.startswith("1 of ")
    assert second.endswith("tensors are damaged: model.0.weight")


def test_files_that_are_right_with_tensors_that_are_not_are_refused(tmp_path, seed):
    """As when bits flipped in memory on the way to the disk: the file's own digest is that of what was written."""
    older = two(tmp_path, seed)
    path = tmp_path / "step-00000016"
    shutil.copy(tmp_path / "step-00000008" / "__0_0.distcp", path / "__0_0.distcp")
    described = manifest.read(path)
    lying = manifest.Manifest(**{**{f: getattr(described, f) for f in described.__struct_fields__},
                                 "files": manifest.describe(path)})  # fmt: skip
    (path / manifest.MANIFEST).write_bytes(manifest.encode(lying))
    loaded, passed = newest(tmp_path)
    assert loaded.step == 8
    assert states.difference(loaded.state(trusting=True), older) is None
    assert "its digest differs" in passed[16]


def test_a_checkpoint_of_a_newer_format_is_told_as_such(tmp_path, seed):
    older = two(tmp_path, seed)
    path = tmp_path / "step-00000016" / manifest.MANIFEST
    envelope = json.loads(path.read_text())
    path.write_text(json.dumps({**envelope, "format": manifest.FORMAT + 1, "new": "field"}))
    loaded, passed = newest(tmp_path)
    assert loaded.step == 8
    assert states.difference(loaded.state(trusting=True), older) is None
    assert f"it has format {manifest.FORMAT + 1} and this relume reads up to {manifest.FORMAT}" in passed[16]
    assert "newer relume" in passed[16]


def test_nothing_of_a_damaged_index_is_unpickled(tmp_path):
    """PyTorch's index is a pickle, and relume has its own."""
    path = states.save(tmp_path, 1, {"model": {"weight": torch.ones(3)}}).path
    (path / ".metadata").write_bytes(b"cbuiltins\nexec\n(S'raise SystemExit(99)'\ntR.")
    with pytest.raises(Unusable, match=r"\.metadata"):
        disk.load(path)
    assert examine(path)[0].startswith(".metadata ")


def test_latest_is_for_people_only(tmp_path, seed):
    two(tmp_path, seed)
    latest = tmp_path / folder.LATEST
    for text in ("step-00000008", "step-99999999", "/nowhere", "."):
        latest.unlink()
        latest.symlink_to(text)
        assert newest(tmp_path)[0].step == 16
    latest.unlink()
    assert newest(tmp_path)[0].step == 16


def test_what_is_no_checkpoint_is_no_trouble(tmp_path, seed):
    assert newest(tmp_path) == (None, {})
    assert newest(tmp_path / "nowhere") == (None, {})
    (tmp_path / "step-00000099").write_text("a file")
    (tmp_path / "step-00000098").symlink_to(tmp_path)
    (tmp_path / "step-42").mkdir()
    (tmp_path / "step-00000097").mkdir()
    states.save(tmp_path, 8, states.small(seed))
    loaded, passed = newest(tmp_path)
    assert loaded.step == 8
    assert passed == {97: "manifest.json is missing"}


def test_nothing_is_loaded_if_all_are_damaged(tmp_path, seed):
    two(tmp_path, seed)
    (tmp_path / "step-00000008" / "skeleton").unlink()
    (tmp_path / "step-00000016" / ".metadata").unlink()
    assert newest(tmp_path) == (None, {16: ".metadata is missing", 8: "skeleton is missing"})


def test_writing_a_step_again_replaces_what_was_broken(tmp_path, seed):
    two(tmp_path, seed)
    (tmp_path / "step-00000016" / "skeleton").unlink()
    state = states.small(seed + 2)
    states.save(tmp_path, 16, state)
    loaded, passed = newest(tmp_path)
    assert (loaded.step, passed) == (16, {})
    assert states.difference(loaded.state(trusting=True), state) is None
    assert folder.tidy(tmp_path, 3).steps == []
    assert folder.steps(tmp_path) == [16, 8]
    assert folder.leftovers(tmp_path) == 0
