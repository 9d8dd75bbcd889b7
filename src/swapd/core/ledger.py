"""The headroom rule: what of each device's memory may still be given away.

``available(d) = total − foreign − Σ reserved(every instance not STOPPED) − headroom(d)``
with ``foreign = total − free − Σ current``, measured only while nothing starts,
stops or releases. Host RAM is the device ``RAM``. Bytes everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swapd.core.spec import RAM, DeviceId


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one moment; ``free_bytes`` None = could not be read."""

    id: DeviceId
    total_bytes: int
    free_bytes: int | None
    index: int = 0
    name: str = ""
    pci_bus_id: str = ""
    unified: bool = False


@dataclass(frozen=True, slots=True)
class MachineSample:
    """All devices at one moment.

    ``gpus_known`` False: reading the GPUs failed (``problem`` says how); an empty
    ``gpus`` with ``gpus_known`` True is a machine without GPUs.
    """

    gpus: tuple[DeviceSample, ...] = ()
    ram: DeviceSample = field(default_factory=lambda: DeviceSample(RAM, 0, None))
    gpus_known: bool = True
    problem: str = ""

    def devices(self) -> tuple[DeviceSample, ...]:
        """GPUs in their order, then RAM."""
        return (*self.gpus, self.ram)
