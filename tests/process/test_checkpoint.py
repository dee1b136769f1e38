"""Checkpoints with the real scribe: from the mirror to the disk and back, past kills, stops and disks that refuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from relume.agent import keeper as keeper_module
from relume.agent import scribe as scribe_module
from relume.agent.arena import Arena
from relume.agent.keeper import Keeper
from relume.arena import memory
from relume.cli.main import main
from relume.errors import ConfigError
from relume.state import disk, folder
from relume.state.mirror import Mirror
from relume.state.scribe import TRAP_VARIABLE
from relume.wire.events import CheckpointFailed, CheckpointWritten
from tests import processes
from tests.agents import Agent
from tests.training import plain, script
from tests.unit.state import states
from tests.unit.state.test_disk_trouble import mounted

EVERY = 8
WAIT_S = 60.0


class Host:
    """An arena as an agent has it, a mirror as workers write it, and a keeper with a scribe of flesh and blood."""

    def __init__(self, directory, **options):
        self.events, self.said, self.directory = [], [], directory
        self.arena = Arena(2, EVERY)
        layout = self.arena.layout
        words = memoryview(memory.attach(self.arena.control_fd, layout.size)).cast("Q")  # a worker's own map
        self.mirror = Mirror(words, layout, tuple(self.arena.mirror_fds), EVERY)
        mirrors = ",".join(map(str, self.arena.mirror_fds))
        self.keeper = Keeper(
            directory,
            **{"every_steps": EVERY, "every_s": None, "keep": 3, **options},
            mirror=f"control={self.arena.control_fd} mirrors={mirrors} seats={layout.workers} kept={layout.kept}",
            descriptors=[self.arena.control_fd, *self.arena.mirror_fds],
            newest=self.mirror.newest,
            facts=lambda: states.FACTS,
            emit=self.events.append,
            say=self.said.append,
        )

    def write(self, step, state):
        """Be all workers at once, at the boundary before `step`."""
        self.mirror.write(step, state, lambda chunk, chunks: True, lambda action: action())

    @property
    def scribe(self):
        """The pid of its scribe; 0: there is none."""
        return self.keeper._scribe.pid if self.keeper._scribe is not None else 0

    def of(self, kind):
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


@contextlib.asynccontextmanager
async def host(directory, **options):
    """A host whose keeper is started, and finished at the end if the test has not done so."""
    here = Host(directory, **options)
    try:
        yield here
        await here.keeper.finish(WAIT_S)
    finally:
        await here.keeper.finish(0.0, write=False)
        here.arena.close()


async def until(what):
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def newest(directory):
    return disk.newest(directory, lambda path, why: pytest.fail(f"{path}: {why}"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(keeper_module, "POLL_S", 0.01)
    monkeypatch.setattr(scribe_module, "NICENESS", 1)  # beside whatever else runs here, imports would take long


def run(body):
    return asyncio.run(body())


def test_the_mirror_goes_to_the_disk_and_from_there_into_another_runs_mirror(tmp_path, seed):
    where = tmp_path / "checkpoints"
    content = {step: states.small(seed + step) for step in (8, 16, 24)}

    async def before():
        async with host(where) as here:
            here.keeper.check(resume=False)
            here.keeper.start()
            here.write(8, content[8])
            await until(lambda: here.keeper.written == 8)
            assert os.getpriority(os.PRIO_PROCESS, here.scribe) == os.getpriority(os.PRIO_PROCESS, 0) + 1
            assert os.getpgid(here.scribe) == here.scribe  # a Ctrl-C at the terminal does not reach it
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(here.scribe, number)  # nor does what ends everything else
            here.write(16, content[16])
            await until(lambda: here.keeper.written == 16)
            here.write(24, content[24])
            assert await here.keeper.finish(WAIT_S) == 24
            assert here.scribe == 0
            assert [event.step for event in here.of(CheckpointWritten)] == [8, 16, 24]
            assert here.of(CheckpointFailed) == []
            assert all(event.bytes > 0 and event.seconds > 0 for event in here.events)

    async def after():
        async with host(where) as here:
            here.keeper.check(resume=True)
            resumed = await here.keeper.resume()
            assert (resumed.step, resumed.facts, resumed.passed_over) == (24, states.FACTS, ())
            step, state = here.mirror.read()
            assert step == 24
            assert states.difference(state, content[24]) is None
            assert here.mirror.digest(24) == here.mirror.digest_of(content[24])
            here.keeper.start()
            await asyncio.sleep(0.1)
            assert here.events == []  # what was just read is not written again

    run(before)
    assert folder.steps(where) == [24, 16, 8]
    assert states.difference(newest(where).state(trusting=True), content[24]) is None
    run(after)
    assert folder.steps(where) == [24, 16, 8]


def test_state_of_the_scripts_own_classes_passes_through_a_scribe_that_does_not_have_them(tmp_path):
    """The scribe never imports the script."""
    code = """
        import sys, types
        module = types.ModuleType("only_here")
        sys.modules["only_here"] = module
        exec('''
        class Best:
            def __init__(self, loss, weight): self.loss, self.weight = loss, weight
        '''.replace(chr(10) + "        ", chr(10)), module.__dict__)
    """
    exec(textwrap.dedent(code), {})  # noqa: S102 - a class that no other process can import
    best = sys.modules["only_here"].Best(0.5, torch.full((3,), 7.0))
    state = {"model": {"weight": torch.ones(3)}, "relume": {"vars": {"best": best}}}

    async def body():
        async with host(tmp_path) as here:
            here.write(8, state)
            await here.keeper.finish(WAIT_S)
            assert here.keeper.written == 8, here.said
        async with host(tmp_path) as here:
            await here.keeper.resume()
            _, read = here.mirror.read()
            again = read["relume"]["vars"]["best"]
            assert (type(again), again.loss) == (type(best), 0.5)
            assert again.weight.equal(best.weight)
            assert here.mirror.digest(8) == here.mirror.digest_of(state)

    try:
        run(body)
    finally:
        del sys.modules["only_here"]


@pytest.mark.parametrize("stage", ["mirror", "tensors", "publish", "latest"])
def test_a_scribe_killed_while_it_writes_is_replaced_and_nothing_torn_is_left(tmp_path, seed, monkeypatch, stage):
    monkeypatch.setenv(TRAP_VARIABLE, f"{stage}:kill")

    async def body():
        async with host(tmp_path) as here:
            here.write(8, states.small(seed))
            here.keeper.start()
            await until(lambda: here.of(CheckpointFailed))
            monkeypatch.delenv(TRAP_VARIABLE)
            await until(lambda: here.keeper.written == 8)
            gone = "the process that writes checkpoints is gone: it was killed by SIGKILL"
            assert here.said[0] == f"no checkpoint was written: {gone}; training goes on"
            assert here.said[1].startswith("checkpoint of step 8 is in ")

    run(body)
    assert states.difference(newest(tmp_path).state(trusting=True), states.small(seed)) is None
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000008", "latest"}


def test_scribes_killed_at_random_moments_cost_no_checkpoint_that_was_there(tmp_path, seed):
    chance = random.Random(seed)
    content = {step: states.small(seed + step) for step in range(8, 48, 8)}

    async def body():
        async with host(tmp_path) as here:
            here.keeper.start()
            for step, state in content.items():
                here.write(step, state)
                await until(lambda: here.scribe and here.keeper._ready)
                durable = here.keeper.written
                await asyncio.sleep(chance.uniform(0, 0.06))
                if here.scribe:
                    os.kill(here.scribe, signal.SIGKILL)
                await until(lambda: here.scribe == 0)
                loaded = newest(tmp_path)
                assert (loaded.step if loaded else 0) >= durable
                here.keeper._upkeep._not_before_s = 0.0  # the wait before the next life is tested elsewhere
            await here.keeper.finish(WAIT_S)
            assert here.keeper.written == 40

    run(body)
    assert states.difference(newest(tmp_path).state(trusting=True), content[40]) is None
    assert folder.leftovers(tmp_path) == 0


def test_a_scribe_that_stands_still_is_told_holds_up_nobody_and_is_gone_at_the_end(tmp_path, seed, monkeypatch):
    """As on a disk that hangs."""
    monkeypatch.setenv(TRAP_VARIABLE, "publish:stop")
    monkeypatch.setattr("relume.agent.upkeep.SLOW_S", 0.2)

    async def body():
        here = Host(tmp_path)
        here.write(8, states.small(seed))
        here.keeper.start()
        await until(lambda: any("slow or hangs" in text for text in here.said))
        pid, ticks = here.scribe, 0
        for _ in range(20):  # the agent's loop goes on
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks == 20
        here.write(16, states.small(seed + 1))
        began = time.monotonic()
        assert await here.keeper.finish(0.3) == 0
        assert time.monotonic() - began < 20
        assert sum("slow or hangs" in text for text in here.said) == 2  # once, and once at the end
        assert processes.table().get(pid) is None
        here.arena.close()

    run(body)
    assert newest(tmp_path) is None
    folder.tidy(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_once_and_written_to_again_when_there_is_room(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MAX", 0.02)
    monkeypatch.setattr("relume.agent.upkeep.RETRY_S_MIN", 0.02)
    where = tmp_path / "small"
    where.mkdir()

    async def body():
        async with host(where) as here:
            here.keeper.start()
            (where / "somebody elses").write_bytes(bytes(5 << 20))
            here.write(8, states.small(seed))
            await until(lambda: len(here.of(CheckpointFailed)) >= 3)
            (told,) = here.said
            assert told.startswith(f"no checkpoint was written: the disk of {where} is full: a checkpoint needs ")
            assert told.endswith("; training goes on")
            (where / "somebody elses").unlink()
            await until(lambda: here.keeper.written == 8)
            assert here.said[1].startswith("checkpoint of step 8 is in ")

    with mounted(where, data="size=8m"):
        run(body)


def test_two_runs_do_not_share_a_folder(tmp_path, seed):
    async def body():
        async with host(tmp_path) as first, host(tmp_path) as second:
            first.write(8, states.small(seed))
            first.keeper.start()
            await until(lambda: first.keeper.written == 8)
            second.write(16, states.small(seed))
            second.keeper.start()
            await until(lambda: second.said)
            assert "another run writes its checkpoints into" in second.said[0]
            assert "--checkpoint-dir" in second.said[0]
            await second.keeper.finish(WAIT_S)
            assert second.keeper.written == 0

    run(body)
    assert folder.steps(tmp_path) == [8]


def test_a_mirror_that_is_corrupt_is_not_written(tmp_path, seed):
    async def body():
        async with host(tmp_path) as here:
            here.write(8, states.small(seed))
            os.pwrite(here.arena.mirror_fds[0], b"\xff\x01\xff", 200)
            os.pwrite(here.arena.mirror_fds[1], b"\xff\x01\xff", 200)
            here.keeper.start()
            await until(lambda: here.said)
            assert "corrupt" in here.said[0]

    run(body)
    assert folder.steps(tmp_path) == []


def test_going_on_falls_back_past_what_is_damaged_and_tells(tmp_path, seed):
    for step in (8, 16, 24):
        states.save(tmp_path, step, states.small(seed + step))
    (tmp_path / "step-00000024" / "__0_0.distcp").write_bytes(b"")
    (tmp_path / "step-00000016" / "skeleton").unlink()

    async def body():
        async with host(tmp_path, keep=2) as here:
            resumed = await here.keeper.resume()
            assert resumed.step == 8
            _, state = here.mirror.read()
            assert states.difference(state, states.small(seed + 8)) is None
            assert [(event.step, event.reason.split(" (")[0]) for event in here.of(CheckpointFailed)] == [
                (24, "__0_0.distcp is cut short"),
                (16, "skeleton is missing"),
            ]
            here.keeper.start()
            here.write(16, states.small(seed + 16))
            await until(lambda: here.keeper.written == 16)

    run(body)
    assert folder.steps(tmp_path) == [24, 16, 8]  # the broken one of 16 is whole now; that of 24 is still newer
    (tmp_path / "step-00000016" / ".metadata").write_bytes(b"")
    (tmp_path / "step-00000008" / "manifest.json").unlink()

    async def hopeless():
        here = Host(tmp_path)
        with pytest.raises(ConfigError) as error:
            await here.keeper.resume()
        assert [str(error.value).count(f"step-{step:08}: ") for step in (24, 16, 8)] == [1, 1, 1]
        assert here.scribe == 0
        here.arena.close()

    run(hopeless)


def descriptors():
    """What this process has open, but for the maps that this test's workers would have."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(name for name in found if not name.startswith("/memfd:"))


