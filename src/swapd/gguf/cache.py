"""Sizes of the context: slots, KV caches, recurrent states."""

from __future__ import annotations

from dataclasses import dataclass

from swapd.core.flags import EngineFlags
from swapd.gguf.model import Model
from swapd.gguf.run import Run, cache_bytes

CELLS_PAD = 256
AUTO_SLOTS = 4
"""What llama-server takes without ``-np``; they share one cache."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Tokens: ``ctx`` altogether, ``cells`` in each of ``streams`` caches, ``batch`` in one physical batch."""

    ctx: int
    cells: int
    streams: int
    sequences: int
    batch: int


def slots(model: Model, flags: EngineFlags) -> Slots:
    """The context llama-server makes of ``-c -np -kvu -ub`` (``llama_context``'s constructor)."""
    sequences = max(flags.parallel, 0) or AUTO_SLOTS
    unified = flags.kv_unified if flags.kv_unified is not None else flags.parallel <= 0
    ctx = _padded(flags.ctx_tokens or model.header.n_ctx_train or 4096)
    cells = ctx if unified else max(_padded(ctx // sequences), CELLS_PAD)
    streams = 1 if unified else sequences
    total = cells if unified else cells * sequences
    batch = max(min(flags.ubatch_tokens, flags.batch_tokens, total), 1)
    return Slots(total, cells, streams, sequences, -(-batch // sequences) * sequences)


def window_cells(model: Model, flags: EngineFlags, size: Slots) -> int:
    """Cells of a sliding-window layer: the window and a batch (``llama_kv_cache_iswa``'s constructor).

    Windows of all sequences share one cache if it is unified. ``--swa-full``: as many as the others.
    """
    if flags.swa_full or not model.window:
        return size.cells
    share = size.sequences if size.streams == 1 else 1
    return _padded(min(size.cells, model.window * share + min(flags.ubatch_tokens, flags.batch_tokens)))


def kv_bytes(model: Model, run: Run, layers: range) -> list[list[int]]:
    """Bytes of K and V by backend, caches with and without a window apart (they are allocated apart).

    A layer takes cells * streams * (K elements * bytes + V elements * bytes); latent attention has one row
    and no V (``llama_kv_cache``'s constructor).
    """
    whole, windowed = [0] * run.backends, [0] * run.backends
    for layer in layers:
        if model.is_recurrent(layer):
            continue
        is_windowed = model.is_windowed(layer)
        cells = (run.window_cells if is_windowed else run.cells) * run.streams
        size = model.k_width(layer) * cache_bytes(run.key_type) + model.v_width(layer) * cache_bytes(run.value_type)
        (windowed if is_windowed else whole)[run.cache_backend(layer)] += int(cells * size)
    return [whole, windowed]


def state_bytes(model: Model, run: Run) -> list[int]:
    """Bytes of recurrent states by backend: convolution tail and delta state, f32, for each sequence and snapshot.

    Source: ``llama_memory_recurrent``, ``llama_hparams::n_embd_r`` and ``n_embd_s``.
    """
    size = [0] * run.backends
    rows = run.sequences * (1 + run.snapshots)
    for layer in range(model.layers):
        if model.is_recurrent(layer):
            size[run.cache_backend(layer)] += 4 * rows * (model.conv_state + model.delta_state)
    return size


def _padded(tokens: int) -> int:
    return -(-tokens // CELLS_PAD) * CELLS_PAD
