"""The agent's loop: it turns what happens to processes into events, and the coordinator's instructions into deeds.

One thread, one selector (asyncio's), no blocking call. Everything that decides stands in `core`; this file only
observes and acts: a pidfd that fires, a message, a tick; kill, ask, read the arena, install.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relume.agent import translate
from relume.agent.arena import Arena
from relume.agent.fence import kill_group
from relume.agent.fencer import LAST_WORDS_S, Fencer
from relume.agent.gate import Gate
from relume.agent.guard import Guard
from relume.agent.incidents import IncidentDesk
from relume.agent.keeper import Keeper, Resumed
from relume.agent.launch import Launcher, Order, template_for
from relume.agent.output import Terminal
from relume.agent.pipes import Pipes
from relume.agent.priority import restore_priority
from relume.agent.resuming import other_machine, other_script
from relume.agent.rundir import RunDir
from relume.agent.seating import Seating
from relume.agent.settings import EXIT_CODES, Settings
from relume.agent.spawn import Spawner
from relume.agent.standing import scale_refusal, worker_lines
from relume.agent.status import StatusServer
from relume.agent.vigil import Ears, Vigil, begun
from relume.agent.worker import Worker, cause_of_exit, oom_kills, raised_cause
from relume.arena.knell import Listener
from relume.arena.prompt import be_prompt
from relume.core import events as core
from relume.core.coordinator import Coordinator, State
from relume.core.limits import Limits
from relume.core.verdict import Outcome
from relume.core.words import plural
from relume.errors import ConfigError, FrameError, MemoryShortage
from relume.wire import events, messages

INEXACT = "exact=False: the bits of this run are not guaranteed to be those of an undisturbed one"
LAST_CHECKPOINT_S = 30.0
"""The last checkpoint of a run may take so long; a second Ctrl-C cuts it short."""
MIRROR_POLL_S = 0.2
PARTING_S = 60.0
"""One that goes by plan has this long to end. Nobody waits for it, and on busy cores torch takes seconds to go."""


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
        self._arena = Arena(settings.seats or settings.workers + settings.spares, settings.mirror_every)
        self._core = Coordinator(
            settings.workers,
            1,
            Limits.derive(settings.hang_timeout_s),
            settings.min_workers,
            seats=settings.seats,
            spares=settings.spares,
            max_restarts=settings.max_restarts if settings.mirror_every else 0,
        )
        self._workers: dict[int, Worker] = {}
        self._resumed: Resumed | None = None
        self._template = template_for(settings, self._trouble)
        self._launcher = Launcher(settings, self._arena, spawner, self._template)
        self._seating = Seating(
            self._workers, self._arena, self._launcher, self._core, self._welcome, self._not_launched
        )
        self._fencer = Fencer(self._fenced, burner=settings.burner)
        self._gate = Gate(self._arena, self._core.party, self._let_in, self._turn_away)
        self._knells = Listener(self._arena.words, self._arena.layout, self._on_knell)
        ears = Ears(self._tell, self._doomed, self._core.party)
        self._vigil = Vigil(settings.hang_timeout_s, self._workers, self._arena, ears)
        self._desk = IncidentDesk(self._find, self._arena, self._event, terminal.say)
        self._keeper = self._make_keeper()
        self._earlier: dict[tuple[int, int], Worker] = {}
        """Lives whose incident is not told yet though their seat is taken again: lost before the first view."""
        self._result: Result | None = None
        self._over = asyncio.Event()
        self._interrupts = 0
        self._unmirrored = False
        self._told_in: set[int] = set()
        self._total = 0
        """How many steps the run has, once a worker has told."""
        self._guard: Guard | None = None
        self._oom_kills = oom_kills()
        self._started_s = time.monotonic()
        self._facts: dict[str, Any] = {
            "run": settings.run_id,
            "command": list(settings.command),
            "workers": settings.workers,
            "threads": settings.threads,
        }

    def _make_keeper(self) -> Keeper | None:
        settings, arena = self._settings, self._arena
        if settings.checkpoint_dir is None:
            return None
        words = {"control": arena.control_fd, "mirrors": ",".join(map(str, arena.mirror_fds))}
        words |= {"seats": arena.layout.workers, "kept": arena.layout.kept}
        return Keeper(
            settings.checkpoint_dir,
            every_steps=settings.checkpoint_every_steps,
            every_s=settings.checkpoint_every_s,
            keep=settings.checkpoint_keep,
            mirror=" ".join(f"{name}={value}" for name, value in words.items()),
            descriptors=[arena.control_fd, *arena.mirror_fds],
            newest=arena.newest_mirror,
            facts=lambda: {**self._facts, "terms": list(self._core.terms)},
            emit=self._event,
            say=self._terminal.say,
        )

    # The run ------------------------------------------------------------------------------------------------

    async def run(self) -> Result:
        """Start the workers and serve them until the run is over."""
        be_prompt()
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_defect)
        self._pipes = Pipes(self._loop, self._take_output)
        settings = self._settings
        server = StatusServer(settings.run_id, self._status, self._scale)
        ticker: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._interrupt, number)
        try:
            command = tuple(part.encode("utf-8", "replace").decode() for part in settings.command)
            self._event(events.RunStarted(settings.run_id, os.getpid(), settings.workers, command))
            server.start(self._loop)
            await self._resume()
            self._dir.link_latest()  # not before: a run that is refused hides no other
            self._guard = Guard(settings.run_dir)
            self._knells.start()
            for rank in range(settings.workers + settings.spares):
                self._welcome(self._launcher.cold(Order(rank, 0)))
            if self._template is not None:
                self._template.start(self._loop)  # now, while nobody trains yet
            if self._keeper is not None:
                self._keeper.start()
            if settings.mirror_every:
                self._await_mirror()
            ticker = asyncio.create_task(self._vigil.keep())
            ticker.add_done_callback(self._on_ticker_end)
            await self._over.wait()
        except ConfigError as error:
            if not self._interrupts:  # else a person has ended what was being read, and that is how the run ended
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

    async def _resume(self) -> None:
        """Have the newest checkpoint in the mirror before anybody starts. Raises `ConfigError`."""
        keeper = self._keeper
        if keeper is None:
            return
        keeper.check(resume=self._settings.resume)
        keeper.hold()
        if self._settings.resume:
            self._resumed = await keeper.resume()
            self._core.resume_step = self._arena.base = self._resumed.step
            self._terminal.say(f"the run goes on before step {self._resumed.step}, from {self._resumed.path}")
            before, now = self._resumed.facts.get("command"), self._facts["command"]
            if before and list(before)[2:] != now[2:]:  # not the interpreter
                self._terminal.say(f"the command was `{' '.join(before[2:])}` and is `{' '.join(now[2:])}`")

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
            if not self._workers and self._keeper is not None:
                self._keeper.cut_short()  # it is still reading what the run should go on from
        else:
            for worker in self._workers.values():
                if worker.wait_status is None:
                    kill_group(worker.pid)
            if self._keeper is not None:
                self._keeper.cut_short()

    async def _tear_down(self) -> Result:
        """End every process of the run, politely first if a person asked, and close everything; return how it ended."""
        result = self._result or Result("internal", "the agent failed", EXIT_CODES["internal"])
        self._result = result
        self._seating.closed = True
        if self._template is not None:
            self._template.close()  # first, so that nobody is born any more
        await self._end_workers()
        if self._keeper is not None:
            await self._keeper.finish(LAST_CHECKPOINT_S, write=result.outcome not in {"diverged", "usage"})
        self._desk.flush()
        for worker in self._workers.values():
            for descriptor in (worker.pidfd, worker.connection.fileno()):
                if descriptor >= 0:
                    self._loop.remove_reader(descriptor)
            self._pipes.close(worker)
        self._fencer.close()
        self._knells.close()
        if self._guard is not None:
            self._guard.close()
        done = max((self._arena.moment(rank).taken + 1 for rank in self._workers), default=0)
        self._record(steps_done=done)
        self._arena.close()
        self._event(events.RunEnded(result.outcome, result.reason, result.exit_code))
        return result

    async def _end_workers(self) -> None:
        if self._interrupts:
            for worker in self._running():
                worker.send(messages.Stop(""))  # ends it, or is SIGTERM to a script that handles that itself
                if not worker.joined:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGTERM)  # nobody may be there yet who listens
            await self._until_gone(1.5)
        for worker in self._running():
            kill_group(worker.pid)
        await self._until_gone(5.0)

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.wait_status is None]

    async def _until_gone(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while self._running() and time.monotonic() < end:  # noqa: ASYNC110 - `_on_exit` sees them; this is the bound
            await asyncio.sleep(0.01)

    # Starting -----------------------------------------------------------------------------------------------

    def _welcome(self, worker: Worker) -> None:
        """Begin to look after a worker that was started."""
        rank, before = worker.rank, self._workers.get(worker.rank)
        if before is not None:
            self._pipes.close(before)  # nothing of it stays (scenario 13)
            if self._core.view is None:
                self._earlier[rank, before.life] = before
        self._vigil.forget(rank)
        self._workers[rank] = worker
        if self._guard is not None:
            self._guard.watch(rank, worker.pid)
        self._loop.add_reader(worker.pidfd, self._on_exit, worker)
        self._loop.add_reader(worker.connection, self._on_message, worker)
        self._pipes.watch(worker)
        self._event(events.WorkerStarted(rank, worker.pid, worker.life, worker.warm))

    def _not_launched(self, rank: int, life: int, error: Exception) -> None:
        self._loop.call_soon(self._tell, core.Lost(rank, core.Cause("no_process", str(error)), life))

    def _find(self, rank: int, life: int) -> Worker | None:
        worker = self._workers.get(rank)
        return worker if worker is not None and worker.life == life else self._earlier.pop((rank, life), None)

    # What happens -------------------------------------------------------------------------------------------

    def _take_output(self, worker: Worker, stream: str, data: bytes) -> None:
        self._dir.output(worker.rank, data)
        if stream == "err":
            worker.hear(data)
        self._terminal.feed(worker.rank, stream, data)

    def _on_message(self, worker: Worker) -> None:
        try:
            data = worker.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(worker.connection)
            patience_s = PARTING_S if self._core.leaves(worker.rank) else LAST_WORDS_S
            self._loop.call_later(patience_s, self._gone_silent, worker)
            return
        try:
            for message in worker.decoder.feed(data):
                self._handle_message(worker, message)
        except FrameError as error:
            self._lost(worker, core.Cause("protocol", f"it sent what is no message: {error}"))

    def _gone_silent(self, worker: Worker) -> None:
        if worker.wait_status is None and self._core.state is not State.CLOSED and self._result is None:
            text = "it closed its connection to the agent and lives on"
            self._lost(worker, core.Cause("silent", text))

    def _lost(self, worker: Worker, cause: core.Cause) -> None:
        if worker.joined:  # how far it came decides whether it is replaced at once
            moment = worker.last or self._arena.moment(worker.rank)
            self._tell(core.Progress(worker.rank, begun(moment), worker.life))
        self._tell(core.Lost(worker.rank, cause, worker.life))

    def _handle_message(self, worker: Worker, message: messages.FromWorker) -> None:
        if isinstance(message, messages.Hello):
            self._on_hello(worker, message)
        elif isinstance(message, messages.Join):
            self._on_join(worker, message)
        elif isinstance(message, messages.Level):
            self._on_level(worker, message)
        elif isinstance(message, messages.Leaving):
            worker.away = True
        elif isinstance(message, messages.Leave):
            worker.self_fenced = True
        elif isinstance(message, messages.Raised):
            worker.raised = message
            worker.self_fenced = True
            self._event(events.ScriptRaised(worker.rank, message.error, message.where, message.traceback))
            self._lost(worker, raised_cause(message))
        elif isinstance(message, messages.Remark):
            self._on_remark(worker, message)
        event = translate.event(worker.rank, worker.life, message)
        if event is not None:
            self._tell(event)

    def _on_hello(self, worker: Worker, message: messages.Hello) -> None:
        if message.protocol != messages.PROTOCOL:
            text = f"it speaks protocol {message.protocol}, this agent {messages.PROTOCOL}: two versions of relume?"
            self._lost(worker, core.Cause("protocol", text))
        if "numerics" not in self._facts:
            self._record(numerics=message.profile)
            if self._resumed is not None and (told := other_machine(self._resumed.facts, message.profile)):
                self._remark(worker.rank, "exactness", told)
            if message.profile.get("exact") == "False":
                self._remark(worker.rank, "exactness", INEXACT)

    def _on_remark(self, worker: Worker, message: messages.Remark) -> None:
        self._event(events.Remarked(worker.rank, message.topic, message.text, message.step))
        if message.topic == "slow_replay":
            restore_priority(worker.pid)  # it may be no more than that
            self._terminal.say(message.text)
        if message.topic == "mirror" and not self._unmirrored:
            self._unmirrored = True  # all workers meet it, and one line tells it
            self._terminal.say(message.text)

    def _on_join(self, worker: Worker, message: messages.Join) -> None:
        self._total, worker.joined = message.total, True
        if self._resumed is not None and self._core.view is None:
            difference = other_script(self._resumed.facts, self._facts, message.terms)
            if self._resumed.step > message.total:
                steps = plural(message.total, "step")
                difference = f"is of step {self._resumed.step}, and this run has {steps}: it is over already"
            if difference:
                self._end(Outcome.DIVERGED.value, f"the checkpoint {self._resumed.path} {difference}")

    def _on_level(self, worker: Worker, message: messages.Level) -> None:
        worker.level = message
        restore_priority(worker.pid)
        self._gate.knock(worker)

    def _let_in(self, worker: Worker) -> None:
        """A joiner is level, and shows what the others show."""
        level = worker.level
        assert level is not None
        self._event(events.WorkerLevel(worker.rank, worker.pid, worker.life, level.step, level.loaded, level.digest))
        if self._core.view is not None or self._resumed is None:  # else all load the same checkpoint, and that was told
            replayed = plural(level.step - level.loaded, "step")
            source = f"the mirror of step {level.loaded}" if level.loaded else "the script's own start"
            text = f"worker {worker.rank} (pid {worker.pid}) is level at step {level.step}: {source}, then {replayed}"
            self._terminal.say(f"{text} replayed")
        self._tell(core.Level(worker.rank, level.step, worker.life))

    def _turn_away(self, worker: Worker, why: str) -> None:
        self._lost(worker, core.Cause("profile", why))

    def _on_knell(self, rank: int) -> None:
        """A worker's knell tolls, in the listener's thread: it has begun to die, or to become another program."""
        del rank  # who is doomed, and of what, is seen by looking
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._vigil.look_for_doomed)

    def _on_exit(self, worker: Worker) -> None:
        self._loop.remove_reader(worker.pidfd)
        kill_group(worker.pid)  # what it started goes with it; its pid is still its own, as it is not waited for yet
        _, status = os.waitpid(worker.pid, 0)
        worker.wait_status = status
        worker.last = self._arena.moment(worker.rank)
        self._on_message_rest(worker)
        if self._guard is not None:
            self._guard.gone(worker.pid)
        self._loop.remove_reader(worker.connection)
        worker.close_link()  # a hundred recoveries leave descriptors where they were (scenario 13)
        # From here on its successor may be there: what is told may have it started.
        if status == 0 and worker.raised is None and not worker.condemned:
            self._tell(core.Exited(worker.rank, worker.life, worker.last.taken))
        else:
            self._pipes.catch_up(worker)
            self._lost(worker, self._cause_of(worker, status))
        self._fencer.note(worker)
        self._desk.flush()
        self._seating.emptied(worker.rank)

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
        self._lost(worker, self._cause_of(worker, status))

    # What is done about it --------------------------------------------------------------------------------------

    def _tell(self, event: core.Event) -> None:
        """Tell the coordinator and do what it answers: first what workers wait for, then what people are told."""
        if self._result is not None:
            return
        instructions = self._core.handle(event, time.monotonic())
        for instruction in instructions:
            self._do_at_once(instruction)
        for instruction in instructions:
            self._do(instruction)

    def _do_at_once(self, instruction: core.Instruction) -> None:
        addressed = translate.message(instruction)
        if addressed is not None:
            self._send(*addressed)
        match instruction:
            case core.Fence(rank):
                self._fence(rank)
            case core.Count(ballot):
                inventory = self._arena.inventory(self._core.alive())
                self._loop.call_soon(self._tell, core.Counted(ballot, inventory))

    def _do(self, instruction: core.Instruction) -> None:  # noqa: C901 - one flat case per instruction
        match instruction:
            case core.Reserve(shape):
                self._reserve(shape)
            case core.InstallView(rank, view) if rank == view.main:
                self._on_view(view)
            case core.StartWorker(rank, life):
                if self._core.state is State.CLOSED:
                    self._terminal.say(
                        f"worker {rank} is started again, to do what the script does after its last step"
                    )
                self._seating.start(rank, life)
            case core.Dismiss(rank):
                self._seating.dismiss(rank)
            case core.Left(rank, reason):
                self._left(rank, reason)
            case core.Tell(topic, text, rank):
                self._remark(rank, topic, text)
                if self._core.state is State.PAUSED:
                    self._hurry()
            case core.Incident():
                self._on_incident(instruction)
            case core.EndRun(outcome, reason):
                self._end(outcome, reason)

    def _hurry(self) -> None:
        """Nobody trains, so that whoever is on its way takes no time from anybody."""
        for worker in self._running():
            restore_priority(worker.pid)

    def _on_view(self, view: messages.View) -> None:
        self._event(events.ViewInstalled(view.number, view.step, view.members, view.assigned))
        came = [rank for rank in view.members if self._workers[rank].level is not None and rank not in self._told_in]
        if came and view.step > self._core.resume_step:
            who = f"worker{'s' * (len(came) > 1)} {', '.join(map(str, came))} {'are' if len(came) > 1 else 'is'} in"
            self._terminal.say(f"{who} from step {view.step}: {len(view.members)} of {self._core.workers} workers")
        self._told_in = set(view.members)

    def _on_incident(self, incident: core.Incident) -> None:
        if incident.cause.kind == "profile":
            self._seating.mistrust(incident.rank)
        self._desk.open(incident)

    def _await_mirror(self) -> None:
        """Tell once what the mirror takes, as soon as there is one."""
        if self._result is not None:
            return  # the arena may be closed by now
        seen = self._arena.mirror()
        if seen is None or (self._resumed is not None and seen.step == self._resumed.step):
            self._loop.call_later(MIRROR_POLL_S, self._await_mirror)
            return
        size, layout = seen.state_bytes, self._arena.layout
        kept_bytes, seconds = self._arena.kept_bytes, seen.nanoseconds / 1e9
        every = self._arena.every
        self._event(events.Mirrored(seen.step or 0, every, size, layout.kept, kept_bytes, seconds))
        self._terminal.say(
            f"the state is mirrored every {every} steps: 2 x {size / 2**20:.1f} MiB, and {kept_bytes / 2**20:.1f} MiB "
            f"for the {layout.kept} newest gradients, on this host; written in {seconds * 1000:.1f} ms"
        )

    def _sitting(self, rank: int) -> Worker | None:
        """Return the process of the seat's newest life; None if it was lost or sent away before it was there."""
        worker = self._workers.get(rank)
        return worker if worker is not None and worker.life == self._core.life(rank) else None

    def _fence(self, rank: int) -> None:
        worker = self._sitting(rank)
        if worker is not None:
            self._fencer.fence(worker)
            return
        self._seating.forget(rank)
        self._loop.call_soon(self._tell, core.Fenced(rank, self._core.life(rank)))

    def _left(self, rank: int, reason: str) -> None:
        worker = self._sitting(rank)
        if worker is None:
            return
        worker.away = True
        self._event(events.WorkerLeft(worker.rank, worker.pid, worker.life, reason))
        if self._core.state is not State.CLOSED:
            self._terminal.say(f"worker {worker.rank} (pid {worker.pid}) has left: {reason}")

    def _send(self, rank: int, message: messages.ToWorker) -> None:
        worker = self._workers[rank]
        if not worker.send(message):
            text = "it takes no more messages from its agent"
            self._loop.call_soon(self._lost, worker, core.Cause("silent", text))
        elif worker.pending:
            self._loop.call_later(0.01, worker.flush)

    def _reserve(self, shape: messages.Shape) -> None:
        try:
            size = self._arena.reserve(shape, self._settings.workers + self._settings.spares)
        except MemoryShortage as error:
            self._loop.call_soon(self._tell, core.NoMemory(str(error)))
            return
        self._event(events.ArenaReserved(size, shape.gradient_bytes, shape.shards))
        self._record(shards=shape.shards, steps=self._total, gradient_bytes=shape.gradient_bytes)
        self._loop.call_soon(self._tell, core.Reserved())

    def _fenced(self, worker: Worker) -> None:
        self._tell(core.Fenced(worker.rank, worker.life))

    # Telling people -----------------------------------------------------------------------------------------

    def _event(self, event: events.Event) -> None:
        self._dir.event(event)
        if self._watcher is not None:
            self._watcher(event)

    def _remark(self, rank: int, topic: str, text: str) -> None:
        """Tell, on the terminal and in the events, what changes nothing."""
        self._event(events.Remarked(rank, topic, text, -1))
        self._terminal.say(text)

    def _trouble(self, text: str) -> None:
        self._terminal.say(text)

    def _record(self, **facts: object) -> None:
        self._facts.update(facts)
        self._dir.record(self._facts)

    def _scale(self, workers: int) -> messages.ScaleReply:
        before = self._core.workers
        refused = scale_refusal(self._core, workers, mirror=bool(self._settings.mirror_every))
        if not refused:
            if workers != before:
                self._event(events.Scaled(before, workers))
                self._terminal.say(f"the run is scaled from {before} to {workers} workers")
            self._tell(core.Scale(workers))  # also when that is what it was: seats that were given up are filled again
        return messages.ScaleReply(before, workers, refused)

    def _status(self) -> messages.StatusReply:
        seen = self._arena.mirror()
        return messages.StatusReply(
            run=self._settings.run_id,
            pid=os.getpid(),
            state=self._core.state.value,
            uptime_s=time.monotonic() - self._started_s,
            view=self._core.view,
            total=self._total,
            incidents=self._desk.count,
            workers=worker_lines(self._workers, self._core, self._arena.moment, self._vigil.idle_s),
            target=self._core.workers,
            spares=self._core.spares,
            restarts=self._core.restarts,
            mirror_step=-1 if seen is None else seen.step or -1,
            mirror_bytes=0 if seen is None else seen.state_bytes,
            checkpoint_step=-1 if self._keeper is None else self._keeper.written or -1,
        )
