"""One running engine: is it ready, what does it say, how is it stopped, what did it die of."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from swapd.core.endpoint import ExitReport, Upstream
from swapd.core.spec import LaunchSpec
from swapd.launch import procfs
from swapd.launch.process import ExitStatus, Process, StreamName
from swapd.launch.ring import OutputRing, Tail
from swapd.llama import health
from swapd.llama.command import stop_argv
from swapd.llama.flags import expected_slot_ctx
from swapd.llama.protocol import (
    EXIT_LINE,
    STOPPED,
    TIMEOUT,
    RouterLines,
    StateMessage,
    classify,
    explain,
    last_lines,
)

HEALTH_POLL_S = 0.02
HEALTH_TIMEOUT_S = 2.0
PROGRESS_CHECK_S = 1.0
SECOND_TERM_S = 0.7
"""llama-server b11434 loses a stop that arrives within milliseconds after ready (about 1 in 12 under load): its
queue's "run" overwrites the "end". Only a second SIGTERM ends such a one; measured exits take 0.2 s at most."""

RunBeside = Callable[[Sequence[str]], Coroutine[None, None, None]]
"""Runs a command, its output in the model's log, and waits for its end; ends it when cancelled."""


@dataclass(frozen=True, slots=True)
class Start:
    """What an instance must know of its start."""

    spec: LaunchSpec
    upstream: Upstream
    speaks_router: bool = False
    is_llama_server: bool = False
    owns_listener: bool = True


