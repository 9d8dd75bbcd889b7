"""AMD GPUs through the amdgpu driver's files under ``/sys/class/drm``."""

from __future__ import annotations

from pathlib import Path

from swapd.core.ledger import DeviceSample


def read(root: Path = Path("/sys/class/drm")) -> tuple[DeviceSample, ...]:
    """Every card with VRAM counters, in PCI order; empty if there is none."""
    devices = {card.resolve() for card in root.glob("card*/device") if (card / "mem_info_vram_total").exists()}
    return tuple(_gpu(device, i) for i, device in enumerate(sorted(devices, key=lambda d: d.name)))


def _gpu(device: Path, index: int) -> DeviceSample:
    total = int((device / "mem_info_vram_total").read_text())
    try:
        free: int | None = total - int((device / "mem_info_vram_used").read_text())
    except (OSError, ValueError):
        free = None
    unique = device / "unique_id"
    name = f"GPU-{unique.read_text().strip()}" if unique.exists() else device.name
    return DeviceSample(name, total, free, index, "amdgpu", device.name)
