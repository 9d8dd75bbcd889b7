"""The memory-relevant flags of a llama-server, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MANAGED_FLAGS: Final = {
    "--host": "--host",
    "--port": "--port",
    "-m": "-m",
    "--model": "-m",
    "-a": "--alias",
    "--alias": "--alias",
    "--slot-save-path": "--slot-save-path",
}
"""Flags of a llama-server that swapd sets itself, by every name; in ``args`` they are errors."""


def flag_name(word: str) -> str:
    """A flag as llama-server reads it: without its value, underscores of long ones as hyphens."""
    flag = word.split("=", 1)[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


USUAL_CTX_TOKENS: Final = 32_768
"""Context where neither ``ctx`` nor ``args`` say: the trained one, at most this."""


def usual_ctx(trained_tokens: int) -> int:
    """The context of a model for which nothing is said; ``trained_tokens`` 0 = not known."""
    return min(trained_tokens, USUAL_CTX_TOKENS) if trained_tokens else USUAL_CTX_TOKENS


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """What of a llama-server's command line changes the memory it takes.

    Tokens for ``ctx_tokens``, ``batch_tokens``, ``ubatch_tokens``; ``ctx_tokens`` 0 means
    the model's trained context. ``parallel`` 0 means the engine's own choice
    (4 slots sharing one unified KV cache). ``load_mode`` is one of
    ``auto none mmap mlock mmap+mlock dio``.
    """

    ctx_tokens: int = 0
    batch_tokens: int = 2048
    ubatch_tokens: int = 512
    parallel: int = 0
    kv_unified: bool | None = None
    gpu_layers: int = 999
    n_cpu_moe: int = 0
    cpu_moe: bool = False
    override_tensors: tuple[str, ...] = ()
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    flash_attention: str = "auto"
    swa_full: bool = False
    load_mode: str = "auto"
    cache_ram_mib: int = 8192
    embedding: bool = False
    mmproj: str = ""
    mmproj_offload: bool = True
    draft_model: str = ""
    draft_gpu_layers: int = 999
    draft_ctx_tokens: int = 0
    spec_type: str = ""
    fit: bool = False
    devices: str = ""
    threads: int = 0
    unknown: tuple[str, ...] = ()
