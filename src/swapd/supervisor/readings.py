"""Readings of the devices as the scheduler's events: taken at once where that takes no time, else bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from swapd.core.events import DeviceSampled
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, ModelId
from swapd.supervisor.ports import Clock, DeviceMonitor

BOUND_S: Final = 5.0
"""A reading that takes longer counts as failed: the devices are unknown."""


log = structlog.get_logger(__name__)


class Readings:
    """Asks the monitor about the devices and the processes there are (``pids``), and keeps the last answer."""

    def __init__(self, monitor: DeviceMonitor, clock: Clock, pids: Callable[[], Mapping[ModelId, int]]) -> None:
        self._monitor, self._clock, self._pids = monitor, clock, pids
        self.last = MachineSample(gpus_known=False, problem="the devices were not read yet")

    def glance(self) -> DeviceSampled | None:
        """A reading here and now; ``None`` where a driver has to be asked, which may hang."""
        at = self._clock.now()
        try:
            seen = self._monitor.glance(self._pids())
        except Exception:  # noqa: BLE001 - a bug; the task that reads in its place raises it where it is heard
            return None
        return None if seen is None else DeviceSampled(at, *seen)

    async def read(self) -> DeviceSampled:
        """A reading, or within ``BOUND_S`` that the devices are unknown."""
        at = self._clock.now()
        try:
            async with asyncio.timeout(BOUND_S):
                return DeviceSampled(at, *await self._monitor.sample(self._pids()))
        except TimeoutError:
            ram = DeviceSample(RAM, self.last.ram.total_bytes, None)
            problem = f"no answer within {BOUND_S:.0f} s"
            return DeviceSampled(at, MachineSample(ram=ram, gpus_known=False, problem=problem))

    def keep(self, sample: MachineSample) -> bool:
        """Make a sample the last one; True if these are other devices than before."""
        before, self.last = self.last, sample
        if _identity(sample) == _identity(before):
            return False
        log.info("devices", gpus=[g.id for g in sample.gpus], known=sample.gpus_known, problem=sample.problem)
        return True


def _identity(sample: MachineSample) -> tuple[bool, list[tuple[str, int]], bool]:
    return sample.gpus_known, [(g.id, g.total_bytes) for g in sample.gpus], sample.ram.free_bytes is None
