"""Host memory: what a process takes for itself, what it pins, what it maps from the file, and what may come later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swapd.core.flags import EngineFlags
from swapd.gguf.cache import Slots
from swapd.gguf.model import Model
from swapd.gguf.run import Run, cache_bytes
from swapd.gguf.types import TensorInfo

MIB = 1 << 20
CHECKPOINTS = 32
"""Context checkpoints a slot may keep (``--ctx-checkpoints``)."""
PROCESS = 55 * MIB
"""Tokenizer, HTTP server, graphs: measured without a GPU."""
CUDA_PROCESS = 205 * MIB
"""The same with a CUDA context."""
DELTA_PROCESS, DELTA_TOKEN = 30 * MIB, 32 << 10
"""Graphs of recurrent layers, and what they take for each token of a ubatch."""
DRAFT_PROCESS = 56 * MIB
"""One more context."""
FIRST_REQUESTS = 30 * MIB
"""What the first requests add to any process."""
CUBLAS_WORKING = 80 * MIB
"""cuBLAS's libraries, loaded by the first batch that needs them."""
SCORES_WORKING = 40 * MIB
"""Kernels of attention without flash attention."""
DRAFT_WORKING = 60 * MIB
CHECKPOINTS_OF_A_PROMPT = 2
CHECKPOINT_TOKENS = 2304
"""A slot of fewer tokens has no prompt so long that it makes them."""
CUDA_PINNED = 12 * MIB
CUDA_MAPPED = 164 * MIB
"""Libraries, and /dev/nvidia*."""
PLAIN_MAPPED = 80 * MIB
_REPACKED = frozenset(["Q4_0", "Q4_K", "IQ4_NL"])
"""Types whose rows are interleaved for AVX2 (ggml/src/ggml-cpu/repack.cpp)."""


@dataclass(frozen=True, slots=True)
class HostBytes:
    """``anonymous`` (after the load) and ``pinned`` cannot be reclaimed; ``mapped`` is page cache.

    ``working`` comes with the first long request of each slot, ``may_come`` fills over time.
    """

    anonymous: int
    pinned: int
    mapped: int
    may_come: int
    working: int = 0

    @property
    def need(self) -> int:
        """What must be there."""
        return self.anonymous + self.working + self.pinned


def uses_mmap(flags: EngineFlags) -> bool:
    """``auto`` maps the file; ``none``, ``mlock`` alone and ``dio`` read it."""
    return flags.load_mode in ("auto", "mmap", "mmap+mlock")


def mapped_span(tensors: Iterable[TensorInfo]) -> int:
    """Bytes between the first and the last host tensor of each file: that range stays mapped (``llama_mmap``)."""
    ends: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        start, end = ends.get(tensor.part, (tensor.offset, 0))
        ends[tensor.part] = (min(start, tensor.offset), max(end, tensor.offset + tensor.nbytes))
    return sum(end - start for start, end in ends.values())


def repacked(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of the copies that the CPU backend makes of weights in an order of its own, beside the file.

    Only where no GPU is visible; matrices of layers and the output head whose rows come in eights.
    """
    return sum(
        t.nbytes
        for t in tensors
        if t.type_name in _REPACKED and len(t.shape) > 1 and t.shape[1] % 8 == 0 and not t.name.startswith("token_embd")
    )


def checkpoint_bytes(model: Model, run: Run) -> int:
    """One checkpoint: what cannot be rolled back, the windows of sliding layers or a sequence's recurrent state."""
    size = 0
    for layer in range(model.layers):
        if model.is_recurrent(layer):
            size += 4 * (model.conv_state + model.delta_state)
        elif model.is_windowed(layer) and run.window_cells < run.cells:
            width = model.k_width(layer) * cache_bytes(run.key_type) + model.v_width(layer) * cache_bytes(
                run.value_type
            )
            size += int(min(model.window, run.window_cells) * width)
    return size


def process_bytes(model: Model, run: Run, *, cuda: bool) -> int:
    """The process itself after the load."""
    if not cuda:
        return PROCESS
    recurrent = any(model.is_recurrent(layer) for layer in range(model.layers))
    return CUDA_PROCESS + (DELTA_PROCESS + DELTA_TOKEN * run.tokens if recurrent else 0)


def working_bytes(model: Model, run: Run, size: Slots, *, cuda: bool, cublas: bool) -> int:
    """What the first long request of each slot adds: libraries, kernels, and context checkpoints."""
    if not cuda:
        return 0
    slot = size.cells if size.streams > 1 or size.sequences == 1 else size.ctx // size.sequences
    kept = CHECKPOINTS_OF_A_PROMPT * size.sequences if slot >= CHECKPOINT_TOKENS else 0
    libraries = (CUBLAS_WORKING if cublas else 0) + (0 if run.flash else SCORES_WORKING)
    return FIRST_REQUESTS + libraries + kept * checkpoint_bytes(model, run)


def later_bytes(model: Model, flags: EngineFlags, run: Run, size: Slots) -> int:
    """What may come: the prompt cache (``--cache-ram``; -1 = without bound, counted as one context) and checkpoints."""
    cache = flags.cache_ram_mib * MIB
    if flags.cache_ram_mib < 0:
        width = sum(model.k_width(i) + model.v_width(i) for i in range(model.layers) if not model.is_recurrent(i))
        cache = 2 * width * size.ctx
    return cache + CHECKPOINTS * size.sequences * checkpoint_bytes(model, run)
