"""Orders, in the imperative: plain data that the supervisor carries out. Each says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from swapd.core.spec import DeviceId, ModelId
from swapd.errors import SwapdError


@dataclass(frozen=True, slots=True)
class PrepareInstance:
    """A hint: warm the exec shim of the next start; dropped if none follows."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Start a model's process; its events carry ``generation``. ``args``: of the footprint that was chosen."""

    model: ModelId
    generation: int
    reason: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopInstance:
    """End a process. ``cut``: requests that still run end with ``error`` first (drain over, or forced)."""

    model: ModelId
    generation: int
    reason: str
    cut: SwapdError | None = None


@dataclass(frozen=True, slots=True)
class SampleDevices:
    """Read the devices now; answered by ``DeviceSampled`` (with unknown devices if reading fails)."""

    reason: str


class GrantLease(NamedTuple):
    """A waiting request may go to its model's process of this generation."""

    rid: str
    model: ModelId
    generation: int


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """A waiting request (or load) ends with an error."""

    rid: str
    error: SwapdError


@dataclass(frozen=True, slots=True)
class StoreFootprint:
    """Remember what a load with these ``args`` was measured to take: bytes by device, at idle and at the peak seen."""

    model: ModelId
    generation: int
    idle_bytes: Mapping[DeviceId, int]
    peak_bytes: Mapping[DeviceId, int]
    load_s: float
    worked: bool = False
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send ``DeadlinePassed`` at this time; a later one replaces it; ``None`` = not needed."""

    at: float | None


Command: TypeAlias = (
    PrepareInstance
    | StartInstance
    | StopInstance
    | SampleDevices
    | GrantLease
    | RefuseRequest
    | StoreFootprint
    | WakeAt
)
