"""Two generations of state in a host's memory: whatever dies or flips, a whole one is there, and known as such."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relume.arena import memory
from relume.arena.layout import MIRROR_CHUNKS, MIRROR_WORDS
from relume.errors import MemoryShortage, StateError
from relume.state.area import chunk_bounds
from relume.state.mirror import digest_of
from relume.state.seen import SKELETON
from relume.state.tree import flatten
from tests.unit.state.hosts import LAYOUT, at_once, everything, host, share, state, told

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")


SMALL = 70_000
"""Floats that make two chunks."""


@pytest.fixture(autouse=True)
def _one_thread():
    """Have torch start none: a forked child would wait for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one():
    with host() as made:
        yield made


@pytest.fixture(scope="module")
def whole():
    """Return a host with mirrors of steps 8 and 16, for tests that leave it as it was; 16 stands in generation 1."""
    with host() as made:
        for step in (8, 16):
            made.mirror().write(step, state(step, size=SMALL), everything, at_once)
        yield made


class Killed(Exception):
    """Stands for a SIGKILL where a test wants to die at every place in turn."""


def dying(pieces):
    """Return a pen in which the writer dies before its next piece, after so many."""
    left = [pieces]

    def write(action):
        if not left[0]:
            raise Killed
        left[0] -= 1
        action()

    return write


def counting():
    """Return a pen and the list that grows with every use of it."""
    uses = []

    def write(action):
        uses.append(None)
        action()

    return write, uses


# Writing together ---------------------------------------------------------------------------------------------


def test_a_mirror_is_complete_when_every_member_has_written_its_chunks(one):
    members = [0, 2, 3]
    mirrors = {rank: one.mirror() for rank in members}
    written = []
    for rank in members:
        assert not one.mirror().has(8)
        written.append(mirrors[rank].write(8, state(8), share(members, rank), at_once))
    assert one.mirror().has(8)
    assert one.mirror().newest() == 8
    assert sum(each.mine_bytes for each in written) == written[0].tensor_bytes + written[0].skeleton_bytes
    assert all(each.mine_bytes > 0 for each in written)
    found, tree = one.mirror().read()
    assert found == told(tree) == 8
    assert one.mirror().state_bytes(8) == written[0].tensor_bytes + written[0].skeleton_bytes
    assert one.mirror().host_bytes() >= one.mirror().state_bytes(8)


def test_members_write_at_the_same_time(one, seed):
    members = list(range(4))
    chance = random.Random(seed)
    delays = [[chance.random() / 1000 for _ in range(400)] for _ in members]

    def work(rank):
        mirror, tree = one.mirror(), state(8, size=2_000_000)

        def write(action):
            time.sleep(delays[rank].pop())  # not for anything to come about: for another order every time
            action()

        mirror.write(8, tree, share(members, rank), write)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told(one.mirror().read()[1]) == 8


def test_a_mirror_that_is_there_is_not_written_again(one):
    one.mirror().write(8, state(8), everything, at_once)
    write, uses = counting()
    assert one.mirror().write(8, state(8), everything, write).mine_bytes == 0
    assert not uses


def test_generations_take_turns_and_the_older_one_stays(one):
    mirror = one.mirror()
    for step in (8, 16, 24, 32):
        mirror.write(step, state(step), everything, at_once)
        assert mirror.newest() == step
        assert mirror.newest(step - 1) == max(0, step - 8)
        assert mirror.has(max(8, step - 8))
        assert told(mirror.read(max(8, step - 8))[1]) == max(8, step - 8)
    assert not mirror.has(16)


def test_no_piece_is_larger_than_a_mebibyte(one):
    """Under the pen, so that a ballot is promised in time."""
    mirror, sizes = one.mirror(), []
    big = state(8, size=20_000_000)

    def write(action):
        before = time.perf_counter()
        action()
        sizes.append(time.perf_counter() - before)

    written = mirror.write(8, big, everything, write)
    chunks = len(chunk_bounds(written.tensor_bytes))
    assert len(sizes) >= 2 * (chunks + 1) + written.tensor_bytes / (1 << 20)


