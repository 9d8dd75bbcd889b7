"""The footprint of a load that was never measured."""

from __future__ import annotations

from collections.abc import Sequence

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import Footprint
from swapd.gguf.header import read_header
from swapd.gguf.memory import Gpu, predict
from swapd.gguf.types import GgufHeader
from swapd.units import MIB

OVERHEAD_BYTES = 600 * MIB
"""CUDA context and kernels, until this machine's own figure is measured (597.5 MiB on the one measured)."""


def estimate(header: GgufHeader, flags: EngineFlags, gpus: Sequence[DeviceSample]) -> Footprint:
    """Predicted from the header and the flags, on these GPUs in their order.

    Raises:
        GgufError, OSError: a draft model or projector that the flags name cannot be read.
    """
    devices = [Gpu(g.id, g.total_bytes, g.free_bytes or g.total_bytes, OVERHEAD_BYTES) for g in gpus]
    draft = read_header(flags.draft_model) if flags.draft_model else None
    mmproj = read_header(flags.mmproj) if flags.mmproj else None
    return predict(header, flags, devices, draft=draft, mmproj=mmproj).footprint()