def test_a_scribe_dies_with_its_agent_and_leaves_the_agent_as_it_was(tmp_path, seed):
    async def count():
        before = descriptors()
        for number in range(3):
            where = tmp_path / str(number)
            here = Host(where)
            here.write(8, states.small(seed))
            here.keeper.start()
            await here.keeper.finish(WAIT_S)
            assert here.keeper.written == 8
            here.mirror = here.newest = None
            here.arena.close()
        return before, descriptors()

    before, after = run(count)
    assert after == before
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            run(lambda: _be_killed(tmp_path / "killed", write))
        finally:
            os._exit(70)
    os.close(write)
    with os.fdopen(read) as pipe:
        scribe = int(pipe.readline())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    end = time.monotonic() + WAIT_S
    while (process := processes.table().get(scribe)) is not None and process.state != "Z":
        assert time.monotonic() < end
        time.sleep(0.005)


async def _be_killed(directory, write):
    here = Host(directory)
    here.keeper.start()
    await until(lambda: here.scribe and here.keeper._ready)
    os.write(write, f"{here.scribe}\n".encode())
    await asyncio.sleep(WAIT_S)


# The command line ---------------------------------------------------------------------------------------------------


@pytest.fixture
def relume(tmp_path, monkeypatch, capsys):
    """`relume checkpoint` in a folder, as a person would call it, but in this process: torch is imported already."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        try:
            found = main(["checkpoint", *map(str, words)])
        except SystemExit as error:  # argparse
            found = error.code
        out, err = capsys.readouterr()
        assert found == code, out + err
        return out, err

    return call


def test_the_command_needs_no_torch_to_list(tmp_path, seed):
    """Nor does it take a terminal, a run or an environment."""
    states.save(tmp_path, 8, states.small(seed))
    code = """
