"""A machine described by a JSON file, read again at every sample (``devices.source = "file:PATH"``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM
from swapd.devices.host import Host
from swapd.units import MIB


class SimulatedMachine:
    """Reads the file; a missing or broken one makes the devices unknown, as a failure of NVML does."""

    def __init__(self, path: Path, host: Host) -> None:
        self._path, self._host = path, host
        self._first_ram: int | None = None
        self.simulates_ram = False

    def sample(self) -> MachineSample:
        """The machine as the file has it now."""
        try:
            tree = json.loads(self._path.read_text(encoding="utf-8"))
            gpus = tuple(_gpu(entry, i) for i, entry in enumerate(tree.get("gpus", [])))
            return MachineSample(gpus, self._ram(tree))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{self._path}: {_why(error)}"
            return MachineSample(ram=self._host.ram(), gpus_known=False, problem=problem)

    def _ram(self, tree: dict[str, Any]) -> DeviceSample:
        host = self._host.ram()
        self.simulates_ram = "ram_available_mib" in tree
        if not self.simulates_ram:
            return host
        available = int(tree["ram_available_mib"]) * MIB
        if self._first_ram is None:
            self._first_ram = available
        total = int(tree["ram_total_mib"]) * MIB if "ram_total_mib" in tree else max(self._first_ram, host.total_bytes)
        return DeviceSample(RAM, total, available, name="simulated")


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error}"
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return f'not as {{"gpus": [{{"id": "GPU-0", "total_mib": 16384, "free_mib": 15000}}]}}: {error}'


def _gpu(entry: dict[str, Any], position: int) -> DeviceSample:
    free = entry.get("free_mib")
    return DeviceSample(
        id=str(entry["id"]),
        total_bytes=int(entry["total_mib"]) * MIB,
        free_bytes=None if free is None else int(free * MIB),
        index=int(entry.get("index", position)),
        name=str(entry.get("name", "simulated")),
        pci_bus_id=str(entry.get("pci_bus_id", "")),
    )
