"""The real ``Supervisor`` with everything on, over engines that are ready at once: what swapd itself costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from swapd.core.endpoint import ExitReport, Upstream
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, Catalog, DeviceId, Footprint, ModelId, ModelSpec, Policy, RouteSpec
from swapd.proxy.app import build_app
from swapd.proxy.asgi import App
from swapd.proxy.settings import ProxySettings
from swapd.supervisor.pool import Supervisor
from swapd.units import GIB

KEY = "local-key"


class ReadyInstance:
    """A process that is always ready."""

    pid, n_ctx, degraded = 1, 4096, ""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._stopped = asyncio.Event()

    async def ready(self, progressed: Callable[[float, str], None]) -> ExitReport | None:
        return None

    async def exited(self) -> ExitReport:
        await self._stopped.wait()
        return ExitReport("exit code 0")

    async def stop(self, reason: str) -> bool:
        self._stopped.set()
        return True

    kill = stop


class Shim:
    async def discard(self) -> None:
        return None


class ReadyLauncher:
    """Implements ``Launcher`` and all other ports of a machine with one GPU."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def prepare(self, model: ModelId) -> Shim:
        return Shim()

    async def start(
        self, model: ModelId, generation: int, prepared: object = None, args: tuple[str, ...] = ()
    ) -> ReadyInstance:
        return ReadyInstance(self._upstream)

    def log(self, model: ModelId) -> bytes:
        return b""

    async def follow(self, model: ModelId) -> AsyncIterator[bytes]:
        yield b""

    async def sweep(self) -> Sequence[str]:
        return ()

    def glance(self, pids: object) -> None:
        """What the machine looks like is told by ``sample``."""

    async def sample(self, pids: object) -> tuple[MachineSample, Mapping[ModelId, Mapping[DeviceId, int]]]:
        gpu = DeviceSample("GPU-0", 24 * GIB, 23 * GIB, 0, "benchmark")
        return MachineSample((gpu,), DeviceSample(RAM, 64 * GIB, 60 * GIB)), {}

    def record(self, *args: object) -> bool:
        return False

    def prediction_errors(self, model: ModelId) -> Mapping[DeviceId, int]:
        return {}

    def footprint(self, model: ModelId, sample: MachineSample) -> Footprint:
        return Footprint({"GPU-0": 4 * GIB, RAM: GIB})

    def estimated_load_s(self, model: ModelId) -> float:
        return 1.0

    def now(self) -> float:
        return time.monotonic()


_supervisors: list[object] = []


async def build(upstream: str) -> App:
    """The whole app: guard, keys, leases, scheduler, timers; model ``a`` is loaded, two more are configured."""
    world = ReadyLauncher(Upstream(path=upstream))
    catalog = Catalog({m: ModelSpec(m, idle_timeout_s=900) for m in ("a", "b", "c")}, policy=Policy())
    supervisor = Supervisor(catalog, launcher=world, monitor=world, store=world, info=world, clock=world)
    running = supervisor.running()
    await running.__aenter__()
    _supervisors.append(running)
    settings = ProxySettings(api_keys=(KEY, "another-key"), admin_keys=("admin-key",))
    return build_app(supervisor, {m: RouteSpec(m) for m in catalog.models}, settings)