def test_state_without_tensors_and_state_of_none_are_mirrored(one):
    mirror = one.mirror()
    mirror.write(8, {"count": 8}, share([0, 1], 0), at_once)
    assert mirror.read() == (8, {"count": 8})
    mirror.write(16, None, everything, at_once)
    assert mirror.read() == (16, None)


def test_step_0_may_be_mirrored_and_is_told_from_nothing(one):
    mirror = one.mirror()
    assert (mirror.newest(), mirror.has(0)) == (0, False)
    with pytest.raises(StateError, match="no mirror"):
        mirror.read()
    mirror.write(0, state(0), everything, at_once)
    assert (mirror.newest(), mirror.has(0)) == (0, True)
    assert told(mirror.read()[1]) == 0


def test_parts_are_carried_to_another_host_as_they_are(one):
    one.mirror().write(8, state(8), everything, at_once)
    step, skeleton, tensors = one.mirror().parts()
    with host() as other:
        other.mirror().write_parts(step, (skeleton, tensors), everything, at_once)
        assert other.mirror().digest(8) == one.mirror().digest(8)
        assert told(other.mirror().read()[1]) == 8


def test_what_was_read_is_private(one):
    mirror = one.mirror()
    mirror.write(8, state(8), everything, at_once)
    _, tree = mirror.read()
    storages = {tensor.untyped_storage().data_ptr() for tensor in [tree["big"], *tree["many"]]}
    assert len(storages) == 21
    tree["big"].fill_(-1)
    assert told(mirror.read()[1]) == 8
    for descriptor in one.descriptors:
        os.ftruncate(descriptor, 0)
    assert tree["big"][-1] == -1


# Deaths -------------------------------------------------------------------------------------------------------


def test_a_death_at_any_piece_leaves_the_older_generation_whole(one):
    one.mirror().write(8, state(8), everything, at_once)
    write, uses = counting()
    with host() as other:
        other.mirror().write(16, state(16), everything, write)
    for pieces in range(len(uses)):
        step = 16 + 2 * pieces  # chunks that were sealed in the attempt before count for its own step alone
        with pytest.raises(Killed):
            one.mirror().write(step, state(step), everything, dying(pieces))
        assert one.mirror().newest() == 8
        assert not one.mirror().has(step)
        found, tree = one.mirror().read()
        assert found == told(tree) == 8
    one.mirror().write(100, state(100), everything, at_once)
    assert told(one.mirror().read()[1]) == 100


def test_a_worker_that_the_kernel_kills_in_the_middle_leaves_the_older_one_whole(one, seed):
    chance = random.Random(seed)
    one.mirror().write(8, state(8, size=2_000_000), everything, at_once)
    for attempt in range(10):
        step = 16 + 2 * attempt
        child = os.fork()
        if child == 0:
            write_until_killed(one, step, chance.randrange(30))
        chance.random()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it was killed before the end"
        assert told(one.mirror().read()[1]) == 8
    one.mirror().write(100, state(100, size=2_000_000), everything, at_once)
    assert told(one.mirror().read()[1]) == 100


def write_until_killed(one, step, pieces):
    count = [0]

    def write(action):
        if count[0] == pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        count[0] += 1
        action()

    try:
        one.mirror().write(step, state(step, size=2_000_000), everything, write)
    finally:
        os._exit(1)


def test_who_inherits_chunks_writes_only_what_is_missing(one):
    tree = state(8, size=1_000_000)
    one.mirror().write(8, tree, share([0, 1], 0), at_once)
    size = one.mirror().write(8, tree, share([1], 1), at_once)
    assert 0 < size.mine_bytes < size.tensor_bytes
    assert told(one.mirror().read()[1]) == 8