import sys
from relume.cli.main import main
code = main(["checkpoint", "ls", sys.argv[1]])
sys.exit(90 if "torch" in sys.modules else code)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 8 ")


def test_checkpoints_are_listed_verified_and_exported(tmp_path, seed, relume):
    for step in (8, 16):
        states.save(tmp_path / "there", step, states.small(seed + step))
    state = states.small(seed + 16)
    listed = relume("ls", "there")[0].splitlines()
    assert len(listed) == 2
    assert listed[0].startswith("step 16 ")
    assert "  latest  whole" in listed[0]
    told = json.loads(relume("ls", "there", "--json")[0])
    assert told["latest"] == "step-00000016"
    assert [(row["step"], row["whole"], row["facts"]) for row in told["checkpoints"]] == [
        (16, True, states.FACTS),
        (8, True, states.FACTS),
    ]
    assert relume("verify", "there")[0].count("every bit is as written") == 2
    assert json.loads(relume("verify", "there", "--json")[0])["ok"] is True

    assert "model of step 16" in relume("export", "there/latest")[0]
    out = tmp_path / "model-00000016.safetensors"
    model = safetensors.torch.load_file(out)
    assert states.difference({name: model[name] for name in state["model"]}, dict(state["model"])) is None
    assert "is there already: --force" in relume("export", "there", code=2)[1]
    told = json.loads(relume("export", "there", "--force", "--step", 8, "--out", out, "--json")[0])
    assert (told["step"], told["name"], told["bytes"]) == (8, "model", out.stat().st_size)
    model = safetensors.torch.load_file(out)
    assert model["0.weight"].equal(states.small(seed + 8)["model"]["0.weight"])


