"""What a load takes by its header and flags alone: the engine's own files read, and the formulas applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import DeviceId
from swapd.gguf.header import read_header
from swapd.gguf.memory import Gpu, Prediction, predict
from swapd.gguf.types import GgufHeader
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.planner.machine import gpu_of


def prediction(header: GgufHeader, flags: EngineFlags, gpus: Sequence[Gpu]) -> Prediction:
    """Predicted for GPUs in CUDA's order, with the draft model and the projector that the flags name.

    Raises:
        GgufError, OSError: one of those two cannot be read.
    """
    draft = read_header(flags.draft_model) if flags.draft_model else None
    mmproj = read_header(flags.mmproj) if flags.mmproj else None
    return predict(header, flags, gpus, draft=draft, mmproj=mmproj)


def estimate(
    header: GgufHeader, flags: EngineFlags, gpus: Sequence[DeviceSample], overheads: Mapping[DeviceId, int]
) -> Prediction:
    """The same for GPUs as they were read, with the overheads learned on this machine.

    Raises:
        GgufError, OSError: a draft model or projector that the flags name cannot be read.
    """
    devices = [gpu_of(g, overheads.get(g.id, OVERHEAD_BYTES)) for g in gpus]
    return prediction(header, flags, devices)
