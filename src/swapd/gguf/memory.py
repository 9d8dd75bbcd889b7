"""How much memory a llama-server will take on each GPU and on the host, from the header and the flags alone.

Formulas are llama.cpp's own (b11434): weights and caches are added up as it
allocates them, compute buffers follow from its graph and its allocator. Constants
of a machine (the CUDA context) are given with its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swapd.core.flags import EngineFlags
from swapd.core.spec import RAM, DeviceId, Footprint
from swapd.gguf.cache import Slots, kv_bytes, slots, state_bytes
from swapd.gguf.compute import compute_bytes, mtp_bytes, plan_run
from swapd.gguf.host import (
    CUDA_MAPPED,
    CUDA_PINNED,
    DRAFT_PROCESS,
    DRAFT_WORKING,
    PLAIN_MAPPED,
    HostBytes,
    later_bytes,
    mapped_span,
    process_bytes,
    repacked,
    uses_mmap,
    working_bytes,
)
from swapd.gguf.model import Model
from swapd.gguf.overhead import growth_bytes, is_multiplied_plainly, overhead_bytes, rounded
from swapd.gguf.placement import Placement, place
from swapd.gguf.projector import projector_bytes
from swapd.gguf.run import Run
from swapd.gguf.types import GgufHeader
from swapd.gguf.weights import Weights, weigh

CONTEXT_SHARE = 527 << 20
"""Of a GPU's free bytes when llama-server compares them: its own context is there by then."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU in CUDA's order; bytes. ``overhead_bytes``: context and kernels, measured once on this machine."""

    id: DeviceId
    total_bytes: int
    free_bytes: int
    overhead_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """One GPU's share; every buffer rounded as the driver rounds it."""

    id: DeviceId
    weights: int = 0
    kv: int = 0
    state: int = 0
    compute: int = 0
    overhead: int = 0
    growth: int = 0

    @property
    def need(self) -> int:
        """Right after the load."""
        return self.weights + self.kv + self.state + self.compute + self.overhead

    @property
    def peak(self) -> int:
        """After the first long requests."""
        return self.need + self.growth


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes by device, GPUs in CUDA's order. ``exact`` is False if something is only bounded; then it errs high."""

    devices: tuple[DeviceBytes, ...]
    host: HostBytes
    n_ctx: int
    exact: bool

    def footprint(self) -> Footprint:
        """What admission needs: peaks, growth, and the host memory that cannot be reclaimed."""
        need = {device.id: device.peak for device in self.devices}
        growth = {device.id: device.growth for device in self.devices if device.growth}
        return Footprint({**need, RAM: self.host.need}, growth)


def predict(
    header: GgufHeader,
    flags: EngineFlags,
    gpus: Sequence[Gpu],
    *,
    draft: GgufHeader | None = None,
    mmproj: GgufHeader | None = None,
) -> Prediction:
    """Memory of one llama-server with these flags; no GPUs = they are hidden from it."""
    free = [max(gpu.free_bytes - CONTEXT_SHARE, 1) for gpu in gpus]
    main = _Part.of(Model(header), flags, free)
    parts = [main]
    speculative = flags.spec_type.startswith("draft-") and not main.mtp
    if draft is not None:
        parts.append(_Part.of(Model(draft), _draft_flags(flags, main.size), free))
    resident = parts if speculative or draft is None else parts[:1]
    shares = [_share(gpu, index, resident, flags) for index, gpu in enumerate(gpus)]
    if len(resident) < len(parts):
        shares = [_with_passing(share, parts[1], index) for index, share in enumerate(shares)]
    if mmproj is not None:
        shares = _with_projector(shares, mmproj, flags, main.placement)
    exact = all(part.exact for part in parts) and mmproj is None and not flags.unknown
    return Prediction(tuple(shares), _host(resident, flags, bool(gpus), mmproj), main.size.ctx, exact)


@dataclass(frozen=True)
class _Part:
    """One model and its contexts, placed and measured; lists by backend."""

    model: Model
    flags: EngineFlags
    placement: Placement
    size: Slots
    run: Run
    weights: Weights
    caches: list[list[int]]
    states: list[int]
    computes: list[list[int]]
    mtp: bool

    @staticmethod
    def of(model: Model, flags: EngineFlags, free: Sequence[int]) -> _Part:
        placement = place(model, flags, free)
        mtp = "draft-mtp" in flags.spec_type and model.mtp_layers > 0
        size = slots(model, flags)
        run = plan_run(model, flags, placement, size, mtp=mtp)
        caches = kv_bytes(model, run, range(model.layers))
        computes = [compute_bytes(model, run)]
        if mtp:
            plain = replace(run, key_type="f16", value_type="f16")
            caches += kv_bytes(model, plain, range(model.layers, model.all_layers))
            computes.append(mtp_bytes(model, plain))
        weights = weigh(model, placement, mtp=mtp)
        return _Part(model, flags, placement, size, run, weights, caches, state_bytes(model, run), computes, mtp)

    @property
    def exact(self) -> bool:
        """Whether every term is llama.cpp's own."""
        return self.model.known and self.placement.exact

    def slot(self, gpu: int) -> int | None:
        """A GPU's number among those this model uses."""
        return self.placement.devices.index(gpu) if gpu in self.placement.devices else None

    def buffers(self, gpu: int) -> tuple[int, int, int, int]:
        """Weights, KV, state and compute on a GPU, rounded."""
        at = self.slot(gpu)
        if at is None:
            return 0, 0, 0, 0
        kv = sum(rounded(cache[at]) for cache in self.caches)
        compute = sum(rounded(sizes[at]) for sizes in self.computes)
        return rounded(self.weights.by_gpu[at]), kv, rounded(self.states[at]), compute

    def growth(self, gpu: int) -> int:
        """What the first long requests add on a GPU."""
        at = self.slot(gpu)
        if at is None or not self.computes[0][at]:
            return 0
        layers = self.placement.layer_place
        resident = at in layers or self.placement.output_place == at
        here = [
            t for t in self.model.header.tensors if not resident or self.placement.of(t) in (at, self.placement.host)
        ]
        partial = self.placement.host in layers and at == 0 and self.run.op_offload
        return growth_bytes(self.model, self.run, here, resident=resident, partial=partial) * len(self.computes)

    @property
    def pinned_weights(self) -> int:
        """Host weights that are read into pinned memory instead of mapped."""
        return 0 if uses_mmap(self.flags) or not self.placement.devices else self.weights.host_bytes


