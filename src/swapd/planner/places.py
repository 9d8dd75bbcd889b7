"""Where a model may go: GPUs by any of their names, configured sizes, and the split over several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import RAM, DeviceId, Footprint, LaunchSpec
from swapd.gguf.types import GgufHeader

FOREIGN_STEP: Final = 512 << 20


def find_gpu(name: str | int, sample: MachineSample) -> DeviceSample | None:
    """A GPU by index, PCI bus id or UUID."""
    text = str(name)
    return next((g for g in sample.gpus if text in (g.id, str(g.index), g.pci_bus_id)), None)


def configured(spec: LaunchSpec, gpus: Sequence[DeviceSample], known: Footprint, flags: EngineFlags) -> Footprint:
    """A configured size wins; one size for several GPUs is shared out by ``-ts``, else by total memory."""
    need = dict(known.need_bytes)
    if spec.ram != "auto":
        need[RAM] = spec.ram
    if spec.vram == "auto":
        return replace(known, need_bytes=need)
    if isinstance(spec.vram, int):
        shares = list(flags.tensor_split) or [float(g.total_bytes) for g in gpus]
        whole = sum(shares[: len(gpus)]) or 1.0
        need |= {g.id: round(spec.vram * share / whole) for g, share in zip(gpus, shares, strict=False)}
    else:
        sizes = {_device(name, gpus): size for name, size in spec.vram.items()}
        need |= {g.id: 0 for g in gpus} | sizes
    return Footprint(need, {}, fixed=True)


def _device(name: str, gpus: Sequence[DeviceSample]) -> DeviceId:
    return next((g.id for g in gpus if name in (g.id, str(g.index), g.pci_bus_id)), name)


def explicit_split(
    spec: LaunchSpec, header: GgufHeader, flags: EngineFlags, gpus: Sequence[DeviceSample]
) -> tuple[float, ...]:
    """Layers by GPU as llama-server would split them with nothing else loaded; empty where it is not swapd's to say.

    Left to itself it splits by what is free when it starts, which nobody can reserve.
    """
    if len(gpus) < 2 or not spec.gguf or flags.tensor_split or flags.split_mode != "layer" or flags.devices:
        return ()
    from swapd.gguf.placement import layer_counts
    from swapd.planner.machine import gpu_of  # brings the formulas, which the start does not need

    steady = [g.total_bytes - _rounded_up(g.total_bytes - gpu_of(g).free_bytes) for g in gpus]
    return tuple(float(count) for count in layer_counts(header, flags, steady))


def _rounded_up(size: int) -> int:
    """What other programs hold, coarsely: a desktop's drift must not move a layer with every load."""
    return -(-size // FOREIGN_STEP) * FOREIGN_STEP


def configured_limits(spec: LaunchSpec, gpus: Sequence[DeviceSample]) -> list[tuple[list[DeviceId], int]]:
    """The sizes that ``vram`` gives, each with the GPUs it is for."""
    if spec.vram == "auto":
        return []
    if isinstance(spec.vram, int):
        return [([g.id for g in gpus], spec.vram)]
    return [([_device(name, gpus)], size) for name, size in spec.vram.items()]


def visible_by_env(spec: LaunchSpec) -> tuple[str | int, ...] | None:
    """The GPUs that a model's own environment shows it; ``None`` if that says nothing."""
    own = {**(spec.binary.env if spec.binary else {}), **spec.env}
    if "CUDA_VISIBLE_DEVICES" not in own:
        return None
    names = [name.strip() for name in own["CUDA_VISIBLE_DEVICES"].split(",")]
    return tuple(name for name in names if name and name != "-1")
