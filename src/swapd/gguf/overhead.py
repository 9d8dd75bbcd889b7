"""What a process takes on a GPU besides its buffers: context, kernels, and what comes with the first real batches.

The context and the kernels are a constant of machine and binary, given with each GPU; the parts of it
(measured on an H200, CUDA 13, llama.cpp b11434) decide what is taken when little or nothing runs there.
"""

from __future__ import annotations

from collections.abc import Iterable

from swapd.gguf.blocks import ROW_PADDING
from swapd.gguf.model import Model
from swapd.gguf.run import Run
from swapd.gguf.types import TENSOR_TYPES, TensorInfo

MIB = 1 << 20
GRANULE = 2 * MIB
"""cudaMalloc hands out memory in pieces of this size."""
ROUNDING = 3 * MIB
"""Half a granule for each of weights, cache and compute buffer: a measured overhead has it in it."""
KERNELS = 68 * MIB
"""Kernels loaded by the warm-up run."""
VISITING_KERNELS = 6 * MIB
"""What of them is loaded at the start if no layer lies on the GPU; the rest comes with the first batch."""
SECOND_CONTEXT = 4 * MIB
"""Streams and graphs of a draft's context."""
CUBLAS = 100 * MIB
"""cuBLAS handle and workspace, created by the first batch that multiplies unquantized matrices."""
FIRST_BATCH = 6 * MIB
"""Kernels for batches."""
PARTIAL = 14 * MIB
"""Staging, if layers on the host visit the GPU."""
_FLOATS = frozenset(["F32", "F16", "BF16"])


def rounded(size: int) -> int:
    """A buffer as cudaMalloc rounds it."""
    return -(-size // GRANULE) * GRANULE


def overhead_bytes(overhead: int, *, resident: bool, visited: bool, pinned: int, contexts: int) -> int:
    """Context and kernels on one GPU.

    ``resident``: layers lie there; ``visited``: host weights come by; else only the context. Pinned host weights take
    page-table entries, 8 bytes for 4 KiB.
    """
    base = max(overhead - ROUNDING, 0)
    if not resident:
        base = max(base - KERNELS, 0) + (VISITING_KERNELS if visited else 0)
    return base + pinned // 512 + SECOND_CONTEXT * (contexts - 1)


def growth_bytes(model: Model, run: Run, tensors: Iterable[TensorInfo], *, resident: bool, partial: bool) -> int:
    """What the first long requests add on one GPU, once.

    Scratch for one multiplication (activations as 8-bit blocks, 36 bytes for 32: ``quantize_mmq_q8_1``), and either
    cuBLAS with its workspace or a few kernels. Without flash attention the scores are converted to f16 as well.
    """
    scratch, floats = 0, not run.flash
    for tensor in tensors:
        if not _is_multiplied(tensor):
            continue
        scratch = max(scratch, _scratch(model, run, tensor))
        floats = floats or is_multiplied_plainly(tensor)
    size = scratch + FIRST_BATCH + (CUBLAS - FIRST_BATCH if floats else 0)
    if not run.flash:
        size += 2 * max(model.heads(0), 1) * run.tokens * run.cells
    if not resident:
        size += KERNELS - VISITING_KERNELS
    if partial or not resident:
        size += PARTIAL
    return rounded(size)


def _is_multiplied(tensor: TensorInfo) -> bool:
    name = tensor.name
    return len(tensor.shape) > 1 and name.startswith("blk.") and name.endswith(".weight") and "conv1d" not in name


def is_multiplied_plainly(tensor: TensorInfo) -> bool:
    """A matrix of a layer that is not quantized: cuBLAS multiplies it."""
    return _is_multiplied(tensor) and tensor.type_name in _FLOATS


def _scratch(model: Model, run: Run, tensor: TensorInfo) -> int:
    """Bytes of a batch's activations in the form the kernel reads."""
    rows = run.tokens
    if "exps" in tensor.name:
        rows *= max(model.header.number("expert_used_count"), 1)
    elements = rows * -(-tensor.shape[0] // ROW_PADDING) * ROW_PADDING
    if tensor.type_name in _FLOATS:
        return 2 * elements if tensor.type_name != "F32" else 0
    known = tensor.type_id in TENSOR_TYPES
    return elements * 36 // 32 if known else 2 * elements
