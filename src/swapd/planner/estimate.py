"""What a load takes by its header and flags alone: the engine's own files read, and the formulas applied."""

from __future__ import annotations

from collections.abc import Sequence

from swapd.core.flags import EngineFlags
from swapd.gguf.header import read_header
from swapd.gguf.memory import Gpu, Prediction, predict
from swapd.gguf.types import GgufHeader


def prediction(header: GgufHeader, flags: EngineFlags, gpus: Sequence[Gpu]) -> Prediction:
    """Predicted for GPUs in CUDA's order, with the draft model and the projector that the flags name.

    Raises:
        GgufError, OSError: one of those two cannot be read.
    """
    draft = read_header(flags.draft_model) if flags.draft_model else None
    mmproj = read_header(flags.mmproj) if flags.mmproj else None
    return predict(header, flags, gpus, draft=draft, mmproj=mmproj)