class LlamaInstance:
    """Implements ``supervisor.ports.Instance``; gets its output through ``take_output``."""

    def __init__(self, start: Start, ring: OutputRing, run_beside: RunBeside) -> None:
        self._start, self._ring, self._run_beside = start, ring, run_beside
        self._process: Process | None = None
        self._stderr, self._stdout = Tail(), Tail()
        self._messages = RouterLines()
        self._progressed: Callable[[float, str], None] = lambda _fraction, _stage: None
        self._settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._last_progress_s = time.monotonic()
        self._told = (-1.0, "")
        self._rss_pages = 0
        self._refusal = self._refused_with = ""  # what /health says that is neither "ready" nor "loading"
        self._doom = ""  # why swapd itself ends it: the cause of the death that follows
        self._stop_begun_s: float | None = None
        self.n_ctx = 0
        self.degraded = ""

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def upstream(self) -> Upstream:
        return self._start.upstream

    @property
    def _child(self) -> Process:
        assert self._process is not None, "used before its process was started"
        return self._process

    def attach(self, process: Process) -> None:
        """The process has been started."""
        self._process = process
        process.on_exit(lambda _status: self._settle(ready=False))

    def on_exit(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` once the process is reaped."""
        self._child.on_exit(lambda _status: hook())

    def take_output(self, stream: StreamName, data: bytes) -> None:
        """A piece of the process's output."""
        self._ring.append(data)
        if not self._settled.done() and not self._is_of_our_probes(data):
            self._last_progress_s = time.monotonic()
        (self._stderr if stream == "stderr" else self._stdout).append(data)
        if self._start.speaks_router and stream == "stdout" and not self._settled.done():
            for message in self._messages.feed(data):
                self._heard(message)

    async def ready(self, progressed: Callable[[float, str], None]) -> ExitReport | None:
        """See ``supervisor.ports.Instance``."""
        self._progressed = progressed
        async with asyncio.TaskGroup() as tasks:
            watchers = [tasks.create_task(self._poll_health()), tasks.create_task(self._watch_progress())]
            try:
                is_ready = await asyncio.shield(self._settled)
            finally:
                for watcher in watchers:
                    watcher.cancel()
        if not is_ready:
            return self._report(self._child.status)
        await self._read_back()
        return None if self._child.status is None else self._report(self._child.status)

    async def exited(self) -> ExitReport:
        """See ``supervisor.ports.Instance``."""
        return self._report(await self._child.exited())

    async def stop(self, reason: str) -> bool:
        """See ``supervisor.ports.Instance``. Each call walks the whole ladder; what was done once is not repeated."""
        spec, child = self._start.spec, self._child
        if child.status is not None:
            return True
        if self._stop_begun_s is None:
            self._stop_begun_s = time.monotonic()
            self._doom = self._doom or STOPPED
            await self._ask(reason)
        left_s = self._stop_begun_s + spec.stop_grace_s - time.monotonic()
        if await child.gone(left_s):
            return True
        self._note(f"did not end within stop_grace ({spec.stop_grace_s:g} s): SIGKILL")
        return await child.kill(spec.kill_timeout_s)

    async def kill(self) -> bool:
        """See ``supervisor.ports.Instance``."""
        self._doom = self._doom or STOPPED
        return await self._child.kill(self._start.spec.kill_timeout_s)

    async def _ask(self, reason: str) -> None:
        """The polite part of a stop: the operator's own command, else the router's line and SIGTERM."""
        self._note(f"stopping: {reason}")
        child = self._child
        if argv := stop_argv(self._start.spec, child.pid, self.upstream):
            await self._run_stop_command(argv)
        if self._start.speaks_router:
            child.write_stdin(EXIT_LINE)
        child.signal_group(signal.SIGTERM)
        grace_s = self._start.spec.stop_grace_s
        if self._start.is_llama_server and grace_s > SECOND_TERM_S and not await child.gone(SECOND_TERM_S):
            child.signal_group(signal.SIGTERM)

    async def _run_stop_command(self, argv: Sequence[str]) -> None:
        """Bounded by ``stop_grace``, and over at once when the process has gone."""
        async with asyncio.TaskGroup() as tasks:
            command = tasks.create_task(self._run_beside(argv))
            gone = tasks.create_task(self._child.exited())
            await asyncio.wait(
                [command, gone], timeout=self._start.spec.stop_grace_s, return_when=asyncio.FIRST_COMPLETED
            )
            command.cancel()
            gone.cancel()

    def _heard(self, message: StateMessage) -> None:
        if message.state == "ready":
            self.n_ctx = message.n_ctx
            if self._owns_its_listener():
                self._settle(ready=True)
        elif message.progress is not None and (news := (round(message.progress, 2), message.stage)) != self._told:
            self._told = news
            self._progressed(message.progress, message.stage)

    async def _poll_health(self) -> None:
        spec = self._start.spec
        while not self._settled.done():
            answer = await health.get(self.upstream, spec.health, spec.api_key, HEALTH_TIMEOUT_S)
            if answer is not None:
                self._refusal = self._why_not_ready(answer.status)
                if answer.status == 200 and not self._refusal:
                    self._settle(ready=True)
                    return
                if answer.status not in (200, 503):
                    self._refused_with = str(answer.status)
            await asyncio.sleep(HEALTH_POLL_S)

    def _why_not_ready(self, status: int) -> str:
        """What an answer of the health path says; ``""``: the engine is ready, or loading (503)."""
        path = self._start.spec.health
        if status == 200 and not self._owns_its_listener():
            return f"{path} answers at {self.upstream.host}:{self.upstream.port}, but no process of this model listens"
        return "" if status in (200, 503) else f"{path} answers {status}"

    def _is_of_our_probes(self, data: bytes) -> bool:
        """Whether output is nothing but the log of swapd's own requests: that an engine writes it is no progress.

        Its lines have the path, or the status that was answered last.
        """
        path, status = self._start.spec.health.encode(), self._refused_with.encode()
        marks = [mark for mark in (path if path != b"/" else b"", status) if mark]
        return all(any(mark in line for mark in marks) for line in data.splitlines() if line.strip())

    async def _watch_progress(self) -> None:
        """Ends a load that shows no life: no message, no output, no memory growth for ``load_timeout``."""
        limit_s = self._start.spec.load_timeout_s
        while not self._settled.done():
            self._notice_growth()
            left_s = self._last_progress_s + limit_s - time.monotonic()
            if left_s <= 0:
                self._doom = self._doom or TIMEOUT
                await self._give_up(f"no load progress for {limit_s:g} s")
                self._settle(ready=False)
                return
            await asyncio.sleep(min(left_s, PROGRESS_CHECK_S))

    async def _give_up(self, why: str) -> None:
        """What ``stop_cmd`` stops (a container) outlives the process that started it."""
        if self._start.spec.stop_cmd:
            await self.stop(why)
        else:
            self._note(f"{why}: SIGKILL")
            await self._child.kill(self._start.spec.kill_timeout_s)

    def _notice_growth(self) -> None:
        pages = procfs.rss_pages(self.pid)
        if pages > self._rss_pages + 256:  # a MiB: a sleeping process grows by less
            self._rss_pages, self._last_progress_s = pages, time.monotonic()

    def _owns_its_listener(self) -> bool:
        """Whether the answer came from our child and not from a stranger on its port."""
        if self.upstream.path or not self._start.owns_listener:
            return True
        return procfs.listens(self.pid, self.upstream.port)

    async def _read_back(self) -> None:
        """The context the engine really has; a router's ready message told it already."""
        spec = self._start.spec
        if not self._start.is_llama_server:
            return
        self.n_ctx = self.n_ctx or await health.read_ctx(self.upstream, spec.api_key)
        wanted = expected_slot_ctx(spec)
        if self.n_ctx and self.n_ctx < wanted:
            self.degraded = f"context of {self.n_ctx} tokens a slot, {wanted} configured"

    def _settle(self, *, ready: bool) -> None:
        if not self._settled.done() and not (ready and self._doom):  # too late: its end has begun
            self._settled.set_result(ready)

    def _note(self, text: str) -> None:
        self._ring.append(f"[swapd] {text}\n".encode())

    def _report(self, status: ExitStatus | None) -> ExitReport:
        """``None``: not even SIGKILL ended it; ``exited`` still waits then."""
        if status is None:
            text = f"process {self.pid} outlived SIGKILL"
            return ExitReport("still there", self._doom, text, self._last_lines(), still_there=True)
        output = self._stdout.text() + "\n" + self._stderr.text()
        cause = self._doom or classify(status.code, status.signal, output)
        if cause == "exited_before_ready" and self._settled.done() and self._settled.result():
            cause = "unknown"
        why = explain(cause, output)
        if cause == TIMEOUT and self._refusal:
            why += f": {self._refusal}"
        return ExitReport(str(status), cause, why, self._last_lines())

    def _last_lines(self) -> str:
        return last_lines(self._stderr.text() or self._stdout.text())
