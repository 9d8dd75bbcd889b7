"""How fast a placement is, roughly, to order plans by: bytes read for each token from VRAM and from RAM."""

from __future__ import annotations

from dataclasses import dataclass

from swapd.core.flags import EngineFlags
from swapd.gguf.memory import Prediction
from swapd.gguf.model import Model, layer_of
from swapd.gguf.placement import EXPERTS, place
from swapd.gguf.run import cache_bytes
from swapd.gguf.types import GgufHeader

VRAM_BYTES_PER_S = 300e9
"""What decoding reads from VRAM: host N's 35B-A3B without CPU experts (3.3 GB a token in 11 ms), RTX 30 class."""
RAM_BYTES_PER_S = 15e9
"""The same from RAM: host N's experts, 12.8 MiB a layer and token, took 0.7 to 1.6 ms."""
PAGE_IN_BYTES_PER_S = 1.8e9
"""Host weights that do not fit the page cache come from the disk for each token again (L1)."""
PCIE_BYTES_PER_S = 12e9
"""Host weights on their way to the GPU, once for each ubatch of a prompt (PCIe 3 or 4)."""
GPU_FLOPS = 30e12
CPU_FLOPS = 0.3e12
DEPTH_TOKENS = 8192
"""Tokens of context at which decoding is judged."""
BYTES_PER_WEIGHT = 0.6
"""Of 4- and 5-bit quantizations, to get from bytes to multiplications."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, estimated; bytes read for one token."""

    decode_tps: float
    prefill_tps: float
    vram_bytes: int
    ram_bytes: int
    thrashes: bool = False

    def turn_s(self, prompt_tokens: int = 2048, answer_tokens: int = 256) -> float:
        """Seconds of an agent's turn: new tokens read, an answer written."""
        return prompt_tokens / self.prefill_tps + answer_tokens / self.decode_tps


def estimate_speed(header: GgufHeader, flags: EngineFlags, found: Prediction, ram_bytes: int) -> Speed:
    """The bandwidth model: each token reads the active weights once, and the cache of ``DEPTH_TOKENS``.

    ``ram_bytes``: what the model may have, mapped pages of its file included.
    """
    model = Model(header)
    free = [max(d.weights, 1) for d in found.devices]
    placement = place(model, flags, free)
    count = header.number("expert_count")
    used = min(header.number("expert_used_count") / count, 1.0) if count else 1.0
    read, whole = [0.0, 0.0], [0.0, 0.0]
    for tensor in header.tensors:
        if layer_of(tensor.name) >= model.layers or (tensor.name.startswith("token_embd") and not model.is_tied):
            continue
        at = int(placement.of(tensor) == placement.host and not tensor.name.startswith("token_embd"))
        at = at if placement.devices else 1
        whole[at] += tensor.nbytes
        read[at] += tensor.nbytes * (used if EXPERTS.search(tensor.name) else 1.0)
    widths = cache_bytes(flags.cache_type_k) + cache_bytes(flags.cache_type_v)
    cache = sum(d.kv * 4 / widths + d.state for d in found.devices)  # a quantized cache is read no faster than f16
    depth = min(found.n_ctx, DEPTH_TOKENS) / max(found.n_ctx, 1)
    read[0] += cache * depth
    thrashes = found.host.mapped > max(ram_bytes - found.host.need, 0) and whole[1] > 0
    decode_s = read[0] / VRAM_BYTES_PER_S + read[1] / (PAGE_IN_BYTES_PER_S if thrashes else RAM_BYTES_PER_S)
    prefill = _prefill(flags, read, whole, bool(placement.devices), thrashes)
    return Speed(1 / max(decode_s, 1e-6), prefill, int(read[0]), int(read[1]), thrashes)


def _prefill(flags: EngineFlags, read: list[float], whole: list[float], gpu: bool, thrashes: bool) -> float:
    """A ubatch multiplies every active weight for each token; host weights cross the bus once for all of them."""
    tokens = max(min(flags.ubatch_tokens, flags.batch_tokens), 1)
    flops = [2 * tokens * part / BYTES_PER_WEIGHT for part in read]
    if gpu and flags.op_offload:
        seconds = sum(flops) / GPU_FLOPS + whole[1] / PCIE_BYTES_PER_S
    else:
        seconds = flops[0] / GPU_FLOPS + flops[1] / CPU_FLOPS
    if thrashes:
        seconds += whole[1] / PAGE_IN_BYTES_PER_S
    return tokens / max(seconds, 1e-6)
