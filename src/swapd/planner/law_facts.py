"""What the laws are judged by: one model, the models beside it, and the machine, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from swapd.core.flags import EngineFlags
from swapd.core.ledger import DeviceSample
from swapd.core.spec import RAM, DeviceId, ModelId
from swapd.errors import GgufError
from swapd.gguf.host import repacked, uses_mmap
from swapd.gguf.memory import CONTEXT_SHARE, Prediction, predict
from swapd.gguf.model import Model
from swapd.gguf.placement import EXPERTS, Placement, place
from swapd.gguf.types import GgufHeader, TensorInfo
from swapd.gguf.weights import weigh
from swapd.planner.calibration import OVERHEAD_BYTES
from swapd.planner.machine import gpu_of


@dataclass(frozen=True, slots=True)
class Finding:
    """One law broken: by which model (empty: by the machine's settings), how, and what to do about it."""

    law: str
    model: ModelId
    text: str
    remedy: str

    def __str__(self) -> str:
        """One line."""
        where = f"models.{self.model}: " if self.model else ""
        return f"{self.law}: {where}{self.text}; {self.remedy}"


@dataclass(frozen=True)
class ModelFacts:
    """One llama-server model; whatever is not known is empty, and laws that need it stay silent.

    ``gpus``: those it may use, in its order; none if they are hidden; ``None`` = not known. ``need_bytes``: its
    footprint, where that is known better than by prediction. ``env``: what its process gets. ``load_mode_flag``:
    how its build spells "no mmap". ``jinja_default``: whether its build uses the template without ``--jinja``.
    ``dangling_link``: where its GGUF, a link, leads without a file being there.
    """

    id: ModelId
    flags: EngineFlags
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    header: GgufHeader | None = None
    draft: GgufHeader | None = None
    mmproj: GgufHeader | None = None
    gpus: tuple[DeviceSample, ...] | None = None
    overhead_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    need_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    load_mode_flag: str = ""
    jinja_default: bool | None = None
    dangling_link: str = ""

    @property
    def sees_gpus(self) -> bool:
        """Whether a GPU is there for it and not hidden, by ``gpus`` or ``--device none``."""
        return bool(self.gpus) and self.flags.devices != "none"

    @cached_property
    def prediction(self) -> Prediction | None:
        """What it takes by header and flags."""
        return self.predicted(self.flags, self.gpus)

    def predicted(self, flags: EngineFlags, gpus: Sequence[DeviceSample] | None) -> Prediction | None:
        """What it would take with other flags; ``None`` where header, GPUs or a second file are not known."""
        if self.header is None or gpus is None or flags.fit or any(not g.total_bytes for g in gpus):
            return None
        if (flags.draft_model and self.draft is None) or (flags.mmproj and self.mmproj is None):
            return None
        devices = [gpu_of(g, self.overhead_bytes.get(g.id, OVERHEAD_BYTES)) for g in gpus]
        try:
            return predict(self.header, flags, devices, draft=self.draft, mmproj=self.mmproj)
        except GgufError:
            return None

    @property
    def need(self) -> Mapping[DeviceId, int]:
        """Its footprint: as given, else predicted, else empty."""
        if self.need_bytes or self.prediction is None:
            return self.need_bytes
        return self.prediction.footprint().need_bytes

    def need_with(self, **changes: object) -> Mapping[DeviceId, int] | None:
        """Its footprint with other flags: as it is, and what the formulas say changes. Only where they are exact."""
        now, then = self.prediction, self.predicted(replace(self.flags, **changes), self.gpus)  # type: ignore[arg-type]
        if now is None or then is None or not (now.exact and then.exact):
            return None
        before, after = now.footprint(), then.footprint()
        return {d: self.need.get(d, 0) + after.on(d) - before.on(d) for d in after.need_bytes}

    @cached_property
    def model(self) -> Model | None:
        """Its header as llama.cpp reads it."""
        return None if self.header is None else Model(self.header)

    @cached_property
    def placement(self) -> Placement | None:
        """Where its layers and tensors go."""
        if self.model is None or self.gpus is None or self.flags.fit:
            return None
        free = [max(gpu_of(g).free_bytes - CONTEXT_SHARE, 1) for g in self.gpus]
        return place(self.model, self.flags, free)

    @cached_property
    def host_tensors(self) -> Sequence[TensorInfo]:
        """Weights that stay on the host; none if not known."""
        if self.model is None or self.placement is None:
            return ()
        mtp = "draft-mtp" in self.flags.spec_type and self.model.mtp_layers > 0
        return weigh(self.model, self.placement, mtp=mtp).on_host

    @property
    def host_bytes(self) -> int:
        """Their bytes."""
        return sum(t.nbytes for t in self.host_tensors)

    @cached_property
    def cached_bytes(self) -> int:
        """Of these, what every token reads through the page cache.

        Not the embedding, of which a token reads one row, nor what the CPU backend copies into an order of its own.
        """
        if self.model is None or self.placement is None or not uses_mmap(self.flags):
            return 0
        is_head = self.model.is_tied and self.placement.output_place == self.placement.host
        read = [t for t in self.host_tensors if is_head or not t.name.startswith("token_embd")]
        return sum(t.nbytes for t in read) - (0 if self.placement.devices else repacked(read))

    @cached_property
    def cpu_experts(self) -> float | None:
        """Share of the routed experts that the CPU computes; ``None`` = not known, or a dense model."""
        if self.model is None or self.placement is None or self.header is None:
            return 1.0 if self.flags.cpu_moe else None
        sizes = [(t.nbytes, self.placement.of(t)) for t in self.header.tensors if EXPERTS.search(t.name)]
        whole = sum(size for size, _ in sizes)
        return sum(size for size, at in sizes if at == self.placement.host) / whole if whole else None

    @property
    def has_cpu_experts(self) -> bool:
        """Whether any expert is left to the CPU; by the flags where the header is not known."""
        if self.cpu_experts is None:
            return self.header is None and (self.flags.n_cpu_moe > 0 or self.flags.cpu_moe)
        return self.cpu_experts > 0


@dataclass(frozen=True)
class Setup:
    """All models, which of them may be loaded together, and the machine with none of them loaded.

    ``headroom_bytes`` by device, ``RAM`` included. ``cores``: physical ones; 0 = not known.
    """

    models: tuple[ModelFacts, ...] = ()
    together: tuple[tuple[ModelId, ...], ...] = ()
    gpus: tuple[DeviceSample, ...] = ()
    ram: DeviceSample = field(default_factory=lambda: DeviceSample(RAM, 0, None))
    headroom_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    cores: int = 0

    def beside(self, model: ModelFacts) -> list[ModelFacts]:
        """The models that may be loaded together with one."""
        ids = {other for ids in self.together if model.id in ids for other in ids}
        return [m for m in self.models if m.id in ids and m.id != model.id]

    def room(self, device: DeviceId, without: Sequence[ModelFacts] = ()) -> int | None:
        """Bytes that models may take on a device beside others; ``None`` = not known, as where one of these is not."""
        sample = next((d for d in (*self.gpus, self.ram) if d.id == device), None)
        if sample is None or sample.free_bytes is None or any(not m.need for m in without):
            return None
        return sample.free_bytes - self.headroom_bytes.get(device, 0) - sum(m.need.get(device, 0) for m in without)

    def fits(self, need: Mapping[DeviceId, int], without: Sequence[ModelFacts] = ()) -> bool:
        """Whether a footprint leaves the headroom everywhere, beside others."""
        rooms = {device: self.room(device, without) for device, size in need.items() if size}
        return all(room is not None and need[device] <= room for device, room in rooms.items())
