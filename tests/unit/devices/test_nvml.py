"""NVML as it behaves: missing, without devices, failing, with memory that is not supported."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from swapd.devices.nvml import PROCESS_SHARE_BYTES, GpusUnknown, NoGpus, Nvml
from swapd.units import GIB, MIB


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class FakeNvml(SimpleNamespace):
    """The calls that are used, for two cards; set an attribute to make one fail."""

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self) -> None:
        super().__init__(init_error=None, memory_error=None, count=2, inits=0)

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.init_error:
            raise self.init_error

    def nvmlShutdown(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-uuid-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA Test"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.memory_error:
            raise self.memory_error
        return SimpleNamespace(total=24 * GIB, free=20 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        mine = SimpleNamespace(pid=42, usedGpuMemory=3 * GIB)
        return [mine, SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=42, usedGpuMemory=None)][
            : 3 - handle
        ]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpus_are_known_by_uuid_in_pci_order(nvml: FakeNvml) -> None:
    gpus, _ = Nvml().read(frozenset())
    assert [(g.id, g.index, g.pci_bus_id, g.name) for g in gpus] == [
        ("GPU-uuid-0", 0, "00000000:00:00.0", "NVIDIA Test"),
        ("GPU-uuid-1", 1, "00000000:01:00.0", "NVIDIA Test"),
    ]
    assert gpus[0].total_bytes == 24 * GIB and gpus[0].free_bytes == 20 * GIB


def test_only_our_own_processes_figures_are_taken_with_the_share_nvml_leaves_out(nvml: FakeNvml) -> None:
    _, held = Nvml().read(frozenset({42}))
    assert held == {42: {"GPU-uuid-0": 3 * GIB + PROCESS_SHARE_BYTES, "GPU-uuid-1": 3 * GIB + PROCESS_SHARE_BYTES}}


@pytest.mark.parametrize("error", [NVMLError_LibraryNotFound("no library"), NVMLError_DriverNotLoaded("no driver")])
def test_a_machine_without_library_or_driver_has_no_gpus_and_is_not_asked_again(
    nvml: FakeNvml, error: Exception
) -> None:
    nvml.init_error = error
    reader = Nvml()
    for _ in range(3):
        with pytest.raises(NoGpus):
            reader.read(frozenset())
    assert nvml.inits == 1 and reader.is_absent


def test_no_device_is_no_gpus(nvml: FakeNvml) -> None:
    nvml.count = 0
    with pytest.raises(NoGpus):
        Nvml().read(frozenset())


def test_a_library_that_fails_is_unknown_and_initialised_again_at_the_next_reading(nvml: FakeNvml) -> None:
    reader = Nvml()
    reader.read(frozenset())
    nvml.memory_error = NVMLError("Unknown Error")
    with pytest.raises(GpusUnknown, match="Unknown Error"):
        reader.read(frozenset())
    nvml.memory_error = None
    assert len(reader.read(frozenset())[0]) == 2 and nvml.inits == 2


def test_unified_memory_counts_as_host_memory(nvml: FakeNvml) -> None:
    nvml.memory_error = NVMLError_NotSupported("Not Supported")
    gpus, _ = Nvml().read(frozenset())
    assert gpus[0].unified and gpus[0].total_bytes > 100 * MIB and gpus[0].free_bytes
