"""Facts, in the past tense. ``at`` is monotonic seconds; everything is plain data.

Those of every request are named tuples: they are made faster than frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from swapd.core.ledger import MachineSample
from swapd.core.spec import Catalog, DeviceId, Footprint, ModelId


class RequestArrived(NamedTuple):
    """A request for a model; ``prompt_tokens`` is an estimate (bytes / 4)."""

    at: float
    rid: str
    model: ModelId
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """A waiting request's client left."""

    at: float
    rid: str


class LeaseReturned(NamedTuple):
    """A granted request ended, on its last byte, an error or a hang-up.

    ``served``: the engine answered. ``prefill_tps``: its prefill rate in tokens/s
    where the answer told, else 0.
    """

    at: float
    rid: str
    served: bool = True
    prefill_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """The process answers requests."""

    at: float
    model: ModelId
    generation: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The process ended, or was ended, before it was ready, and is gone; ``still_there``: not even SIGKILL ended it.

    ``message`` is for the client; ``cause`` one of the words of ``llama.protocol``.
    """

    at: float
    model: ModelId
    generation: int
    message: str
    cause: str = ""
    exit_status: str = ""
    stderr_tail: str = ""
    timed_out: bool = False
    still_there: bool = False


@dataclass(frozen=True, slots=True)
class InstanceExited:
    """A process is gone (reaped): after a stop, or by itself (``message`` says how)."""

    at: float
    model: ModelId
    generation: int
    message: str = ""
    cause: str = ""
    exit_status: str = ""
    stderr_tail: str = ""


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """Even SIGKILL did not end the process within ``kill_timeout``."""

    at: float
    model: ModelId
    generation: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """A load went on: 0..1 and the engine's word for the stage."""

    at: float
    model: ModelId
    generation: int
    progress: float
    stage: str = ""


@dataclass(frozen=True, slots=True)
class FootprintLearned:
    """A model's footprint became known, or known better; ``load_s`` is what a load takes, measured or estimated."""

    at: float
    model: ModelId
    footprint: Footprint
    load_s: float


@dataclass(frozen=True, slots=True)
class DeviceSampled:
    """What the machine's memory looked like; ``held``: bytes of single instances, where the driver tells."""

    at: float
    sample: MachineSample
    held: Mapping[ModelId, Mapping[DeviceId, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time that a ``WakeAt`` asked for has come."""

    at: float


@dataclass(frozen=True, slots=True)
class LoadRequested:
    """An operator (or ``preload``, which never evicts) wants a model loaded; ``rid`` is granted once it is ready."""

    at: float
    rid: str
    model: ModelId
    preload: bool = False


@dataclass(frozen=True, slots=True)
class UnloadRequested:
    """An operator wants a model gone; ``force``: running requests get no ``drain``."""

    at: float
    model: ModelId
    force: bool = False


@dataclass(frozen=True, slots=True)
class ConfigReplaced:
    """Another configuration holds from now on; ``changed``: models whose process would be started differently."""

    at: float
    catalog: Catalog
    changed: frozenset[ModelId] = frozenset()


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """swapd is asked to stop; ``force``: at once."""

    at: float
    force: bool = False


Event: TypeAlias = (
    RequestArrived
    | RequestWithdrawn
    | LeaseReturned
    | InstanceReady
    | StartFailed
    | InstanceExited
    | InstanceLost
    | LoadProgressed
    | FootprintLearned
    | DeviceSampled
    | DeadlinePassed
    | LoadRequested
    | UnloadRequested
    | ConfigReplaced
    | ShutdownRequested
)