def test_a_chunk_that_passes_to_another_view_is_let_go_even_if_it_comes_back(one):
    """A owns it, then B, then A again: A must not go on where it was, since B has written there meanwhile."""
    owner = ["A"]
    a, b = one.mirror(), one.mirror()
    tree = state(8, size=600_000)
    log = []

    def write_a(action):
        before = bytes(np.array(a._generations[0]._words))
        action()
        log.append(("A", before != bytes(np.array(a._generations[0]._words))))
        if len(log) == 2:  # in the middle of its first chunk, the skeleton
            owner[0] = "B"
            with pytest.raises(Killed):
                b.write(8, tree, lambda chunk, chunks: owner[0] == "B", dying(2))
            owner[0] = "A"

    written = a.write(8, tree, lambda chunk, chunks: owner[0] == "A", write_a)
    assert written.mine_bytes == written.tensor_bytes, "all but the skeleton, which B has claimed"
    assert not a.has(8)
    a.write(8, tree, everything, at_once)
    assert told(a.read()[1]) == 8


def test_a_worker_stops_writing_a_chunk_as_soon_as_it_is_another_s(one):
    """Before the other has begun: from a view on, only its owners write."""
    owner, pieces = ["A"], []
    mirror = one.mirror()

    def write(action):
        before = os.pread(one.control, 8 * MIRROR_WORDS, 8 * LAYOUT.mirror(0))
        content = mirror._generations[0]._bytes.copy()
        action()
        changed = before != os.pread(one.control, 8 * MIRROR_WORDS, 8 * LAYOUT.mirror(0))
        changed = changed or not np.array_equal(content, mirror._generations[0]._bytes)
        assert owner[0] == "A" or not changed
        pieces.append(None)
        owner[0] = "A" if len(pieces) < 5 else "B"

    written = mirror.write(8, state(8, size=600_000), lambda chunk, chunks: owner[0] == "A", write)
    assert 5 <= len(pieces) <= 6
    assert written.mine_bytes < written.tensor_bytes


def test_a_writer_that_is_turned_away_writes_nothing(one):
    """If the pen is not given at all, as to a worker that is fenced, the old content is as it was."""
    for step in (8, 16):
        one.mirror().write(step, state(step), everything, at_once)
    assert one.mirror().write(24, state(24), everything, lambda action: None).mine_bytes == 0
    assert told(one.mirror().read(8)[1]) == 8


# When it is due -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 3, 8])
def test_without_deaths_a_mirror_is_due_every_so_many_steps(every):
    with host(every) as one:
        mirror, due = one.mirror(), []
        for step in range(5 * every):
            if mirror.due(step):
                due.append(step)
                mirror.write(step, state(step, size=10), everything, at_once)
        assert due == [every, 2 * every, 3 * every, 4 * every]


def test_a_mirror_that_came_to_nothing_is_tried_again_two_steps_later(one):
    mirror, due = one.mirror(), []
    for step in range(14):
        if mirror.due(step):
            due.append(step)
            if step < 12:
                mirror.write(step, state(step, size=10), everything, lambda action: None)
    assert due == [8, 10, 12]


def test_without_a_distance_none_is_ever_due():
    with host(0) as one:
        assert not any(one.mirror().due(step) for step in range(50))


class Baton:
    """Lets one thread at a time do one thing, so that a seed decides every order of events."""

    def __init__(self):
        self._turn, self._changed = None, threading.Condition()

    def give(self, who):
        with self._changed:
            self._turn = who
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn is None)

    def pause(self, who):
        with self._changed:
            self._turn = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn == who)

    def leave(self):
        with self._changed:
            self._turn = None
            self._changed.notify_all()


