"""The footprint of a load that was never measured."""

from __future__ import annotations

from collections.abc import Sequence

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM, Footprint
from swapd.gguf.types import GgufHeader
from swapd.units import MIB

OVERHEAD_BYTES = 600 * MIB
"""CUDA context and kernels, until this machine's own figure is measured (597.5 MiB on the one measured)."""


def estimate(header: GgufHeader, flags: EngineFlags, gpus: Sequence[DeviceSample]) -> Footprint:
    """Interim: everything on the first GPU, or in RAM."""
    size = header.data_bytes + flags.ctx_tokens * 1024 * 64 + OVERHEAD_BYTES
    return Footprint({gpus[0].id: size, RAM: 300 * MIB} if gpus else {RAM: size})
