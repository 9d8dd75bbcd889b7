"""What the operator declared and what a model takes: frozen plain data, no behaviour that needs the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

ModelId: TypeAlias = str
DeviceId: TypeAlias = str

RAM: Final[DeviceId] = "ram"
"""Host memory is a device like any other to the memory rule: same formula, its own headroom."""

PAGE_CACHE: Final[DeviceId] = "page_cache"
"""RAM once more, for models that read their weights through the page cache at every token: process memory and these
pages together must fit it (law L1). Only with ``page_cache = "refuse"``."""

Linger: TypeAlias = float | Literal["auto"]
"""Seconds a model is held after its last answer, or ``"auto"``: learned."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak bytes a model takes, by device id (``RAM`` included).

    ``growth_bytes``: the part of ``need_bytes`` that comes only with the first
    long request. ``alone_on``: devices the load must have to itself, because its
    size there is not known (or the engine takes whatever is free). ``fixed``: the
    operator said so, and no measurement replaces it. ``args``: what must be added to
    the command line to get this size; ``larger``: better ways to run the model, the
    best first, which are taken if there is room at the start. ``cached_bytes``: weights
    that every token reads through the page cache.
    """

    need_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    growth_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    alone_on: frozenset[DeviceId] = frozenset()
    fixed: bool = False
    args: tuple[str, ...] = ()
    larger: tuple[Footprint, ...] = ()
    cached_bytes: int = 0

    def on(self, device: DeviceId) -> int:
        """Bytes on one device; 0 where the model does not go."""
        return self.need_bytes.get(device, 0)

    def best_for(self, room_bytes: Mapping[DeviceId, int]) -> Footprint:
        """The best way that fits; the least one if none does."""
        return next((way for way in self.larger if way.fits(room_bytes)), self)

    def fits(self, room_bytes: Mapping[DeviceId, int]) -> bool:
        """Whether there is room for it on every device it goes to."""
        return all(size <= room_bytes.get(device, -1) for device, size in self.need_bytes.items())


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model as the scheduler sees it; durations in seconds, ``concurrency`` 0 = no limit."""

    id: ModelId
    priority: int = 0
    concurrency: int = 0
    idle_timeout_s: float = 0.0
    linger: Linger = "auto"
    on_conflict: Literal["swap", "refuse"] = "swap"
    persistent: bool = False
    preload: bool = False
    expect_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Models with common rules; the words mean what they mean in llama-swap."""

    id: str
    members: tuple[ModelId, ...]
    swap: bool = True
    exclusive: bool = True
    persistent: bool = False
    preload: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """``[scheduling]``, ``[headroom]`` and ``drain``: seconds and bytes.

    ``headroom_bytes`` holds the exceptions; ``vram_headroom_bytes`` and
    ``ram_headroom_bytes`` hold for every other device.
    """

    max_wait_s: float = 60.0
    min_residency_s: float = 0.0
    queue_limit: int = 4096
    queue_timeout_s: float = 1800.0
    release_timeout_s: float = 10.0
    backoff_s: tuple[float, float] = (5.0, 300.0)
    ungrouped: Literal["headroom", "swap"] = "headroom"
    drain_s: float = 20.0
    sample_interval_s: float = 2.0
    vram_headroom_bytes: int = 1 << 30
    ram_headroom_bytes: int = 1 << 30
    headroom_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    page_cache: Literal["off", "warn", "refuse"] = "warn"

    def headroom(self, device: DeviceId, *other_names: str) -> int:
        """Bytes that must stay free on a device, which the configuration may name by id, index or PCI bus id.

        None of the page cache: the RAM headroom is kept free of process memory, and cached pages may fill it.
        """
        if device == PAGE_CACHE:
            return 0
        default = self.ram_headroom_bytes if device == RAM else self.vram_headroom_bytes
        return next((self.headroom_bytes[n] for n in (device, *other_names) if n in self.headroom_bytes), default)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything declared: models and groups in file order, and the policy."""

    models: Mapping[ModelId, ModelSpec]
    groups: Mapping[str, Group] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)

    def preloaded(self) -> set[ModelId]:
        """Models to be loaded at the start; of a group that swaps its members, the first."""
        wanted = {m for m, spec in self.models.items() if spec.preload}
        for group in self.groups.values():
            if group.preload:
                wanted |= set(group.members[:1] if group.swap else group.members)
        return wanted


@dataclass(frozen=True, slots=True)
class BinarySpec:
    """One llama-server build. ``path`` empty: the embedded engine."""

    name: str
    path: str = ""
    library_path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ladder:
    """A flag that steps down, the largest step first; bytes of each step, which count on the model's first GPU."""

    flag: str
    steps: tuple[str, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How one model's process is started and stopped; seconds, absolute paths.

    Exactly one of ``gguf`` (a llama-server model) and ``cmd`` (anything else) is
    set. ``gpus``: ``None`` = all, else device ids, PCI bus ids or indices as
    configured, in that order; empty hides every GPU. ``scrub_env`` names
    variables the child must not inherit (those the configuration reads).
    ``auto_ctx``, ``auto_n_cpu_moe`` and ``ladder`` are decided at the start, by what is free then.
    """

    id: ModelId
    gguf: str = ""
    binary: BinarySpec | None = None
    args: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    stop_cmd: tuple[str, ...] = ()
    health: str = "/health"
    ctx_tokens: int = 0
    gpus: tuple[str | int, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    scrub_env: frozenset[str] = frozenset()
    api_key: str = ""
    upstream_model: str = ""
    load_timeout_s: float = 600.0
    stop_grace_s: float = 30.0
    kill_timeout_s: float = 10.0
    vram: int | Mapping[str, int] | Literal["auto"] = "auto"
    ram: int | Literal["auto"] = "auto"
    auto_ctx: bool = False
    auto_n_cpu_moe: bool = False
    ladder: Ladder | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What configuration and GGUF header tell of a model without loading it; empty, 0 or False: no, or not known.

    ``header``: the header's single values by their full keys. ``tools`` and
    ``reasoning`` are read off the chat template, which may be too long to keep.
    """

    path: str = ""
    command: tuple[str, ...] = ()
    name: str = ""
    architecture: str = ""
    quantization: str = ""
    size_bytes: int = 0
    modified_at_s: float = 0.0
    parameters: int = 0
    trained_ctx_tokens: int = 0
    vocabulary: int = 0
    width: int = 0
    has_chat_template: bool = False
    chat_template: str = ""
    tools: bool = False
    reasoning: bool = False
    vision: bool = False
    audio: bool = False
    embeddings: bool = False
    slots: int = 0
    adapters: tuple[str, ...] = ()
    header: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """What the proxy needs to know of a model; seconds, 0 = none."""

    id: ModelId
    first_byte_timeout_s: float = 0.0
    on_hangup: Literal["abort", "drain"] = "abort"
    upstream_model: str = ""
    api_key: str = ""
    description: str = ""
    unlisted: bool = False
    ctx_tokens: int = 0
    aliases: tuple[str, ...] = ()
    idle_timeout_s: float = 0.0
    facts: ModelFacts = field(default_factory=ModelFacts)
