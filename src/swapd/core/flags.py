"""The memory-relevant flags of a llama-server, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


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
