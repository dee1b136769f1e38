"""The agent's loop: it turns what happens to processes into events, and the coordinator's instructions into deeds.

One thread, one selector (asyncio's), no blocking call. Everything that decides stands in `core`; this file only
observes and acts: a pidfd that fires, a message, a tick; kill, ask, read the arena, install.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relume.agent.arena import Arena
from relume.agent.fence import is_fenced, kill_group
from relume.agent.guard import Guard
from relume.agent.incidents import IncidentDesk
from relume.agent.output import Terminal
from relume.agent.rundir import RunDir
from relume.agent.settings import EXIT_CODES, Settings
from relume.agent.spawn import Spawner, environment
from relume.agent.status import StatusServer
from relume.agent.vigil import Vigil
from relume.agent.worker import Worker, cause_of_exit, oom_kills, raised_cause
from relume.core import events as core
from relume.core.coordinator import Coordinator, State
from relume.core.limits import Limits
from relume.errors import ConfigError, FrameError, MemoryShortage
from relume.wire import events, messages

FENCE_POLL_S = 0.0005
INEXACT = "exact=False: the bits of this run are not guaranteed to be those of an undisturbed one"
LAST_WORDS_S = 5.0
"""A worker whose script raised has this long for its own clean-up; it writes nothing in the arena meanwhile."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    outcome: str
    reason: str
    exit_code: int