class History:
    """Workers that go through boundaries, write, die and join, in an order drawn by `chance`.

    `lag`: how many boundaries a worker may be ahead of the slowest. 1 if all have taken the step before; a member
    without shards may be one further behind.
    """

    def __init__(self, one, chance, *, end, lag):
        self.one, self.chance, self.end, self.lag = one, chance, end, lag
        self.baton = Baton()
        self.passed, self.since, self.doomed = {}, {}, set()
        self.decisions = {}
        self.threads = []
        self.last_death = -1
        for _ in range(3):
            self.join(0)

    def join(self, step):
        name = len(self.since)
        self.since[name], self.passed[name] = step, step - 1
        thread = threading.Thread(target=self.live, args=(name,))
        self.threads.append(thread)
        thread.start()

    def members(self, step):
        return sorted(name for name in self.passed if self.since[name] <= step)

    def live(self, name):
        self.baton.pause(name)
        mirror = self.one.mirror()
        try:
            for step in range(self.since[name], self.end):
                while min(self.passed.values()) < step - self.lag:
                    self.step_aside(name)
                self.decisions.setdefault(step, {})[name] = mirror.due(step)
                if mirror.due(step):

                    def write(action):
                        self.step_aside(name)
                        action()

                    def owns(chunk, chunks, step=step):
                        members = self.members(step)
                        return members[chunk * len(members) // chunks] == name

                    mirror.write(step, state(step, size=SMALL), owns, write)
                self.passed[name] = step
                self.step_aside(name)
        except Killed:
            pass
        del self.passed[name]
        self.baton.leave()

    def step_aside(self, name):
        self.baton.pause(name)
        if name in self.doomed:
            raise Killed

    def run(self):
        watcher, newest, speed = self.one.mirror(), 0, {}
        while self.passed:
            event = self.chance.random()
            if event > 0.95 or speed.keys() != self.passed.keys():  # now one is slow, now another
                speed = {name: 10 ** self.chance.uniform(-2, 0) for name in sorted(self.passed)}
            front = max(self.passed.values())
            if event < 0.01 and len(self.passed) > 1 and front < self.end - 2 * self.one.every - 6:
                victim = self.chance.choice(sorted(self.passed))
                self.doomed.add(victim)
                self.last_death = front
                self.baton.give(victim)  # a dead worker is out of the view before anybody goes on
            elif event < 0.02 and len(self.passed) < 4:
                self.join(front + 2)
            else:
                self.baton.give(self.chance.choices(list(speed), list(speed.values()))[0])
            assert watcher.newest() >= newest, "what was complete is not lost but to something newer"
            newest = watcher.newest()
            if newest and event > 0.97:
                found, tree = watcher.read()
                assert found == told(tree) == newest
        for thread in self.threads:
            thread.join()
        return newest


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("every", [2, 3, 8])
def test_all_workers_agree_on_when_it_is_due_whatever_died_in_between(every, lag, seed):
    chance = random.Random(seed)
    for _ in range(8):
        with host(every) as one:
            history = History(one, chance, end=12 + 5 * every, lag=lag)
            newest = history.run()
            for step, decisions in history.decisions.items():
                assert len(set(decisions.values())) == 1, (step, decisions)
            assert newest > history.end - every - 3, "once nobody dies any more, mirrors come as they should"


# Reading ------------------------------------------------------------------------------------------------------


def test_a_reader_beside_a_busy_writer_reads_whole_states_only(one, seed):
    one.mirror().write(2, state(2), everything, at_once)
    child = os.fork()
    if child == 0:
        chance = random.Random(seed)
        mirror = one.mirror()
        try:
            for step in range(4, 1_000_000, 2):
                mirror.write(step, state(step), everything, at_once)
                time.sleep(chance.random() / 200)  # a step's time: without any, no reader ever comes to an end
        finally:
            os._exit(1)
    try:
        mirror, seen = one.mirror(), set()
        deadline = time.monotonic() + 60
        while len(seen) < 40 and time.monotonic() < deadline:
            found, tree = mirror.read()
            assert found == told(tree)
            assert mirror.faults == ()
            seen.add(found)
        assert len(seen) == 40
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_generation_that_is_rewritten_under_a_reader_is_torn_and_not_corrupt(one, monkeypatch):
    for step in (8, 16):
        one.mirror().write(step, state(step), everything, at_once)
    mirror, preadv, times = one.mirror(), os.preadv, []

    def slow(descriptor, buffers, offset):
        if not times:  # in the middle of the first read, two more mirrors are written
            times.append(None)
            one.mirror().write(24, state(24), everything, at_once)
            one.mirror().write(32, state(32), everything, at_once)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", slow)
    found, tree = mirror.read()
    assert found == told(tree) == 32
    assert mirror.faults == ()


@given(st.data())
def test_a_flipped_bit_of_the_content_is_found_and_the_other_generation_used(whole, data):
    mirror = whole.mirror()
    _, skeleton = flatten(state(16, size=SMALL))
    content = os.fstat(whole.descriptors[1]).st_size
    offset, bit = data.draw(st.integers(0, content - 1)), data.draw(st.integers(0, 7))
    tensor_bytes = mirror.state_bytes(16) - len(skeleton)
    start = -(-tensor_bytes // 4096) * 4096
    matters = offset < tensor_bytes or start <= offset < start + len(skeleton)
    whole.flip(1, offset, bit)
    try:
        found, tree = mirror.read()
        assert found == told(tree) == (8 if matters else 16)
        assert len(mirror.faults) == matters
        if matters:
            assert "the mirror of step 16 is corrupt: the digest of its" in mirror.faults[0]
            with pytest.raises(StateError, match=r"no mirror of step 16 that can be trusted; .* is corrupt"):
                mirror.read(16)
    finally:
        whole.flip(1, offset, bit)
    assert told(mirror.read()[1]) == 16
    assert mirror.faults == ()


@given(st.integers(0, MIRROR_WORDS - 1), st.integers(0, 63))
def test_a_flipped_bit_of_the_words_never_gives_a_wrong_state(whole, word, bit):
    mirror = whole.mirror()
    whole.flip_word(1, word, bit)
    try:
        found, tree = mirror.read()
        assert found == told(tree)
        chunks = len(chunk_bounds(mirror.state_bytes(8)))
        seals, digests = [*range(chunks), SKELETON], [MIRROR_CHUNKS + 1 + chunk for chunk in (*range(chunks), SKELETON)]
        if word in seals:
            assert (found, mirror.faults) == (8, ())
        if word in digests:
            assert found == 8
            assert len(mirror.faults) == 1
    finally:
        whole.flip_word(1, word, bit)


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 70), min_size=MIRROR_WORDS, max_size=MIRROR_WORDS))
def test_garbage_in_the_words_is_no_mirror_and_breaks_nothing(whole, values):
    before = os.pread(whole.control, 8 * MIRROR_WORDS, 8 * LAYOUT.mirror(1))
    whole.set_words(1, values)
    try:
        assert_harmless(whole.mirror())
        whole.set_words(1, [17] * (MIRROR_WORDS - 6) + values[-6:])  # and sealed garbage
        assert_harmless(whole.mirror())
    finally:
        os.pwrite(whole.control, before, 8 * LAYOUT.mirror(1))


