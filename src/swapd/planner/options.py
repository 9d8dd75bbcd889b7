"""What ``swapd plan`` is asked and what it finds: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from swapd.core.flags import EngineFlags
from swapd.core.spec import DeviceId
from swapd.gguf.memory import Prediction
from swapd.gguf.types import GgufHeader
from swapd.planner.machine import PlanGpu
from swapd.planner.speed import Speed

CACHE_TYPES = (("f16", "f16", 1.0), ("q8_0", "q8_0", 0.98), ("q8_0", "q4_0", 0.93))
"""K, V and how good the answers stay (L11: K suffers first, so it is never below q8_0; V may go lower)."""


def quality(flags: EngineFlags) -> float:
    """How good answers stay with this cache, 1 = f16."""
    return next((q for k, v, q in CACHE_TYPES if (k, v) == (flags.cache_type_k, flags.cache_type_v)), 1.0)


@dataclass(frozen=True, slots=True)
class Ladder:
    """A flag of a fork that steps down; bytes of each step count on the model's first GPU."""

    flag: str
    steps: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One model to be planned: ``args`` are fixed, ``ctx_tokens`` 0 is open."""

    path: str
    name: str
    header: GgufHeader
    args: tuple[str, ...] = ()
    ctx_tokens: int = 0
    ladder: Ladder | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a model. ``gpus``: those it sees, in order; none = hidden. ``step``: of its ladder."""

    ask: Ask
    flags: EngineFlags
    gpus: tuple[PlanGpu, ...]
    prediction: Prediction
    speed: Speed
    utility: float
    shed: int = 0
    step: int | None = None
    whole: bool = False

    @property
    def step_bytes(self) -> int:
        """What the ladder's step takes on the first GPU."""
        return 0 if self.step is None or self.ask.ladder is None else self.ask.ladder.sizes[self.step]

    def merits(self) -> tuple[float, ...]:
        """What is better the larger it is: tokens/s of answers and prompts, context, quality of the cache, pool."""
        speed = (round(self.speed.decode_tps, 1), round(self.speed.prefill_tps))
        return (*speed, self.prediction.n_ctx, quality(self.flags), float(self.step_bytes))

    def taken(self) -> dict[DeviceId, int]:
        """Peak bytes by GPU."""
        sizes = {d.id: d.peak for d in self.prediction.devices}
        if self.gpus:
            sizes[self.gpus[0].gpu.id] += self.step_bytes
        return sizes


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What was found for one model, best first; empty with ``why`` if nothing fits. ``hints``: what would fit more."""

    ask: Ask
    options: tuple[Option, ...]
    why: str = ""
    hints: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Option | None:
        """The one to take."""
        return self.options[0] if self.options else None