def test_what_is_damaged_is_told_where_and_with_an_exit_code(tmp_path, seed, relume):
    for step in (8, 16):
        states.save(tmp_path, step, states.small(seed + step))
    path = tmp_path / "step-00000016" / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(states.small(seed + 16)["model"]["2.bias"].numpy().tobytes())] ^= 16
    path.write_bytes(data)
    assert "whole" in relume("ls", ".")[0]  # it looks at sizes only
    out, _ = relume("verify", ".", code=1)
    assert "step-00000016: DAMAGED" in out
    assert "__0_0.distcp is damaged (its digest differs)" in out
    assert "1 of " in out
    assert "damaged: model.2.bias" in out
    assert "step-00000008: every bit is as written" in out
    told = json.loads(relume("verify", ".", "--json", code=1)[0])
    assert [row["whole"] for row in told["checkpoints"]] == [False, True]
    relume("verify", ".", "--step", 8)
    out, err = relume("export", ".", "--out", "m.safetensors", "--json")
    assert json.loads(out)["step"] == 8
    assert "step-00000016 cannot be trusted: __0_0.distcp is damaged" in err
    shutil.rmtree("step-00000008")
    assert "nothing was exported" in relume("export", ".", "--out", "n.safetensors", code=1)[1]
    assert not Path("n.safetensors").exists()
    Path("step-00000016/manifest.json").unlink()
    Path(".partial-00000024-4711").mkdir()
    Path("latest").unlink()
    Path("latest").symlink_to("step-00000099")
    out, _ = relume("ls", ".")
    assert "not whole: manifest.json is missing" in out
    assert "`latest` names step-00000099, which is not there" in out
    assert "1 checkpoint unfinished" in out