def assert_harmless(mirror):
    assert told(mirror.read()[1]) == 8
    assert isinstance(mirror.due(20), bool)
    assert mirror.newest(10) in {8, 9}
    assert isinstance(mirror.has(16), bool)


def test_two_corrupt_generations_are_both_told_of():
    with host() as one:
        for step in (8, 16):
            one.mirror().write(step, state(step), everything, at_once)
        one.flip(0, 5)
        one.flip(1, 700_000)
        mirror = one.mirror()
        with pytest.raises(StateError, match=r"step 16 is corrupt.*chunk 2 differs.*step 8 is corrupt.*chunk 0"):
            mirror.read()
        assert len(mirror.faults) == 2


def test_a_file_that_was_cut_short_is_corrupt_and_no_fault_of_the_reader():
    with host() as one:
        for step in (8, 16):
            one.mirror().write(step, state(step), everything, at_once)
        mirror = one.mirror()
        os.ftruncate(one.descriptors[1], 4096)
        assert told(mirror.read()[1]) == 8
        assert "its size cannot be" in mirror.faults[0]


# Digests ------------------------------------------------------------------------------------------------------


def test_the_digest_of_a_mirror_is_that_of_the_live_state_whoever_wrote_it(one):
    members = [0, 1, 2]
    for rank in members:
        one.mirror().write(8, state(8, size=900_000), share(members, rank), at_once)
    expected = one.mirror().digest(8)
    assert one.mirror().digest_of(state(8, size=900_000)) == expected
    assert digest_of(one.mirror().read()[1]) == expected
    assert len(expected) == 16


