"""What context and kernels take on this machine's GPUs, learned from every load at idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from swapd.core.spec import DeviceId
from swapd.store import Load, Store
from swapd.units import MIB

if TYPE_CHECKING:
    from swapd.gguf.memory import Prediction

OVERHEAD_BYTES: Final = 600 * MIB
"""CUDA context and kernels, until this machine's own figure is measured (597.5 MiB on the one measured)."""
PLAUSIBLE_BYTES: Final = (32 << 20, 1228 << 20)
"""An overhead outside is none: somebody else's memory came or went during the load."""
NEWS_BYTES: Final = 4 << 20
"""A change that other models' predictions should hear of."""


class Overheads:
    """By binary and GPU: buffers are predicted exactly, so what a load takes beyond them is the machine's constant."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, binary: str, device: DeviceId) -> int:
        """Bytes: the median of the last loads, else the usual figure."""
        learned = self._store.overhead(binary, device)
        return OVERHEAD_BYTES if learned is None else learned

    def learn(self, binary: str, predicted: Prediction, load: Load, run: str) -> bool:
        """Take in a load that has not worked yet; True if the figure of a GPU moved. ``run`` counts once.

        seen = overhead used + measured - predicted.
        """
        if load.worked:
            return False
        moved = False
        for device in predicted.devices:
            idle, used = load.idle_bytes.get(device.id, 0), self.of(binary, device.id)
            seen = used + idle - device.need
            if idle and device.weights and PLAUSIBLE_BYTES[0] <= seen <= PLAUSIBLE_BYTES[1]:
                self._store.record_overhead(binary, device.id, run, seen)
                moved = moved or abs(self.of(binary, device.id) - used) > NEWS_BYTES
        return moved