class Supervisor:
    """Runs one fleet on this host. `run()` returns when it is over and nothing of it is left."""

    def __init__(
        self,
        settings: Settings,
        spawner: Spawner,
        terminal: Terminal,
        watcher: Callable[[events.Event], None] | None = None,
    ) -> None:
        self._settings = settings
        self._spawner = spawner
        self._terminal = terminal
        self._watcher = watcher
        self._dir = RunDir(settings.run_dir, self._trouble)
        self._arena = Arena(settings.workers)
        limits = Limits.derive(settings.hang_timeout_s)
        self._core = Coordinator(settings.workers, 1, limits, settings.min_workers)
        self._workers: dict[int, Worker] = {}
        self._vigil = Vigil(settings.hang_timeout_s, self._workers, self._arena, self._tell, self._doomed)
        self._desk = IncidentDesk(self._workers, self._arena, self._event, terminal.say)
        self._result: Result | None = None
        self._over = asyncio.Event()
        self._interrupts = 0
        self._burners: list[subprocess.Popen[bytes]] = []
        self._guard: Guard | None = None
        self._oom_kills = oom_kills()
        self._started_s = time.monotonic()
        self._facts: dict[str, Any] = {
            "run": settings.run_id,
            "command": list(settings.command),
            "workers": settings.workers,
            "threads": settings.threads,
        }

    # The run ------------------------------------------------------------------------------------------------

    async def run(self) -> Result:
        """Start the workers and serve them until the run is over."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_defect)
        settings = self._settings
        server = StatusServer(settings.run_id, self._status)
        ticker: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._interrupt, number)
        try:
            command = tuple(part.encode("utf-8", "replace").decode() for part in settings.command)
            self._event(events.RunStarted(settings.run_id, os.getpid(), settings.workers, command))
            server.start(self._loop)
            self._guard = Guard(settings.run_dir)
            for rank in range(settings.workers):
                self._start_worker(rank)
            ticker = asyncio.create_task(self._vigil.keep())
            ticker.add_done_callback(self._on_ticker_end)
            await self._over.wait()
        except ConfigError as error:
            self._end("usage", str(error))
            raise
        finally:
            if ticker is not None:
                ticker.cancel()
            result = await self._tear_down()
            server.close(self._loop)
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.remove_signal_handler(number)
            self._dir.close()
        return result

    def _end(self, outcome: str, reason: str) -> None:
        if self._result is None:
            self._result = Result(outcome, reason, EXIT_CODES[outcome])
            self._over.set()

    def _on_defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback: half an event was dealt with, so nothing after it could be trusted."""
        del loop
        error = context.get("exception")
        self._terminal.say("".join(traceback.format_exception(error)) if error else str(context.get("message")))
        self._end("internal", f"the agent failed, which is a defect in relume: {error or context.get('message')}")

    def _on_ticker_end(self, ticker: asyncio.Task[None]) -> None:
        if not ticker.cancelled() and ticker.exception() is not None:
            self._on_defect(self._loop, {"exception": ticker.exception()})

    def _interrupt(self, number: int) -> None:
        self._interrupts += 1
        name = signal.Signals(number).name
        if self._interrupts == 1:
            self._terminal.say(f"{name}: ending the run (once more: at once)")
            self._end("interrupted" if number == signal.SIGINT else "terminated", f"the run was ended by {name}")
        else:
            for worker in self._workers.values():
                if worker.wait_status is None:
                    kill_group(worker.pid)

    async def _tear_down(self) -> Result:
        """End every process of the run, politely first if a person asked, and close everything; return how it ended."""
        result = self._result or Result("internal", "the agent failed", EXIT_CODES["internal"])
        self._result = result
        if self._interrupts:
            for worker in self._running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGTERM)  # not its loaders: it would tell of their death
            await self._until_gone(1.5)
        for worker in self._workers.values():
            if worker.wait_status is None:
                kill_group(worker.pid)
        await self._until_gone(5.0)
        self._desk.flush()
        for worker in self._workers.values():
            for descriptor in (worker.pidfd, worker.connection.fileno(), *worker.pipes):
                if descriptor >= 0:
                    self._loop.remove_reader(descriptor)
            self._drain(worker)
            worker.close()
        self._end_helpers()
        done = max((self._arena.moment(rank).taken + 1 for rank in self._workers), default=0)
        self._record(steps_done=done)
        self._arena.close()
        self._event(events.RunEnded(result.outcome, result.reason, result.exit_code))
        return result

    def _end_helpers(self) -> None:
        for burner in self._burners:
            burner.kill()
            burner.wait()
        if self._guard is not None:
            self._guard.close()

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.wait_status is None]

    async def _until_gone(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while self._running() and time.monotonic() < end:  # noqa: ASYNC110 - `_on_exit` sees them; this is the bound
            await asyncio.sleep(0.01)

    # Starting -----------------------------------------------------------------------------------------------

    def _start_worker(self, rank: int) -> None:
        settings = self._settings
        ours, theirs = socket.socketpair()
        ours.settimeout(0.0)
        descriptors = [theirs.fileno(), self._arena.control_fd, self._arena.data_fd, *self._arena.bells]
        run = {
            **settings.environment,
            "RELUME_RUN_ID": settings.run_id,
            "RELUME_RUN_DIR": str(settings.run_dir),
            messages.AGENT_VARIABLE: ",".join(map(str, descriptors)),
        }
        if settings.shards is not None:
            run["RELUME_SHARDS"] = str(settings.shards)
        variables = environment(rank, settings.workers, threads=settings.threads, port=settings.port, run=run)
        with theirs:
            try:
                started = self._spawner.spawn(settings.command, variables, descriptors)
            except OSError as error:
                ours.close()
                text = f"worker {rank} of {settings.workers} cannot be started ({error.strerror})."
                raise ConfigError(text + " Use fewer workers (--workers), or raise the limit (ulimit -a)") from error
        worker = Worker(rank, started.pid, -1, ours, {started.out: "out", started.err: "err"})
        self._workers[rank] = worker
        if self._guard is not None:
            self._guard.watch(rank, started.pid)
        worker.pidfd = os.pidfd_open(started.pid)
        worker.stat = os.open(f"/proc/{started.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._loop.add_reader(worker.pidfd, self._on_exit, worker)
        self._loop.add_reader(ours, self._on_message, worker)
        for descriptor in worker.pipes:
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._on_output, worker, descriptor)
        self._event(events.WorkerStarted(rank, started.pid))

    # What happens -------------------------------------------------------------------------------------------

    def _on_output(self, worker: Worker, descriptor: int) -> None:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(descriptor)
            worker.pipes.pop(descriptor, None)
            os.close(descriptor)
            return
        self._take_output(worker, worker.pipes[descriptor], data)

    def _take_output(self, worker: Worker, stream: str, data: bytes) -> None:
        self._dir.output(worker.rank, data)
        if stream == "err":
            worker.hear(data)
        self._terminal.feed(worker.rank, stream, data)

    def _drain(self, worker: Worker) -> None:
        for descriptor, stream in worker.pipes.items():
            with contextlib.suppress(OSError):
                while data := os.read(descriptor, 1 << 16):
                    self._take_output(worker, stream, data)

    def _on_message(self, worker: Worker) -> None:
        try:
            data = worker.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(worker.connection)
            self._loop.call_later(LAST_WORDS_S, self._gone_silent, worker)
            return
        try:
            for message in worker.decoder.feed(data):
                self._handle_message(worker, message)
        except FrameError as error:
            self._tell(core.Lost(worker.rank, core.Cause("protocol", f"it sent what is no message: {error}")))

    def _gone_silent(self, worker: Worker) -> None:
        if worker.wait_status is None and self._core.state is not State.CLOSED and self._result is None:
            text = "it closed its connection to the agent and lives on"
            self._tell(core.Lost(worker.rank, core.Cause("silent", text)))

    def _handle_message(self, worker: Worker, message: messages.FromWorker) -> None:
        rank = worker.rank
        if isinstance(message, messages.Hello):
            if message.protocol != messages.PROTOCOL:
                text = f"it speaks protocol {message.protocol}, this agent {messages.PROTOCOL}: two versions of relume?"
                self._tell(core.Lost(rank, core.Cause("protocol", text)))
            if "numerics" not in self._facts:
                self._record(numerics=message.profile)
                if message.profile.get("exact") == "False":
                    self._event(events.Remarked(rank, "exactness", INEXACT, -1))
                    self._terminal.say(INEXACT)
        elif isinstance(message, messages.Join):
            worker.total, worker.joined = message.total, True
            self._tell(core.Joined(rank, message.terms, message.shape, message.total))
        elif isinstance(message, messages.Promised):
            self._tell(core.Pledged(rank, message.ballot))
        elif isinstance(message, messages.Finished):
            self._tell(core.Done(rank, message.step, message.digest))
        elif isinstance(message, messages.Raised):
            worker.raised = message
            worker.self_fenced = True
            self._event(events.ScriptRaised(rank, message.error, message.where, message.traceback))
            self._tell(core.Lost(rank, raised_cause(message)))
        elif isinstance(message, messages.Leave):
            worker.self_fenced = True
            self._tell(core.Lost(rank, core.Cause("planned", message.reason)))
        else:
            self._event(events.Remarked(rank, message.topic, message.text, message.step))

    def _on_exit(self, worker: Worker) -> None:
        self._loop.remove_reader(worker.pidfd)
        kill_group(worker.pid)  # what it started goes with it; its pid is still its own, as it is not waited for yet
        _, status = os.waitpid(worker.pid, 0)
        worker.wait_status = status
        self._on_message_rest(worker)
        if status == 0 and worker.raised is None and not worker.condemned:
            self._tell(core.Exited(worker.rank))
        else:
            for descriptor in list(worker.pipes):
                self._on_output(worker, descriptor)  # its last words are part of the evidence
            self._tell(core.Lost(worker.rank, self._cause_of(worker, status)))
        self._fenced(worker)
        self._desk.flush()
        if self._guard is not None:
            self._guard.gone(worker.pid)
        self._loop.remove_reader(worker.connection)
        worker.close_link()  # a hundred recoveries leave descriptors where they were (scenario 13)

    def _on_message_rest(self, worker: Worker) -> None:
        """Read what the worker had sent before it died (its traceback, most of all)."""
        with contextlib.suppress(OSError, FrameError):
            while data := worker.connection.recv(1 << 16):
                for message in worker.decoder.feed(data):
                    self._handle_message(worker, message)

    def _cause_of(self, worker: Worker, status: int) -> core.Cause:
        if worker.cause is None:
            worker.cause = cause_of_exit(worker, status, self._oom_kills)
            self._oom_kills += worker.cause.kind == "out_of_memory"  # one of them is explained now
        return worker.cause

    def _doomed(self, worker: Worker, status: int) -> None:
        self._on_message_rest(worker)
        self._tell(core.Lost(worker.rank, self._cause_of(worker, status)))

    # What is done about it --------------------------------------------------------------------------------------

    def _tell(self, event: core.Event) -> None:
        """Tell the coordinator and do what it answers."""
        if self._result is not None:
            return
        for instruction in self._core.handle(event, time.monotonic()):
            self._do(instruction)

    def _do(self, instruction: core.Instruction) -> None:
        if isinstance(instruction, core.Reserve):
            self._reserve(instruction.shape)
        elif isinstance(instruction, core.Fence):
            self._fence(self._workers[instruction.rank])
        elif isinstance(instruction, core.AskPromise):
            self._send(instruction.rank, messages.Ask(instruction.ballot))
        elif isinstance(instruction, core.Count):
            self._loop.call_soon(self._tell, core.Counted(instruction.ballot, self._arena.inventory()))
        elif isinstance(instruction, core.InstallView):
            self._send(instruction.rank, messages.Install(instruction.view))
            if instruction.rank == instruction.view.main:
                self._event(self._view_event(instruction.view))
        elif isinstance(instruction, core.CloseRun):
            self._send(instruction.rank, messages.Close(instruction.view))
        elif isinstance(instruction, core.Incident):
            self._desk.open(instruction)
        else:
            self._end(instruction.outcome, instruction.reason)

    def _send(self, rank: int, message: messages.ToWorker) -> None:
        worker = self._workers[rank]
        if not worker.send(message):
            text = "it takes no more messages from its agent"
            self._loop.call_soon(self._tell, core.Lost(rank, core.Cause("silent", text)))
        elif worker.pending:
            self._loop.call_later(0.01, worker.flush)

    def _reserve(self, shape: messages.Shape) -> None:
        try:
            size = self._arena.reserve(shape)
        except MemoryShortage as error:
            self._loop.call_soon(self._tell, core.NoMemory(str(error)))
            return
        self._event(events.ArenaReserved(size, shape.gradient_bytes, shape.shards))
        self._record(shards=shape.shards, steps=self._steps(), gradient_bytes=shape.gradient_bytes)
        self._loop.call_soon(self._tell, core.Reserved())

    def _fence(self, worker: Worker) -> None:
        worker.condemned = True
        if worker.wait_status is not None or worker.self_fenced:
            self._loop.call_soon(self._fenced, worker)
            self._loop.call_later(LAST_WORDS_S, self._end_by_force, worker)
            return
        kill_group(worker.pid)
        self._loop.call_soon(self._poll_fence, worker)

    def _end_by_force(self, worker: Worker) -> None:
        if worker.wait_status is None and self._result is None:
            kill_group(worker.pid)
            self._burn()  # until now it burned itself

    def _burn(self) -> None:
        if self._settings.burner:
            self._burners.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))

    def _poll_fence(self, worker: Worker) -> None:
        if worker.fenced:
            return
        if worker.wait_status is not None or is_fenced(worker.pid):
            self._fenced(worker)
        else:
            self._loop.call_later(FENCE_POLL_S, self._poll_fence, worker)

    def _fenced(self, worker: Worker) -> None:
        if not worker.fenced:
            worker.fenced = True
            self._tell(core.Fenced(worker.rank))
            if not worker.self_fenced:
                self._burn()

    def _view_event(self, view: messages.View) -> events.ViewInstalled:
        return events.ViewInstalled(view.number, view.step, view.members, view.assigned)

    # Telling people -----------------------------------------------------------------------------------------

    def _event(self, event: events.Event) -> None:
        self._dir.event(event)
        if self._watcher is not None:
            self._watcher(event)

    def _trouble(self, text: str) -> None:
        self._terminal.say(text)

    def _record(self, **facts: object) -> None:
        self._facts.update(facts)
        self._dir.record(self._facts)

    def _steps(self) -> int:
        """Return how many steps the run has, 0 while no worker has told."""
        return max((worker.total for worker in self._workers.values()), default=0)

    def _status(self) -> messages.StatusReply:
        now = time.monotonic()
        lines = []
        for rank, worker in sorted(self._workers.items()):
            moment = self._arena.moment(rank)
            lost = worker.condemned or worker.wait_status not in {None, 0}
            state = "lost" if lost else "ended" if worker.wait_status == 0 else "in" if worker.joined else "starting"
            idle = self._vigil.idle_s(rank)
            lines.append(messages.WorkerStatus(rank, worker.pid, state, moment.phase, moment.step, moment.shard, idle))
        return messages.StatusReply(
            run=self._settings.run_id,
            pid=os.getpid(),
            state=self._core.state.value,
            uptime_s=now - self._started_s,
            view=self._core.view,
            total=self._steps(),
            incidents=self._desk.count,
            workers=tuple(lines),
        )
