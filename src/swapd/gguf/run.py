"""One way to run a model: tokens at a time, caches, and where each layer and weight lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swapd.gguf.types import TensorInfo

CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes an element of a cache takes, by ``-ctk`` / ``-ctv``; block sizes as declared in ggml-common.h."""
_FULL = frozenset(["f32", "f16", "bf16"])


def cache_bytes(kind: str) -> float:
    """Bytes an element of a cache takes; a type of a fork counts as f16."""
    return CACHE_BYTES.get(kind, 2.0)


def is_quantized(kind: str) -> bool:
    """Whether a cache of this type must be expanded before the attention kernel reads it."""
    return kind not in _FULL


@dataclass(frozen=True, slots=True)
class Run:
    """How a context is built (``llama_context``'s ``cparams``); sizes in tokens.

    ``cells``: of each stream's cache; ``window_cells``: of a sliding-window layer's.
    ``snapshots``: extra recurrent states kept for speculative decoding. ``backends``
    counts the host, which is the last one. ``layer_backend[i]`` runs layer i;
    ``place`` says where a tensor lies.
    """

    tokens: int
    sequences: int
    outputs: int
    cells: int
    window_cells: int
    streams: int
    key_type: str
    value_type: str
    flash: bool
    backends: int
    layer_backend: tuple[int, ...]
    place: Callable[[TensorInfo], int] = field(repr=False)
    kv_offload: bool = True
    op_offload: bool = True
    pipeline: bool = False
    full_offload: bool = False
    embedding: bool = False
    snapshots: int = 0

    @property
    def host(self) -> int:
        """The host's number among the backends."""
        return self.backends - 1

    def cache_backend(self, layer: int) -> int:
        """Where a layer's K, V or state lies."""
        return self.layer_backend[layer] if self.kv_offload else self.host
