"""Disks that refuse and writers that are killed: what was whole before stays whole, and nothing else is ever loaded."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch

from relume.state import disk, folder
from relume.state.refusal import ROOM_BYTES, NotWritten
from tests.unit.state import states

STAGES = ["tensors", "manifest", "read back", "publish", "latest"]
_LIBC = ctypes.CDLL(None, use_errno=True)
_RDONLY, _REMOUNT, _BIND = 1, 32, 4096


@contextlib.contextmanager
def mounted(where, *, source="tmpfs", kind="tmpfs", flags=0, data=""):
    """Mount something for the length of a test; skips where that is not allowed."""
    if _LIBC.mount(str(source).encode(), str(where).encode(), kind.encode(), flags, data.encode()):
        pytest.skip(f"mounting is not allowed here ({os.strerror(ctypes.get_errno())})")
    try:
        yield where
    finally:
        _LIBC.umount2(str(where).encode(), 2)


def child(body):
    """Run `body` in a fork of this process; return its pid."""
    assert torch.get_num_threads() == 1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the scribe; a process with a pool of threads is not forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("stage", STAGES)
def test_a_writer_killed_at_any_stage_leaves_the_older_checkpoint(tmp_path, seed, stage):
    older, newer = states.small(seed), states.small(seed + 1)
    states.save(tmp_path, 8, older)
    pid = child(lambda: states.save(tmp_path, 16, newer, reached=lambda at: at == stage and os.kill(os.getpid(), 9)))
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    published = stage == "latest"
    loaded = disk.newest(tmp_path, lambda path, why: pytest.fail(f"{path}: {why}"))
    assert loaded.step == (16 if published else 8)
    assert states.difference(loaded.state(trusting=True), newer if published else older) is None
    assert folder.latest(tmp_path) == "step-00000008"  # durable first, then the pointer (scenario 10)
    assert folder.leftovers(tmp_path) == (0 if published else 1)
    assert folder.tidy(tmp_path, 3) == folder.Tidied([], 0 if published else 1)
    assert {path.name for path in tmp_path.iterdir()} - {"step-00000016"} == {"step-00000008", "latest"}


@pytest.mark.timeout(300)
def test_a_writer_killed_at_thirty_random_moments_never_leaves_a_torn_one(tmp_path, seed):
    """It writes one after the other, tidying up as the scribe does, and says which it believes to be durable."""
    chance = random.Random(seed)
    content = [states.small(seed + number) for number in range(4)]
    said = tmp_path / "said"
    where = tmp_path / "checkpoints"
    where.mkdir()
    step = rounds = leftovers = kills_while_writing = 0
    said.write_text("0")
    began = time.monotonic()
    for _ in range(3):
        states.save(tmp_path / "measure", 1, content[0])
    one_s = (time.monotonic() - began) / 3

    def write_for_ever():
        number = step
        while True:
            number += 1
            states.save(where, number, content[number % len(content)])
            folder.tidy(where, 2)
            (tmp_path / "saying").write_text(str(number))
            (tmp_path / "saying").replace(said)

    while rounds < 30 or kills_while_writing < 5 or step < 10:  # on a busy machine, too
        rounds += 1
        pid = child(write_for_ever)
        time.sleep(chance.uniform(0, 3 * one_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills_while_writing += folder.leftovers(where) > 0
        loaded = disk.newest(where, lambda path, why: pytest.fail(f"{path}: {why}"))
        durable = int(said.read_text())
        if loaded is None:
            assert durable == 0
            continue
        assert loaded.step >= durable
        assert states.difference(loaded.state(trusting=True), content[loaded.step % len(content)]) is None
        named = folder.latest(where)
        assert named is None or (where / named).is_dir()
        step = loaded.step
        leftovers = max(leftovers, folder.leftovers(where))
    folder.tidy(where, 2)
    assert folder.leftovers(where) == 0
    assert len(folder.steps(where)) <= 2
    assert leftovers <= 2  # they do not pile up


def refusal(where, step, state):
    """Save and return the refusal."""
    with pytest.raises(NotWritten) as caught:
        states.save(where, step, state)
    return caught.value


def test_a_full_disk_is_told_as_full_and_keeps_what_it_has(tmp_path, seed):
    state = states.small(seed)
    size = states.save(tmp_path / "measure", 1, state).size
    big = {"model": {"weight": torch.ones(2 << 20)}}
    where = tmp_path / "small"
    where.mkdir()
    with mounted(where, data=f"size={size * 2 + ROOM_BYTES}"):
        states.save(where, 8, state)
        refused = refusal(where, 16, big)
        assert refused.kind == "full"
        free = f"{os.statvfs(where).f_bavail * os.statvfs(where).f_frsize / 2**20:.1f} MiB"
        assert str(refused) == f"the disk of {where} is full: a checkpoint needs 12.0 MiB and {free} are free"
        assert folder.leftovers(where) == 0  # what little there was is free again
        loaded = disk.newest(where, lambda path, why: pytest.fail(why))
        assert states.difference(loaded.state(trusting=True), state) is None


def test_a_disk_that_fills_up_while_it_is_written_to_is_told_as_full(tmp_path, seed, monkeypatch):
    """Somebody took the room after it had been looked at: PyTorch's archive then fails with an error of its own."""
    state = states.small(seed)
    where = tmp_path / "small"
    where.mkdir()
    monkeypatch.setattr(disk, "check_room", lambda directory, needed: None)
    with mounted(where, data="size=2m"):
        states.save(where, 8, state)
        refused = refusal(where, 16, {"model": {"weight": torch.ones(2 << 20)}})
        assert (refused.kind, str(refused)) == ("full", f"the disk of {where} is full (No space left on device)")
        assert {path.name for path in where.iterdir()} == {"step-00000008", "latest"}
        assert disk.newest(where, lambda path, why: pytest.fail(why)).step == 8


