"""The real supervisor over a machine whose readings are scripted: which of them are handled, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.real import ReadyLauncher

from swapd.core.endpoint import Upstream
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, Catalog, ModelSpec, Policy
from swapd.supervisor.pool import Supervisor
from swapd.units import GIB
from tests.component.fake_supervisor import until

INTERVAL_S = 0.05


class World(ReadyLauncher):
    """Free memory as a test sets it; ``slow_s`` 0: told at once, as by a simulated machine, else as by a driver."""

    def __init__(self) -> None:
        super().__init__(Upstream(path="/nowhere"))
        self.free_gib, self.slow_s, self.looks, self.broken = 20.0, 0.0, 0, False

    def machine(self) -> MachineSample:
        self.looks += 1
        gpu = DeviceSample("GPU-0", 24 * GIB, int(self.free_gib * GIB), 0, "scripted")
        return MachineSample((gpu,), DeviceSample(RAM, 64 * GIB, 60 * GIB))

    def glance(self, pids: object):  # type: ignore[no-untyped-def,override]
        if self.broken:
            raise ZeroDivisionError
        return None if self.slow_s else (self.machine(), {})

    async def sample(self, pids: object):  # type: ignore[no-untyped-def,override]
        await asyncio.sleep(self.slow_s)
        return self.machine(), {}


@asynccontextmanager
async def supervising(world: World, idle_timeout_s: float = 0.0) -> AsyncIterator[Supervisor]:
    """With ``a`` loaded, idle, and its load's own readings over."""
    policy = Policy(sample_interval_s=INTERVAL_S)
    catalog = Catalog({"a": ModelSpec("a", idle_timeout_s=idle_timeout_s)}, policy=policy)
    supervisor = Supervisor(catalog, launcher=world, monitor=world, store=world, info=world, clock=world)  # type: ignore[arg-type]
    async with supervisor.running():
        await supervisor.load("a", rid="r").wait()
        looks = world.looks
        await until(lambda: world.looks >= looks + 3)
        yield supervisor


def handled_at(supervisor: Supervisor) -> float:
    """When the reading was taken that the scheduler knows."""
    return supervisor.scheduler.state.ledger.sampled_at


async def test_readings_that_say_nothing_new_are_kept_until_somebody_looks() -> None:
    world = World()
    async with supervising(world) as supervisor:
        handled, looks = handled_at(supervisor), world.looks
        await until(lambda: world.looks >= looks + 3)
        assert handled_at(supervisor) == handled
        supervisor.status()
        assert handled_at(supervisor) > handled + INTERVAL_S


async def test_reading_with_news_is_handled_at_once() -> None:
    """Another program takes so much that the headroom is gone: two readings, and the idle model goes."""
    world = World()
    async with supervising(world) as supervisor:
        assert supervisor.state_of("a") == "ready"
        world.free_gib = 0.5
        await until(lambda: supervisor.state_of("a") == "stopped")


async def test_idle_timeout_does_not_wait_for_a_driver_that_takes_its_time() -> None:
    world = World()
    async with supervising(world, idle_timeout_s=1.0) as supervisor:
        world.slow_s = 30.0
        await until(lambda: supervisor.state_of("a") == "releasing")


async def test_monitor_that_breaks_a_promise_is_asked_in_a_task_where_that_is_heard() -> None:
    world = World()
    async with supervising(world) as supervisor:
        world.broken, looks = True, world.looks
        await until(lambda: world.looks >= looks + 2)
        assert supervisor.devices_known()
