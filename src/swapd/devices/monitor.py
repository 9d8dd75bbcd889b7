"""One reading of the whole machine, whatever it has: the source is chosen once, the reading is done in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, DeviceId, ModelId
from swapd.devices import amdgpu
from swapd.devices.host import held_ram, sample_ram
from swapd.devices.nvml import GpusUnknown, NoGpus, Nvml
from swapd.devices.simulated import SimulatedMachine


class Monitor:
    """Reads devices and what the given processes hold; never raises, what cannot be read is unknown."""

    def __init__(self, source: str) -> None:
        """``source`` as in ``[devices]``: ``auto``, ``none`` or ``file:PATH``."""
        is_file = source.startswith("file:")
        self._simulated = SimulatedMachine(Path(source.removeprefix("file:"))) if is_file else None
        self._nvml = Nvml() if source == "auto" else None
        self._turn = asyncio.Lock()
        self._reading = False
        self._without_amd = False

    async def sample(
        self, pids: Mapping[ModelId, int]
    ) -> tuple[MachineSample, Mapping[ModelId, Mapping[DeviceId, int]]]:
        """The machine now; one reading at a time. A driver that hangs costs one thread, not one a call."""
        if self._simulated is not None:
            return self._read_simulated(pids)
        if self._nvml is None or (self._nvml.is_absent and self._without_amd):
            return MachineSample((), sample_ram()), _ram_of(pids)
        async with self._turn:
            return await self._read_in_thread(self._nvml, pids)

    async def _read_in_thread(
        self, nvml: Nvml, pids: Mapping[ModelId, int]
    ) -> tuple[MachineSample, Mapping[ModelId, Mapping[DeviceId, int]]]:
        if self._reading:
            problem = "the driver has not answered the last reading yet"
            return MachineSample(ram=sample_ram(), gpus_known=False, problem=problem), {}
        self._reading = True
        return await anyio.to_thread.run_sync(self._read, nvml, dict(pids), abandon_on_cancel=True)

    def sample_now(self) -> MachineSample:
        """One reading without a loop (``check``, ``plan``)."""
        if self._simulated is not None:
            return self._simulated.sample()
        if self._nvml is None:
            return MachineSample((), sample_ram())
        return self._read(self._nvml, {})[0]

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

    def _read_simulated(
        self, pids: Mapping[ModelId, int]
    ) -> tuple[MachineSample, Mapping[ModelId, dict[DeviceId, int]]]:
        assert self._simulated is not None
        sample = self._simulated.sample()
        return sample, {} if self._simulated.simulates_ram else _ram_of(pids)

    def _read(
        self, nvml: Nvml, pids: Mapping[ModelId, int]
    ) -> tuple[MachineSample, dict[ModelId, dict[DeviceId, int]]]:
        try:
            held = _ram_of(pids)
            try:
                gpus, by_pid = nvml.read(frozenset(pids.values()))
            except NoGpus:
                gpus, by_pid = self._amd(), {}
            except GpusUnknown as error:
                return MachineSample(ram=sample_ram(), gpus_known=False, problem=str(error)), held
            for model, pid in pids.items():
                held.setdefault(model, {}).update(by_pid.get(pid, {}))
            return MachineSample(gpus, sample_ram()), held
        finally:
            self._reading = False


def _ram_of(pids: Mapping[ModelId, int]) -> dict[ModelId, dict[DeviceId, int]]:
    sizes = ((model, held_ram(pid)) for model, pid in pids.items())
    return {model: {RAM: size} for model, size in sizes if size is not None}
