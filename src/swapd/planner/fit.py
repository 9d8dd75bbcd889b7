"""Where a model's layers go: as many bytes on the GPUs as their room allows, the rest on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swapd.core.flags import EngineFlags
from swapd.gguf.layers import LayerBytes, layer_bytes
from swapd.gguf.memory import Prediction
from swapd.gguf.types import GgufHeader
from swapd.planner.estimate import prediction
from swapd.planner.machine import PlanGpu

TRIES = 6
"""Predictions made until the layout holds; the second is right nearly always."""
FIRST_GUESS_BYTES = 900 << 20
"""Context, kernels and compute buffers before the first prediction: 598 MiB, and what a batch needs."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Flags that fit. ``shed``: how many of the first layers (of a MoE: their experts) lie on the host."""

    flags: EngineFlags
    shed: int
    prediction: Prediction


def over_room(found: Prediction, gpus: Sequence[PlanGpu]) -> list[int]:
    """Bytes by which each GPU's peak is above its room; negative = that much is left."""
    return [d.peak - g.room_bytes for d, g in zip(found.devices, gpus, strict=True)]


def as_asked(header: GgufHeader, flags: EngineFlags, gpus: Sequence[PlanGpu]) -> Fit | None:
    """These very flags, if they fit."""
    found = prediction(header, flags, [g.gpu for g in gpus])
    return Fit(flags, flags.n_cpu_moe, found) if all(n <= 0 for n in over_room(found, gpus)) else None


def fit(header: GgufHeader, flags: EngineFlags, gpus: Sequence[PlanGpu]) -> Fit | None:
    """As few layers on the host as fit; ``None`` if not even the last layers do.

    Of a MoE the experts of the first layers go (``--n-cpu-moe``), of others whole layers (``-ngl``). Several GPUs get
    their layers by number (``-ts``), so that what is left free is even.

    Raises:
        GgufError, OSError: a draft model or projector that the flags name cannot be read.
    """
    layers = layer_bytes(header, flags)
    least = offloaded_sizes(layers, most_shed(layers))
    if even_split(least, [g.room_bytes - g.gpu.overhead_bytes for g in gpus])[0] < 0:
        return None
    fixed = [FIRST_GUESS_BYTES] * len(gpus)
    best: Fit | None = None
    tried: set[tuple[int, tuple[int, ...]]] = set()
    for _ in range(TRIES):
        rooms = [g.room_bytes - taken for g, taken in zip(gpus, fixed, strict=True)]
        chosen = _fewest(layers, rooms)
        if chosen in tried or (best is not None and chosen[0] >= best.shed):
            break
        tried.add(chosen)
        tried_flags = placed(flags, layers, *chosen)
        found = prediction(header, tried_flags, [g.gpu for g in gpus])
        if all(n <= 0 for n in over_room(found, gpus)):
            best = Fit(tried_flags, chosen[0], found)
        fixed = _fixed(found, layers, chosen)
    return best


def _fixed(found: Prediction, layers: LayerBytes, chosen: tuple[int, tuple[int, ...]]) -> list[int]:
    """What each GPU takes besides its layers, by this prediction."""
    sizes = offloaded_sizes(layers, chosen[0])
    fixed, start = [], 0
    for device, count in zip(found.devices, chosen[1], strict=True):
        fixed.append(device.peak - sum(sizes[start : start + count]))
        start += count
    return fixed


def may_be_whole(header: GgufHeader, flags: EngineFlags, gpus: Sequence[PlanGpu]) -> bool:
    """Whether weights and caches alone would fit these GPUs: a quick look before a prediction."""
    layers = layer_bytes(header, flags)
    return (
        bool(gpus)
        and even_split(offloaded_sizes(layers, 0), [g.room_bytes - g.gpu.overhead_bytes for g in gpus])[0] >= 0
    )


def most_shed(layers: LayerBytes) -> int:
    """How many layers can go to the host: the experts of all, or all layers but the last."""
    return layers.count if layers.is_moe else max(layers.count - 1, 0)


def offloaded_sizes(layers: LayerBytes, shed: int) -> list[int]:
    """Bytes of what is offloaded, slot by slot, with the first layers shed; the last slot is the output head."""
    if layers.is_moe:
        parts = zip(layers.dense, layers.experts, layers.cache, strict=True)
        return [d + c + (e if i >= shed else 0) for i, (d, e, c) in enumerate(parts)] + [layers.head]
    return [d + c for d, c in zip(layers.dense[shed:], layers.cache[shed:], strict=True)] + [layers.head]


def _fewest(layers: LayerBytes, rooms: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The fewest layers shed for which the rest fits these rooms (all that can go, if none), and its split."""
    low, high = 0, most_shed(layers)
    while low < high:
        middle = (low + high) // 2
        if even_split(offloaded_sizes(layers, middle), rooms)[0] >= 0:
            high = middle
        else:
            low = middle + 1
    return low, even_split(offloaded_sizes(layers, low), rooms)[1]


def even_split(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Contiguous shares with the largest smallest rest: that rest (negative = it does not fit), and the counts."""
    low, high = -sum(sizes) - 1, max(rooms)
    best = (low, _counts(sizes, rooms, low) or (len(sizes), *(0 for _ in rooms[1:])))
    for _ in range(48):
        if low >= high:
            break
        middle = (low + high + 1) // 2
        counts = _counts(sizes, rooms, middle)
        if counts is None:
            high = middle - 1
        else:
            low, best = middle, (middle, counts)
    return best


def _counts(sizes: Sequence[int], rooms: Sequence[int], rest: int) -> tuple[int, ...] | None:
    """How many each device takes if ``rest`` bytes stay free everywhere; ``None`` if some are left over."""
    counts, position = [], 0
    for room in rooms:
        start, left = position, room - rest
        while position < len(sizes) and sizes[position] <= left:
            left -= sizes[position]
            position += 1
        counts.append(position - start)
    return tuple(counts) if position == len(sizes) else None


def placed(flags: EngineFlags, layers: LayerBytes, shed: int, split: tuple[int, ...]) -> EngineFlags:
    """The flags of this layout."""
    shares = tuple(float(n) for n in split) if len(split) > 1 else ()
    if layers.is_moe:
        return replace(flags, n_cpu_moe=shed, tensor_split=shares)
    return replace(flags, gpu_layers=999 if not shed else layers.count + 1 - shed, tensor_split=shares)