def test_a_limit_on_file_sizes_is_like_a_full_disk(tmp_path, seed):
    """Needs no privileges; in a child, since the limit would hold for pytest, too."""
    states.save(tmp_path, 8, states.small(seed))

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        refused = refusal(tmp_path, 16, {"model": {"weight": torch.ones(1 << 20)}})
        assert refused.kind == "full", refused
        assert "File too large" in str(refused)

    assert os.waitpid(child(limited), 0)[1] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000008", "latest"}


def test_a_read_only_disk_is_told_as_such(tmp_path, seed):
    where = tmp_path / "there"
    states.save(where, 8, states.small(seed))
    with mounted(where, source=where, kind="none", flags=_BIND):
        assert _LIBC.mount(b"none", str(where).encode(), None, _BIND | _REMOUNT | _RDONLY, None) == 0
        refused = refusal(where, 16, states.small(seed))
        assert (refused.kind, str(refused)) == (
            "read-only",
            f"the disk of {where} is read-only (Read-only file system)",
        )
        assert disk.newest(where, lambda path, why: pytest.fail(why)).step == 8


@pytest.mark.parametrize("place", ["itself", "above"])
def test_a_file_in_the_folders_place_is_told(tmp_path, seed, place):
    (tmp_path / "file").write_text("mine")
    where = tmp_path / "file" if place == "itself" else tmp_path / "file" / "checkpoints"
    refused = refusal(where, 8, states.small(seed))
    assert refused.kind == "path"
    assert str(refused).startswith(f"{where} cannot be used (")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_was_removed_is_made_again(tmp_path, seed):
    where = tmp_path / "deep" / "checkpoints"
    states.save(where, 8, states.small(seed))
    shutil.rmtree(tmp_path / "deep")
    states.save(where, 16, states.small(seed))
    assert folder.steps(where) == [16]


def test_a_disk_that_returns_other_bytes_than_it_was_given_is_not_trusted(tmp_path, seed, monkeypatch):
    """What was written is read back before it gets its name, so that `latest` never moves to what cannot be loaded."""
    states.save(tmp_path, 8, states.small(seed))

    def spoil(stage):
        if stage == "read back":
            (path,) = tmp_path.glob(".partial-*/__0_0.distcp")
            data = bytearray(path.read_bytes())
            at = data.index(torch.full((64,), 7.0).numpy().tobytes())
            data[at] ^= 1
            path.write_bytes(data)

    with pytest.raises(NotWritten, match=r"did not read back: model.weight is damaged.*Is the disk failing") as error:
        states.save(tmp_path, 16, {"model": {"weight": torch.full((64,), 7.0)}}, reached=spoil)
    assert error.value.kind == "broken"
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000008", "latest"}


def test_an_io_error_anywhere_is_told_with_its_words(tmp_path, seed, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    refused = refusal(tmp_path, 8, states.small(seed))
    assert (refused.kind, str(refused)) == ("broken", f"{tmp_path} cannot be used (Input/output error)")
    assert folder.steps(tmp_path) == []


def test_a_file_system_without_links_costs_only_latest(tmp_path, seed, monkeypatch):
    def refuse(self, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    written = states.save(tmp_path, 8, states.small(seed))
    assert "`latest`" in written.note
    assert "Operation not permitted" in written.note
    assert disk.newest(tmp_path, lambda path, why: pytest.fail(why)).step == 8