def _draft_flags(flags: EngineFlags, size: Slots) -> EngineFlags:
    """A draft has the main model's context and slots, plain caches, its own ``-ngl`` (common/speculative.cpp)."""
    return replace(
        flags,
        ctx_tokens=flags.draft_ctx_tokens or size.ctx,
        gpu_layers=flags.draft_gpu_layers,
        cache_type_k="f16",
        cache_type_v="f16",
        n_cpu_moe=0,
        cpu_moe=False,
        override_tensors=(),
        embedding=False,
        spec_type="",
    )


def _share(gpu: Gpu, index: int, parts: Sequence[_Part], flags: EngineFlags) -> DeviceBytes:
    columns = [part.buffers(index) for part in parts]
    weights, kv, state, compute = (sum(column) for column in zip(*columns, strict=True))
    resident = bool(weights or kv or state)
    overhead = overhead_bytes(
        gpu.overhead_bytes,
        resident=resident,
        visited=compute > 0,
        pinned=sum(part.pinned_weights for part in parts),
        contexts=max(sum(len(part.computes) for part in parts if part.slot(index) is not None), 1),
    )
    growth = sum(part.growth(index) for part in parts)
    return DeviceBytes(gpu.id, weights, kv, state, compute, overhead, growth)


def _with_passing(share: DeviceBytes, draft: _Part, index: int) -> DeviceBytes:
    """A draft without ``--spec-type`` is loaded, found useless, freed: its peak comes before the first request."""
    return replace(share, growth=max(share.growth, sum(draft.buffers(index)) + (2 << 20)))


def _with_projector(
    shares: list[DeviceBytes], mmproj: GgufHeader, flags: EngineFlags, placement: Placement
) -> list[DeviceBytes]:
    if not flags.mmproj_offload or not placement.devices:
        return shares
    first = placement.devices[0]
    weights, compute = projector_bytes(mmproj)
    at = shares[first]
    grown = replace(at, weights=at.weights + rounded(weights), compute=at.compute + rounded(compute))
    return [grown if index == first else share for index, share in enumerate(shares)]


def _host(parts: Sequence[_Part], flags: EngineFlags, cuda: bool, mmproj: GgufHeader | None) -> HostBytes:
    """Anonymous, pinned, mapped, and what may come (see ``host``).

    Caches on the host are anonymous; compute and output buffers are pinned if a GPU is used.
    """
    main = parts[0]
    used = bool(main.placement.devices)
    on_gpu, further = cuda and used, sum(len(part.computes) for part in parts) - 1
    cublas = any(_uses_cublas(part) for part in parts)
    anonymous = process_bytes(main.model, main.run, cuda=on_gpu) + DRAFT_PROCESS * further
    working = working_bytes(main.model, main.run, main.size, cuda=on_gpu, cublas=cublas) + DRAFT_WORKING * further
    pinned, mapped = (CUDA_PINNED, CUDA_MAPPED) if used else (0, PLAIN_MAPPED)
    for part in parts:
        anonymous += sum(cache[-1] for cache in part.caches) + part.states[-1]
        buffers = sum(sizes[-1] for sizes in part.computes) + 4 * part.run.sequences * part.model.vocab
        anonymous, pinned = (anonymous, pinned + buffers) if used else (anonymous + buffers, pinned)
        if uses_mmap(flags):
            mapped += mapped_span(part.weights.on_host)
        elif used:
            pinned += part.pinned_weights
        else:
            anonymous += part.weights.host_bytes
        if not used:
            anonymous += repacked(part.weights.on_host)
    if mmproj is not None and (not used or not flags.mmproj_offload):
        anonymous += sum(projector_bytes(mmproj))
    return HostBytes(anonymous, pinned, mapped, later_bytes(main.model, flags, main.run, main.size), working)


def _uses_cublas(part: _Part) -> bool:
    return not part.run.flash or any(is_multiplied_plainly(tensor) for tensor in part.model.header.tensors)
