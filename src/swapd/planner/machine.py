"""The machine a plan is made for: as typed (``--gpu 16GiB``), simulated, or this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swapd.core.ledger import DeviceSample, MachineSample
from swapd.core.spec import DeviceId
from swapd.errors import ConfigError
from swapd.gguf.memory import Gpu
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.units import GIB, parse_size

ENDLESS_BYTES = 1 << 50
"""RAM of a machine that only its GPUs are given of."""
_KEYS = {"id", "total", "free", "overhead", "headroom"}


@dataclass(frozen=True, slots=True)
class PlanGpu:
    """One GPU; ``headroom_bytes`` must stay free on it. ``index``: of one that was typed without an id."""

    gpu: Gpu
    headroom_bytes: int
    index: int | None = None

    @property
    def room_bytes(self) -> int:
        """What models may take."""
        return max(0, self.gpu.free_bytes - self.headroom_bytes)

    @property
    def key(self) -> str | int:
        """What a configuration calls it."""
        return self.gpu.id if self.index is None else self.index

    def less(self, taken_bytes: int) -> PlanGpu:
        """The GPU with another model loaded on it."""
        return replace(self, gpu=replace(self.gpu, free_bytes=max(0, self.gpu.free_bytes - taken_bytes)))


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs in CUDA's order, the RAM models may take (headroom left out), and physical cores; 0 cores = not known."""

    gpus: tuple[PlanGpu, ...]
    ram_bytes: int
    cores: int = 0

    @property
    def knows_ram(self) -> bool:
        """Whether anything was said of the RAM."""
        return self.ram_bytes < ENDLESS_BYTES


def parse_gpu(text: str, index: int, headroom_bytes: int) -> PlanGpu:
    """``16GiB``, or ``id=GPU-0,total=16GiB,free=15GiB,overhead=597.5MiB,headroom=1GiB`` with what is known.

    Raises:
        ConfigError: saying which part cannot be read.
    """
    fields = {"total": text} if "=" not in text else {}
    for part in text.split(",") if "=" in text else ():
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _KEYS:
            raise ConfigError(f"--gpu {text}: {part!r} is not one of {', '.join(sorted(_KEYS))}", hint="e.g. 16GiB")
        fields[key] = value.strip()
    try:
        sizes = {key: parse_size(value) for key, value in fields.items() if key != "id"}
    except ValueError as error:
        raise ConfigError(f"--gpu {text}: {error}") from None
    if "total" not in sizes:
        raise ConfigError(f"--gpu {text}: total is missing", hint="e.g. total=16GiB,free=15GiB")
    total = sizes["total"]
    gpu = Gpu(
        fields.get("id") or f"GPU-{index}", total, sizes.get("free", total), sizes.get("overhead", OVERHEAD_BYTES)
    )
    return PlanGpu(gpu, sizes.get("headroom", headroom_bytes), None if fields.get("id") else index)


def gpu_of(sample: DeviceSample, overhead_bytes: int = OVERHEAD_BYTES) -> Gpu:
    """A GPU as it was read; one that cannot be read counts as empty."""
    free = sample.total_bytes if sample.free_bytes is None else sample.free_bytes
    return Gpu(sample.id, sample.total_bytes, free, overhead_bytes)


def measured_gpu(sample: DeviceSample, overhead_bytes: int, headroom_bytes: int) -> PlanGpu:
    """The same with what must stay free on it."""
    return PlanGpu(gpu_of(sample, overhead_bytes), headroom_bytes)


def machine_of(
    sample: MachineSample, overheads: Mapping[DeviceId, int], headroom_bytes: int, ram_headroom_bytes: int, cores: int
) -> Machine:
    """The machine that was read, with the overheads learned on it."""
    gpus = tuple(measured_gpu(g, overheads.get(g.id, OVERHEAD_BYTES), headroom_bytes) for g in sample.gpus)
    free = sample.ram.free_bytes if sample.ram.free_bytes is not None else sample.ram.total_bytes
    return Machine(gpus, max(0, free - ram_headroom_bytes), cores)


def typed_machine(gpus: Sequence[str], headroom_bytes: int, ram_bytes: int, cores: int) -> Machine:
    """The machine of ``--gpu`` options, in their order.

    Raises:
        ConfigError: if one cannot be read, or two have one id.
    """
    parsed = tuple(parse_gpu(text, index, headroom_bytes) for index, text in enumerate(gpus))
    names = [p.gpu.id for p in parsed]
    if len(set(names)) < len(names):
        raise ConfigError(f"--gpu: two GPUs have the same id ({', '.join(names)})")
    return Machine(parsed, ram_bytes, cores)


DEFAULT_HEADROOM_BYTES = GIB
