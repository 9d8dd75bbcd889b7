"""Where llama.cpp puts each layer and each tensor: ``-ngl -ts -sm -mg -dev -ncmoe --cpu-moe -ot``."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from swapd.core.flags import EngineFlags
from swapd.gguf.model import Model, layer_of
from swapd.gguf.types import GgufHeader, TensorInfo

EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""LLM_FFN_EXPS_REGEX (common/common.h)."""
MAX_PATTERN = 256
"""Characters; a longer ``-ot`` pattern is not tried."""


@dataclass(frozen=True)
class Placement:
    """Layers and tensors on devices; ``devices`` are indices of the GPUs in use, the host comes after them.

    A place is a number below ``len(devices)`` for a GPU, else the host. ``exact``
    is False if a flag asks for something that is not modelled.
    """

    model: Model
    flags: EngineFlags
    devices: tuple[int, ...]
    layer_place: tuple[int, ...]
    output_place: int
    exact: bool = True
    _rules: tuple[tuple[re.Pattern[str], int], ...] = field(default=(), repr=False)

    @property
    def host(self) -> int:
        """The host's number."""
        return len(self.devices)

    @property
    def has_overrides(self) -> bool:
        """Whether any tensor is sent elsewhere by name."""
        flags = self.flags
        return bool(flags.override_tensors or flags.n_cpu_moe or flags.cpu_moe)

    @property
    def full_offload(self) -> bool:
        """All layers and the output head on GPUs (``n_gpu_layers > n_layer``)."""
        return bool(self.devices) and self.flags.gpu_layers > self.model.all_layers

    def of(self, tensor: TensorInfo) -> int:
        """Where a tensor lies: overrides first, then its layer; the embedding stays on the host."""
        name = tensor.name
        layer = layer_of(name)
        if layer >= 0 and ((self.flags.cpu_moe or layer < self.flags.n_cpu_moe) and EXPERTS.search(name)):
            return self.host
        for pattern, place in self._rules:
            if pattern.search(name):
                return place
        if layer >= 0:
            return self.layer_place[layer] if layer < len(self.layer_place) else self.host
        if name.startswith(("output", "rope_")):
            return self.output_place
        return self.host


def place(model: Model, flags: EngineFlags, free: Sequence[int]) -> Placement:
    """Distribute a model over GPUs with so many free bytes (``llama_model::load_tensors``, src/llama-model.cpp)."""
    devices, exact = _devices(flags, len(free))
    host = len(devices)
    slots = model.all_layers + 1
    offloaded = min(max(flags.gpu_layers, 0), slots) if devices else 0
    bounds = _bounds(flags, [free[device] for device in devices])
    first = slots - offloaded
    places = [_device_at(bounds, index - first, offloaded) if index >= first else host for index in range(slots)]
    rules, understood = _rules(flags, devices)
    return Placement(model, flags, devices, tuple(places[:-1]), places[-1], exact and understood, rules)


def layer_counts(header: GgufHeader, flags: EngineFlags, free: Sequence[int]) -> tuple[int, ...]:
    """How many of the offloaded layers (the output head counts as one) each GPU gets, split by free bytes."""
    placement = place(Model(header), flags, free)
    places = [*placement.layer_place, placement.output_place]
    return tuple(places.count(device) for device in range(len(placement.devices)))


def _devices(flags: EngineFlags, count: int) -> tuple[tuple[int, ...], bool]:
    """GPUs that get layers, and whether that is certain."""
    wanted = tuple(range(count))
    exact = True
    if flags.devices:
        names = [name.strip() for name in flags.devices.split(",")]
        wanted = tuple(i for name in names for i in range(count) if name.upper() == f"CUDA{i}")
        exact = flags.devices == "none" or len(wanted) == len(names)
    if flags.split_mode == "none" and wanted:
        wanted = (wanted[min(max(flags.main_gpu, 0), len(wanted) - 1)],)
    return wanted, exact and (flags.split_mode in ("layer", "none") or len(wanted) < 2)


def _bounds(flags: EngineFlags, free: Sequence[int]) -> list[float]:
    """Where each device's share ends, from 0 to 1: as ``-ts`` says, else by free memory."""
    weights: list[float] = [float(share) for share in flags.tensor_split[: len(free)]]
    weights += [0.0] * (len(free) - len(weights))
    if not any(weights):
        weights = [float(share) for share in free]
    if not any(weights):
        weights = [1.0] * len(free)
    total = _single(sum(weights))
    return [_single(_single(end) / total) for end in accumulate(weights)] if total else []


def _device_at(bounds: list[float], index: int, offloaded: int) -> int:
    return min(bisect_right(bounds, _single(index / offloaded)), len(bounds) - 1)


def _single(value: float) -> float:
    """As a C ``float`` holds it: the boundary between two devices depends on it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _rules(flags: EngineFlags, devices: tuple[int, ...]) -> tuple[tuple[tuple[re.Pattern[str], int], ...], bool]:
    """``-ot pattern=buffer`` as patterns and places; a pattern that cannot be read keeps nothing on the host."""
    rules: list[tuple[re.Pattern[str], int]] = []
    understood = True
    for rule in flags.override_tensors:
        pattern, _, target = rule.rpartition("=")
        found = re.fullmatch(r"CUDA(\d+)", target)
        position = devices.index(int(found[1])) if found and int(found[1]) in devices else len(devices)
        if (not found and target not in ("CPU", "CUDA_Host")) or len(pattern) > MAX_PATTERN:
            understood = False
            continue
        try:
            rules.append((re.compile(pattern), position))
        except re.error:
            understood = False
    return tuple(rules), understood