def test_bad_input_is_refused_in_a_line(tmp_path, relume):
    for name in ("empty", "plain"):
        Path(name).mkdir()
    Path("file").write_text("")
    Path("plain/.metadata").write_text("")
    states.save(tmp_path / "good", 8, {"model": {"weight": torch.ones(1)}, "ema": {"weight": torch.ones(1)}})
    for words, text in {
        ("ls", "nowhere"): "there is no folder nowhere",
        ("ls", "file"): "file is a file: give the folder of checkpoints",
        ("verify", "empty"): "there is no checkpoint in empty",
        ("verify", "plain"): "plain is a PyTorch checkpoint that relume did not write",
        ("verify", "good", "--step", "9"): "no checkpoint of step 9 in good; there are those of 8",
        ("export", "good", "--name", "nte"): "'nte' is not there; what can be exported: model, ema",
        ("export", "good", "--out", "empty"): "--out empty is a folder",
        ("export", "good", "--out", "nowhere/x"): "there is no folder nowhere",
        ("burn", "good"): "invalid choice",
        (): "the following arguments are required",
    }.items():
        assert text in relume(*words, code=2)[1]


# A whole run --------------------------------------------------------------------------------------------------------


def kill_everything(agent):
    """As when the host goes: the agent, its workers, their template, the guardian and the scribe, at once."""
    table = processes.table()
    doomed = {agent.pid}
    while more := {pid for pid, process in table.items() if process.parent in doomed} - doomed:
        doomed |= more
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["twice", "twenty times"]
)
@pytest.mark.timeout(300)
def test_a_run_that_is_killed_whole_goes_on_from_the_disk_with_the_very_bits(tmp_path, seed, kills):
    """With another number of workers each time. It may not run away meanwhile: a gate holds it a few steps ahead."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    where, gate, total = tmp_path / "checkpoints", tmp_path / "gate", 8 * kills + 16

    def hold(rank, step):
        time.sleep(0.01)
        while step.number >= int(gate.read_text()):
            time.sleep(0.01)

    options = {"mirror_every": 2, "checkpoint_dir": where, "checkpoint_every_steps": 2}
    began_at = []
    for life in range(kills + 1):
        there = (folder.steps(where) or [0])[0]
        home = tmp_path / str(life)
        home.mkdir()
        (tmp_path / "opening").write_text(str(total + 1 if life == kills else there + 8))
        (tmp_path / "opening").replace(gate)
        body = script(home, total=total, after=hold)
        workers = chance.choice([1, 2, 3])
        with Agent(body, home, workers=workers, resume=life > 0, **options) as agent:
            if life == kills:
                assert agent.join(WAIT_S) == 0, agent.output()
                digests = [path.read_text().split()[0] for path in home.glob("digest-*")]
            else:
                agent.until(lambda past=there: (folder.steps(where) or [0])[0] > past, WAIT_S)
                time.sleep(chance.uniform(0, 0.2))
                kill_everything(agent)
                assert agent.join() == -signal.SIGKILL
            if life:
                (first, *_) = agent.events("view_installed")
                began_at.append(first["step"])
                assert first["step"] >= there, agent.output()
    assert digests == [plain(total)] * workers
    assert len(began_at) == kills
    assert folder.steps(where)[0] == total
    assert folder.leftovers(where) == 0