def test_any_change_of_the_state_changes_its_digest():
    def variants():
        yield state(8)
        for change in (
            lambda tree: tree["big"].view(torch.int32)[123_456].bitwise_xor_(1),
            lambda tree: tree["many"][19].neg_(),
            lambda tree: tree.update(odd=tree["odd"].t().contiguous().t()),
            lambda tree: tree.update(odd=tree["odd"].view(5, 3)),
            lambda tree: tree["plain"].update(step=8.0),
            lambda tree: tree["plain"].update(step=True),
            lambda tree: tree.update(many=tuple(tree["many"])),
            lambda tree: tree.update(more=None),
            lambda tree: tree.pop("odd"),
        ):
            tree = state(8)
            change(tree)
            yield tree

    digests = [digest_of(tree) for tree in variants()]
    assert len(set(digests)) == len(digests)


def test_the_digest_of_a_mirror_that_is_gone_is_no_digest(one):
    with pytest.raises(StateError, match="step 8"):
        one.mirror().digest(8)


# Memory -------------------------------------------------------------------------------------------------------


def maps_of_mirror():
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum("relume-test-a" in line or "relume-test-b" in line for line in lines)


def test_state_may_grow_and_shrink_and_old_maps_go(one):
    before = maps_of_mirror()
    mirror = one.mirror()
    for index, size in enumerate([10, 1000, 300_000, 20, 900_000, 500_000, 2_000_000]):
        step = 8 + 8 * index
        mirror.write(step, state(step, size=size), everything, at_once)
        assert told(mirror.read()[1]) == step
        assert told(one.mirror().read()[1]) == step
    assert maps_of_mirror() == before + 2


def test_reading_maps_nothing(one):
    one.mirror().write(8, state(8), everything, at_once)
    before = maps_of_mirror()
    one.mirror().read()
    assert maps_of_mirror() == before


def test_a_shortage_says_what_is_needed_and_leaves_everything_as_it_was(one, monkeypatch):
    one.mirror().write(8, state(8), everything, at_once)
    mirror = one.mirror()
    monkeypatch.setattr(memory, "available_bytes", lambda: 300 << 20)
    with pytest.raises(MemoryShortage, match=r"needs 76 MiB more and 300 MiB are available .*--mirror-every"):
        mirror.write(16, state(16, size=20_000_000), everything, at_once)
    assert os.fstat(one.descriptors[1]).st_size == 0
    assert told(mirror.read()[1]) == 8
    mirror.write(16, state(16), everything, at_once)
    assert told(mirror.read()[1]) == 16


def test_room_that_another_worker_is_making_is_not_missing(one, monkeypatch):
    """Of 80 MB, 60 are allocated by somebody already, who is on the way to the rest."""
    keep_size = 1  # a file whose allocation is under way has its old size still
    assert ctypes.CDLL(None).fallocate(one.descriptors[0], keep_size, ctypes.c_long(0), ctypes.c_long(60_000_000)) == 0
    monkeypatch.setattr(memory, "available_bytes", lambda: (256 << 20) + 25_000_000)
    one.mirror().write(8, state(8, size=20_000_000), everything, at_once)
    assert one.mirror().has(8)


def test_state_that_cannot_be_kept_is_refused_before_anything_is_written(one):
    mirror = one.mirror()
    with pytest.raises(StateError, match=r"plain\.hook"):
        mirror.write(8, {"plain": {"hook": lambda: None}}, everything, at_once)
    assert mirror.newest() == 0


@pytest.mark.bench
def test_how_fast_it_is(one, capsys):
    torch.set_num_threads(1)
    mirror = one.mirror()
    tree = {f"p{index}": torch.randn(350_000) for index in range(150)}  # 210 MB
    source = torch.cat(list(tree.values()))
    target = torch.empty_like(source)
    rows = []
    for step in range(2, 16, 2):
        start = time.perf_counter()
        target.copy_(source)
        copied = time.perf_counter()
        seconds = mirror.write(step, tree, everything, at_once).seconds
        wrote = time.perf_counter()
        mirror.read()
        end = time.perf_counter()
        rows.append([source.nbytes / 1e6 / each for each in (copied - start, seconds, end - wrote)])
    best = [max(column) for column in zip(*rows[2:], strict=True)]
    with capsys.disabled():
        print(f"\n210 MB: memcpy {best[0]:.0f} MB/s, write {best[1]:.0f} MB/s, read and verify {best[2]:.0f} MB/s")
