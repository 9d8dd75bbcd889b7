"""NVIDIA GPUs through NVML: by UUID, in PCI bus order, and never with a CUDA context of our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from swapd.core.ledger import DeviceSample
from swapd.core.spec import DeviceId
from swapd.devices.host import sample_ram
from swapd.units import MIB

PROCESS_SHARE_BYTES: Final = round(5.56 * MIB)
"""NVML's figure for a process reads this much below its share of the device (measured: docs/field-measurements.md)."""


class NoGpus(Exception):
    """There is no NVIDIA library, driver or device on this machine."""


class GpusUnknown(Exception):
    """There is, but it failed."""


class Nvml:
    """Reads NVML; a library that failed is initialised again at the next reading. Blocking: call it in a thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._none: NoGpus | None = None
        self._cards: list[tuple[Any, DeviceSample]] = []

    @property
    def is_absent(self) -> bool:
        """Whether this machine was seen to have no NVIDIA library or driver."""
        return self._none is not None

    def read(self, pids: frozenset[int]) -> tuple[tuple[DeviceSample, ...], dict[int, dict[DeviceId, int]]]:
        """All GPUs, and bytes by device of those processes the driver tells of.

        Raises:
            NoGpus: no library, no driver or no device.
            GpusUnknown: NVML failed.
        """
        if self._none is not None:
            raise self._none
        nvml = self._initialised()
        try:
            if not self._cards:
                self._cards = [self._card(nvml, i) for i in range(nvml.nvmlDeviceGetCount())]
            if not self._cards:
                raise NoGpus("no device")
            gpus = tuple(self._now(nvml, handle, card) for handle, card in self._cards)
            held: dict[int, dict[DeviceId, int]] = {}
            for handle, gpu in self._cards if pids else ():
                for pid, size in self._processes(nvml, handle):
                    if pid in pids:
                        held.setdefault(pid, {})[gpu.id] = size + PROCESS_SHARE_BYTES
            return gpus, held
        except nvml.NVMLError as error:
            self._forget()
            raise GpusUnknown(f"NVML: {error}") from None

    def _initialised(self) -> Any:
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                raise self._remember(NoGpus("nvidia-ml-py is not installed")) from None
            try:
                pynvml.nvmlInit()
            except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
                raise self._remember(NoGpus(str(error))) from None
            except pynvml.NVMLError as error:
                raise GpusUnknown(f"NVML: {error}") from None
            self._nvml = pynvml
        return self._nvml

    def _remember(self, none: NoGpus) -> NoGpus:
        """A machine without the library or the driver is not asked again: looking for them costs too much."""
        self._none = none
        return none

    def _forget(self) -> None:
        nvml, self._nvml, self._cards = self._nvml, None, []
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return

    @staticmethod
    def _card(nvml: Any, index: int) -> tuple[Any, DeviceSample]:
        """What does not change as long as the library stays initialised."""
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        uuid, name, bus = (v.decode() if isinstance(v, bytes) else v for v in (uuid, name, bus))
        return handle, DeviceSample(uuid, 0, None, index, name, bus)

    @staticmethod
    def _now(nvml: Any, handle: Any, card: DeviceSample) -> DeviceSample:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_NotSupported:
            host = sample_ram()
            return replace(card, total_bytes=host.total_bytes, free_bytes=host.free_bytes, unified=True)
        return replace(card, total_bytes=int(memory.total), free_bytes=int(memory.free))

    @staticmethod
    def _processes(nvml: Any, handle: Any) -> Iterator[tuple[int, int]]:
        try:
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return
        for process in processes:
            if process.usedGpuMemory:
                yield process.pid, int(process.usedGpuMemory)
