"""The live processes: one task for each, from its start to its exit report."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from swapd.core import events as ev
from swapd.core.spec import ModelId
from swapd.errors import InstanceDied, StartFailed
from swapd.supervisor.ports import Clock, ExitReport, Instance, Launcher, PreparedShim, Upstream

REPORTS_KEPT: Final = 64
UNUSED_SHIM_S: Final = 60.0

log = structlog.get_logger(__name__)


class Child:
    """One generation of a model: its instance once started, and its end."""

    def __init__(self, model: ModelId, generation: int) -> None:
        self.model, self.generation = model, generation
        self.instance: Instance | None = None
        self.started: asyncio.Future[Instance | None] = asyncio.get_running_loop().create_future()
        self.report: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self.lost = False


class Children:
    """Starts, watches and stops processes through the launcher; what happens comes back through ``dispatch``."""

    def __init__(
        self,
        launcher: Launcher,
        dispatch: Callable[[ev.Event], None],
        clock: Clock,
        sample: Callable[[], Awaitable[None]],
    ) -> None:
        self._launcher, self._dispatch, self._clock, self._sample = launcher, dispatch, clock, sample
        self._children: dict[ModelId, Child] = {}
        self._past: dict[tuple[ModelId, int], Child] = {}
        self._shims: dict[ModelId, asyncio.Future[PreparedShim | None]] = {}
        self._killing = False

    # ---- orders

    async def prepare(self, model: ModelId) -> None:
        """Warm a shim for the next start; one that is not used within a minute is discarded."""
        if model in self._shims or model in self._children:
            return
        pending = self._shims[model] = asyncio.get_running_loop().create_future()
        try:
            pending.set_result(await self._launcher.prepare(model))
            await asyncio.sleep(UNUSED_SHIM_S)
        except StartFailed:
            pending.set_result(None)  # the start itself will say why
        finally:
            if self._shims.get(model) is pending:
                del self._shims[model]
                if pending.done() and (shim := pending.result()) is not None:
                    await asyncio.shield(shim.discard())

    async def _prepared(self, model: ModelId) -> PreparedShim | None:
        pending = self._shims.pop(model, None)
        return await pending if pending is not None else None

    async def run(self, model: ModelId, generation: int, args: tuple[str, ...], *, sample_first: bool) -> None:
        """Start a process and stay with it until it is reaped."""
        child = self._children[model] = Child(model, generation)
        try:
            child.instance = await self._launcher.start(model, generation, await self._prepared(model), args)
        except StartFailed as error:
            child.started.set_result(None)
            status = error.exit_status or "did not start"
            self._ended(child, ExitReport(status, error.cause, error.message, error.stderr_tail), ready=False)
            return
        child.started.set_result(child.instance)
        failed = await child.instance.ready(lambda at, stage: self._progressed(child, at, stage))
        if failed is not None and failed.still_there:
            child.lost = True
            log.error("lost", model=model, pid=child.instance.pid)
            self._tell_of_failure(child, failed)
            self._settle(child)
            self._ended(child, await child.instance.exited(), ready=True)
            return
        if failed is not None:
            self._ended(child, failed, ready=False)
            return
        if sample_first:
            await self._sample()
        self._dispatch(ev.InstanceReady(self._clock.now(), model, generation))
        self._ended(child, await child.instance.exited(), ready=True)

    async def stop(self, model: ModelId, generation: int, reason: str) -> None:
        """Run the stop ladder; a process that outlives it is reported lost."""
        child = self._children.get(model)
        if child is None or child.generation != generation:
            return
        instance = await child.started
        if instance is None:
            return
        ended = await (instance.kill() if self._killing else instance.stop(reason))
        if not ended:
            child.lost = True
            text = f"the process {instance.pid} outlived SIGKILL"
            log.error("lost", model=model, pid=instance.pid)
            self._dispatch(ev.InstanceLost(self._clock.now(), model, generation, text))
            self._settle(child)

    def kill_all(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """From now on every stop is a SIGKILL, those under way too."""
        self._killing = True
        for child in list(self._children.values()):
            if child.instance is not None:
                spawn(_kill(child.instance))

    def _progressed(self, child: Child, progress: float, stage: str) -> None:
        self._dispatch(ev.LoadProgressed(self._clock.now(), child.model, child.generation, progress, stage))

    def _ended(self, child: Child, report: ExitReport, *, ready: bool) -> None:
        if self._children.get(child.model) is child:
            del self._children[child.model]
        self._past[child.model, child.generation] = child
        while len(self._past) > REPORTS_KEPT:
            del self._past[next(iter(self._past))]
        if not child.report.done():
            child.report.set_result(report)
        if ready:
            details = (_words(report), report.cause, report.status, report.stderr_tail)
            self._dispatch(ev.InstanceExited(self._clock.now(), child.model, child.generation, *details))
        else:
            self._tell_of_failure(child, report)

    def _tell_of_failure(self, child: Child, report: ExitReport) -> None:
        text = f"{child.model!r} did not start ({_words(report)})"
        details = (text, report.cause, report.status, report.stderr_tail, report.cause == "timeout", report.still_there)
        self._dispatch(ev.StartFailed(self._clock.now(), child.model, child.generation, *details))

    def _settle(self, child: Child) -> None:
        """Those who wait for a lost process need not wait any longer."""
        if not child.report.done():
            child.report.set_result(ExitReport("lost", "lost", "SIGKILL did not end it"))

    # ---- facts

    def upstream(self, model: ModelId) -> Upstream:
        """Where the ready instance listens."""
        instance = self._children[model].instance
        assert instance is not None
        return instance.upstream

    def pids(self) -> Mapping[ModelId, int]:
        """The processes there are."""
        return {m: c.instance.pid for m, c in self._children.items() if c.instance is not None}

    def n_ctx(self, model: ModelId) -> int:
        """Context in tokens that the instance told; 0 = not known."""
        child = self._children.get(model)
        return child.instance.n_ctx if child is not None and child.instance is not None else 0

    def degraded(self, model: ModelId) -> str:
        """Why the instance is less than configured, or ``""``."""
        child = self._children.get(model)
        return child.instance.degraded if child is not None and child.instance is not None else ""

    async def gone(self, model: ModelId, generation: int) -> bool:
        """Wait until a generation has ended (at once if there is none); False if it is lost."""
        child = self._children.get(model)
        if child is not None and child.generation == generation:
            await asyncio.shield(child.report)
            return not child.lost
        return True

    async def exit_report(self, model: ModelId, generation: int, *, bound_s: float) -> ExitReport | None:
        """A generation's end; ``None`` if it has not ended within the bound."""
        child = self._children.get(model)
        if child is None or child.generation != generation:
            child = self._past.get((model, generation))
        if child is None:
            return None
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.shield(child.report)
        except TimeoutError:
            return None


def _words(report: ExitReport) -> str:
    return f"{report.status}: {report.message}" if report.message else report.status


async def _kill(instance: Instance) -> None:
    await instance.kill()


def died(model: ModelId, report: ExitReport) -> InstanceDied:
    """The error that a process's end means to its requests."""
    text = f"the process of {model!r} ended ({report.status})"
    if report.message:
        text += f": {report.message}"
    return InstanceDied(text, cause=report.cause, exit_status=report.status, stderr_tail=report.stderr_tail)
