"""One reading of the whole machine, whatever it has: the source is chosen once, a driver is asked in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, DeviceId, ModelId
from swapd.devices import amdgpu
from swapd.devices.host import Host
from swapd.devices.nvml import GpusUnknown, NoGpus, Nvml
from swapd.devices.simulated import SimulatedMachine

Held: TypeAlias = dict[ModelId, dict[DeviceId, int]]
Gpus: TypeAlias = tuple[tuple[DeviceSample, ...], dict[int, dict[DeviceId, int]]]
"""The devices, and what processes hold of them by pid."""


class Monitor:
    """Reads devices and what the given processes hold; never raises, what cannot be read is unknown."""

    def __init__(self, source: str) -> None:
        """``source`` as in ``[devices]``: ``auto``, ``none`` or ``file:PATH``."""
        self._host, self._nvml = Host(), Nvml()
        is_file = source.startswith("file:")
        self._simulated = SimulatedMachine(Path(source.removeprefix("file:")), self._host) if is_file else None
        self._without_driver = source != "auto"
        self._without_amd = False
        self._turn = asyncio.Lock()
        self._asking = False

    def glance(self, pids: Mapping[ModelId, int]) -> tuple[MachineSample, Held] | None:
        """The machine now, where no driver has to be asked, which might hang; ``None`` where one has to be."""
        if self._simulated is not None:
            sample = self._simulated.sample()
            return sample, {} if self._simulated.simulates_ram else self._held_ram(pids)
        if self._without_driver or (self._nvml.is_absent and self._without_amd):
            return MachineSample((), self._host.ram()), self._held_ram(pids)
        return None

    async def sample(self, pids: Mapping[ModelId, int]) -> tuple[MachineSample, Held]:
        """The machine now; one reading at a time. A driver that hangs costs one thread, not one a call."""
        return self.glance(pids) or await self._sample_in_turn(pids)

    async def _sample_in_turn(self, pids: Mapping[ModelId, int]) -> tuple[MachineSample, Held]:
        async with self._turn:
            if self._asking:
                return self._unknown("the driver has not answered the last reading yet"), {}
            self._asking = True
            held, asked = self._held_ram(pids), frozenset(pids.values())
            try:
                gpus, by_pid = await anyio.to_thread.run_sync(self._ask, asked, abandon_on_cancel=True)
            except GpusUnknown as error:
                return self._unknown(str(error)), held
            for model, pid in pids.items():
                held.setdefault(model, {}).update(by_pid.get(pid, {}))
            return MachineSample(gpus, self._host.ram()), held

    def sample_now(self) -> MachineSample:
        """One reading without a loop (``check``, ``plan``)."""
        seen = self.glance({})
        if seen is not None:
            return seen[0]
        try:
            return MachineSample(self._ask(frozenset())[0], self._host.ram())
        except GpusUnknown as error:
            return self._unknown(str(error))

    def _unknown(self, problem: str) -> MachineSample:
        return MachineSample(ram=self._host.ram(), gpus_known=False, problem=problem)

    def _held_ram(self, pids: Mapping[ModelId, int]) -> Held:
        sizes = self._host.held(pids.values())
        return {model: {RAM: sizes[pid]} for model, pid in pids.items() if pid in sizes}

    def _ask(self, pids: frozenset[int]) -> Gpus:
        """Ask the driver. Blocks, however long it takes; raises ``GpusUnknown``."""
        try:
            return self._nvml.read(pids)
        except NoGpus:
            return self._amd(), {}
        finally:
            self._asking = False

    def _amd(self) -> tuple[DeviceSample, ...]:
        """AMD cards; a machine that has none at the first look is not searched again."""
        if self._without_amd:
            return ()
        try:
            gpus = amdgpu.read()
        except (OSError, ValueError):
            gpus = ()
        self._without_amd = not gpus
        return gpus
