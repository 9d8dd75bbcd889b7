"""Compute buffers: the memory a batch needs while it runs through the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from swapd.core.flags import EngineFlags
from swapd.gguf.architectures import build, build_mtp
from swapd.gguf.cache import Slots, window_cells
from swapd.gguf.model import Model, layer_of
from swapd.gguf.placement import Placement
from swapd.gguf.run import Run, is_quantized
from swapd.gguf.scheduler import buffer_sizes
from swapd.gguf.types import TensorInfo

REPEATS = 3
"""Times that a layer is built among equal neighbours; further ones change no peak."""
SNAPSHOTS = 3
"""Recurrent states kept for undoing drafted tokens (``--spec-draft-n-max``'s default)."""
UNKNOWN_MARGIN = 1.25
_EQUAL_HEADS = frozenset([40, 64, 72, 80, 96, 112, 128, 256])


def plan_run(model: Model, flags: EngineFlags, placement: Placement, size: Slots, *, mtp: bool = False) -> Run:
    """How llama-server would run the model (``llama_context``'s constructor and ``sched_reserve``).

    Logits are reserved for one token of each slot, or for a whole batch with ``--embedding``. With several GPUs
    and everything on them, batches are pipelined, which multiplies what is copied between them.
    """
    gpus = len(placement.devices)
    full = placement.full_offload
    return Run(
        tokens=size.batch,
        sequences=size.sequences,
        outputs=size.batch if flags.embedding else min(size.batch, size.sequences),
        cells=size.cells,
        window_cells=window_cells(model, flags, size),
        streams=size.streams,
        key_type=flags.cache_type_k,
        value_type=flags.cache_type_v,
        flash=_uses_flash(model, flags, gpus > 0),
        backends=gpus + 1,
        layer_backend=placement.layer_place,
        place=placement.of,
        kv_offload=flags.kv_offload,
        op_offload=flags.op_offload,
        pipeline=gpus > 1 and full and flags.split_mode == "layer" and flags.kv_offload and not placement.has_overrides,
        full_offload=full,
        snapshots=SNAPSHOTS if mtp else 0,
    )


def _uses_flash(model: Model, flags: EngineFlags, on_gpu: bool) -> bool:
    """``auto`` turns flash attention off where the GPU has no kernel for these heads (fattn.cu)."""
    if flags.flash_attention != "auto" or not on_gpu:
        return flags.flash_attention != "off"
    key, value = model.key_length, model.value_length
    if model.is_mla:
        return (key, value) in ((576, 512), (320, 256))
    return (key == value and (key in _EQUAL_HEADS or key == 512)) or (key, value) == (192, 128)


def compute_bytes(model: Model, run: Run) -> list[int]:
    """Bytes of each backend's compute buffer, the host's last.

    Known architectures: the graph is built, split and packed as llama.cpp does it.
    Others: a bound that errs high.
    """
    if not model.known or not model.layers:
        return bound_bytes(model, run)
    graph = build(model, run, layers_to_build(model, run))
    return buffer_sizes(graph, run.backends, op_offload=run.op_offload, pipeline=run.pipeline)


def mtp_bytes(model: Model, run: Run) -> list[int]:
    """The same for the context of the prediction head."""
    if not model.known:
        return bound_bytes(model, run)
    alone = replace(run, snapshots=0, pipeline=False)
    graph = build_mtp(model, alone, model.layers)
    return buffer_sizes(graph, run.backends, op_offload=run.op_offload, pipeline=False)


def layers_to_build(model: Model, run: Run) -> list[int]:
    """Layers without those that only repeat what stands around them: a deep model costs no more than a flat one."""
    kinds = [_kind(model, run, layer) for layer in range(model.layers)]
    seen: Counter[tuple[object, ...]] = Counter()
    kept = []
    for layer in range(model.layers):
        around = tuple(kinds[max(layer - 4, 0) : layer + 5])
        place = (around, min(layer, 4), min(model.layers - layer, 5))
        seen[place] += 1
        if seen[place] <= REPEATS * 4:
            kept.append(layer)
    return kept


def _kind(model: Model, run: Run, layer: int) -> tuple[object, ...]:
    tensors = model.by_layer.get(layer, ())
    away = tuple(
        (t.name.rpartition(".")[0][-12:], t.nbytes) for t in tensors if run.place(t) != run.layer_backend[layer]
    )
    host = run.layer_backend[layer] == run.host
    sizes = tuple(t.nbytes for t in tensors) if host and run.op_offload else ()
    return (run.layer_backend[layer], model.is_windowed(layer), model.is_recurrent(layer), len(tensors), away, sizes)


def bound_bytes(model: Model, run: Run) -> list[int]:
    """An upper estimate for a graph that is not known: all results of a layer's matrices alive at once.

    Besides masks, the f16 copy of a quantized cache, scores without flash attention, logits of
    the tokens asked for, and the largest host tensor that visits the GPU.
    """
    tensors = model.header.tensors
    widest = max((_results(model, group) for group in model.by_layer.values()), default=0)
    size = 4 * run.tokens * (widest + 6 * model.width) + (2 if run.flash else 4) * run.tokens * run.cells
    size += 4 * run.outputs * model.vocab
    heads = max(model.heads(0), 1)
    if not run.flash:
        size += 4 * heads * run.tokens * run.cells
    elif is_quantized(run.key_type) or is_quantized(run.value_type):
        size += 2 * run.cells * run.streams * (model.k_width(0) + model.v_width(0))
    visiting = [t.nbytes for t in tensors if layer_of(t.name) >= 0 and run.place(t) == run.host]
    if run.op_offload and run.backends > 1:
        size += max(visiting, default=0)
    size = int(size * UNKNOWN_MARGIN) * (2 if run.pipeline else 1)
    return [size] * (run.backends - 1) + [size if run.backends == 1 or visiting else size // 2]


def _results(model: Model, tensors: Sequence[TensorInfo]) -> int:
    used = max(model.header.number("expert_used_count"), 1)
    return sum(t.shape[1] * (used if len(t.shape) > 2 and "exps" in t.name else 1) for t in tensors if len(t.shape) > 1)
