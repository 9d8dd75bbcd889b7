"""Starts models' processes: gguf models by their llama-server or the embedded engine, ``cmd`` models as told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swapd.core.endpoint import Upstream
from swapd.core.spec import LaunchSpec, ModelId
from swapd.errors import StartFailed
from swapd.launch import procfs, state_file
from swapd.launch.process import OutputSink, Process
from swapd.launch.ring import DEFAULT_CAPACITY_BYTES, OutputRing
from swapd.launch.runtime_dir import RuntimeDir
from swapd.launch.spawn import ExecFailed, Shim, Word, oom_score_for_children, spawn_shim
from swapd.llama import command
from swapd.llama.instance import LlamaInstance, RunBeside, Start
from swapd.llama.probe import BinaryReport, Prober, exec_cause, why_not_executed
from swapd.llama.projection import PROJECTION_ARGS, PROJECTION_BOUND_S, ProjectionReader

_CONTAINER_RUNNERS = frozenset(["docker", "podman", "nerdctl"])


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all children have in common. ``nofile_soft`` 0 = leave their limit of open files as swapd's."""

    state_dir: Path
    inherited: Mapping[str, str]
    nofile_soft: int = 0
    ring_bytes: int = DEFAULT_CAPACITY_BYTES


class LlamaLauncher:
    """Implements ``supervisor.ports.Launcher``; use it in the thread that runs the loop for swapd's whole life.

    ``specs`` is looked up at each start, so a live mapping follows the configuration.
    ``resolve_gpus(model)``: GPU UUIDs in the configured order, empty for none,
    ``None`` for all. ``default_ctx(model)``: tokens where neither ``ctx`` nor
    ``args`` say (0 = 32768).
    """

    def __init__(
        self,
        specs: Mapping[ModelId, LaunchSpec],
        surroundings: Surroundings,
        *,
        resolve_gpus: Callable[[ModelId], Sequence[str] | None],
        default_ctx: Callable[[ModelId], int] = lambda _model: 0,
        prober: Prober | None = None,
    ) -> None:
        self._specs, self._surroundings = specs, surroundings
        self._resolve_gpus, self._default_ctx = resolve_gpus, default_ctx
        self._prober = prober or Prober()
        self._state = state_file.StateFile(surroundings.state_dir)
        self._runtime: RuntimeDir | None = None
        self._rings: dict[ModelId, OutputRing] = {}

    async def prepare(self, model: ModelId) -> Shim:
        """See ``supervisor.ports.Launcher``."""
        shim = self._spawn(model)
        try:
            await self._report(self._spec(model))
        except BaseException:
            shim.kill_soon()
            raise
        return shim

    async def start(
        self, model: ModelId, generation: int, prepared: object = None, args: tuple[str, ...] = ()
    ) -> LlamaInstance:
        """See ``supervisor.ports.Launcher``; a ``prepared`` that is no live shim of ours is not used."""
        shim = prepared if isinstance(prepared, Shim) and prepared.process.status is None else None
        try:
            spec = self._spec(model)
            spec = replace(spec, args=(*spec.args, *args)) if args else spec
            report = await self._report(spec)
            start, todo = self._plan(spec, report)
            instance = LlamaInstance(start, self._ring(model), self._beside(model, todo.env))
            shim = shim or self._spawn(model)
            instance.attach(await self._become(shim, todo, instance.take_output))
        except BaseException:
            if shim is not None:
                shim.kill_soon()
            raise
        if start.upstream.path:
            instance.on_exit(lambda: _unlink(start.upstream.path))
        return instance

    async def project(self, model: ModelId, args: tuple[str, ...] = ()) -> Sequence[int]:
        """Bytes that the model's own binary says it would allocate on each GPU, in CUDA's order; empty = it cannot say.

        Its process lives for about a second and holds a GPU context meanwhile.

        Raises:
            StartFailed: it could not be started, or told nothing in time.
        """
        spec = self._spec(model)
        report = await self._report(spec)
        if report is None or not (report.path and report.fit and report.log_jsonl):
            return ()
        start, todo = self._plan(replace(spec, args=(*spec.args, *args, *PROJECTION_ARGS)), report)
        reader, told = ProjectionReader(), asyncio.Event()

        def listen(_stream: str, data: bytes) -> None:
            if reader.feed(data):
                told.set()

        shim = self._spawn(model)
        try:
            process = await self._become(shim, todo, listen)
            process.on_exit(lambda _status: told.set())
            async with asyncio.timeout(PROJECTION_BOUND_S):
                await told.wait()
        except TimeoutError:
            raise StartFailed(f"it told nothing within {PROJECTION_BOUND_S:g} s", cause="timeout") from None
        finally:
            await asyncio.shield(shim.process.kill(spec.kill_timeout_s))
            if start.upstream.path:
                _unlink(start.upstream.path)
        return reader.by_gpu or ()

    def log(self, model: ModelId) -> bytes:
        """See ``supervisor.ports.Launcher``."""
        return self._ring(model).snapshot()

    def follow(self, model: ModelId) -> AsyncIterator[bytes]:
        """See ``supervisor.ports.Launcher``."""
        return self._ring(model).follow()

    async def sweep(self) -> Sequence[str]:
        """See ``supervisor.ports.Launcher``."""
        return await asyncio.to_thread(state_file.sweep, self._surroundings.state_dir)

    def close(self) -> None:
        """End followers and remove the sockets' directory; children must be gone."""
        for ring in self._rings.values():
            ring.close()
        if self._runtime is not None:
            self._runtime.remove()
            self._runtime = None

    def _spec(self, model: ModelId) -> LaunchSpec:
        spec = self._specs.get(model)
        if spec is None:
            raise StartFailed("it is no longer configured", cause="unknown")
        return spec

    async def _report(self, spec: LaunchSpec) -> BinaryReport | None:
        """What the model's binary can do; ``None`` for a ``cmd``."""
        if not spec.gguf:
            return None
        assert spec.binary is not None, "a gguf model without a binary: resolve() must have set one"
        report = await self._prober.report_async(spec.binary)
        if report.problem:
            raise StartFailed(report.problem, cause=report.cause)
        return report

    def _plan(self, spec: LaunchSpec, report: BinaryReport | None) -> tuple[Start, command.Command]:
        upstream = self._address(command.wants_socket(spec, report))
        gpus = () if report is not None and not report.path else self._resolve_gpus(spec.id)
        todo = command.build(
            spec,
            report,
            upstream,
            inherited=self._surroundings.inherited,
            gpus=gpus,
            default_ctx_tokens=self._default_ctx(spec.id),
        )
        start = Start(
            spec,
            upstream,
            speaks_router=todo.speaks_router,
            is_llama_server=report is not None,
            owns_listener=os.path.basename(todo.argv[0]) not in _CONTAINER_RUNNERS,
        )
        return start, todo

    def _address(self, wants_socket: bool) -> Upstream:
        if not wants_socket:
            return Upstream(host="127.0.0.1", port=_free_port())
        if self._runtime is None:
            try:
                self._runtime = RuntimeDir.create()
            except OSError as problem:
                raise StartFailed(str(problem), cause="unknown") from problem
        return Upstream(path=self._runtime.socket_path())

    def _spawn(self, model: ModelId) -> Shim:
        try:
            shim = spawn_shim(self._state.nonce)
        except OSError as problem:
            raise StartFailed(f"no process could be started: {problem}", cause="unknown") from problem
        self._state.add(shim.pid, model)
        shim.process.on_exit(lambda _status: self._state.remove(shim.pid))
        return shim

    async def _become(self, shim: Shim, todo: command.Command, sink: OutputSink) -> Process:
        word = Word(
            todo.argv,
            todo.env,
            oom_score_adj=oom_score_for_children(procfs.own_oom_score_adj()),
            nofile_soft=self._surroundings.nofile_soft,
            nonce=self._state.nonce,
        )
        try:
            return await shim.become(word, sink)
        except ExecFailed as problem:
            text = why_not_executed(todo.argv[0], problem.errno)
            raise StartFailed(text, cause=exec_cause(problem.errno), exit_status="not started") from problem

    def _beside(self, model: ModelId, env: Mapping[str, str]) -> RunBeside:
        """How the instance runs its ``stop_cmd``."""

        async def run(argv: Sequence[str]) -> None:
            ring = self._ring(model)
            shim = None
            try:
                shim = self._spawn(model)
                process = await self._become(shim, command.Command(tuple(argv), env), lambda _, data: ring.append(data))
                await process.exited()
            except StartFailed as problem:
                ring.append(f"[swapd] stop_cmd: {problem}\n".encode())
            finally:
                if shim is not None:
                    shim.kill_soon()

        return run

    def _ring(self, model: ModelId) -> OutputRing:
        ring = self._rings.get(model)
        if ring is None:
            ring = self._rings[model] = OutputRing(self._surroundings.ring_bytes)
        return ring


def _free_port() -> int:
    """A port of this moment; that the child, and nobody else, then listens on it is checked before it is ready."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
