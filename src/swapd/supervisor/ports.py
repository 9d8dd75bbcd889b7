"""What the supervisor needs from the world, as protocols; ``wiring.py`` passes the real ones, tests pass fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from swapd.core.activity import EndedRequest
from swapd.core.endpoint import ExitReport as ExitReport
from swapd.core.endpoint import Upstream as Upstream
from swapd.core.ledger import MachineSample
from swapd.core.spec import DeviceId, Footprint, ModelId

HeldBytes: TypeAlias = Mapping[ModelId, Mapping[DeviceId, int]]


class Instance(Protocol):
    """One live child process; owned by the supervisor, one a generation."""

    @property
    def pid(self) -> int: ...

    @property
    def upstream(self) -> Upstream: ...

    @property
    def n_ctx(self) -> int:
        """Context in tokens as the engine tells after the load; 0 = not known."""

    @property
    def degraded(self) -> str:
        """Why the instance is less than configured (a smaller context), or ``""``."""

    async def ready(self, progressed: Callable[[float, str], None]) -> ExitReport | None:
        """Wait until the instance answers.

        Returns ``None`` when ready. Returns a report when it failed; the process is gone
        then, unless it says ``still_there``. Bounded by the model's ``load_timeout`` without progress
        (``cause`` is ``"timeout"`` then, the process already killed) and by a stop.
        """

    async def exited(self) -> ExitReport:
        """Wait until the process is reaped, however it ended."""

    async def stop(self, reason: str) -> bool:
        """End the process: the engine's own stop, SIGTERM, ``stop_grace``, SIGKILL, ``kill_timeout``.

        True once it is reaped, False if even SIGKILL did not end it in time. May be
        called again, and while ``ready`` waits (which then returns a report).
        """

    async def kill(self) -> bool:
        """SIGKILL the group at once; True once reaped, within ``kill_timeout``."""


class PreparedShim(Protocol):
    """An exec shim that is started and waits for its word; unused ones are discarded."""

    async def discard(self) -> None: ...


class Launcher(Protocol):
    """Starts processes; knows engines."""

    async def prepare(self, model: ModelId) -> PreparedShim:
        """Start the shim of the next ``start``; it execs nothing until then."""

    async def start(
        self,
        model: ModelId,
        generation: int,
        prepared: PreparedShim | None = None,
        args: tuple[str, ...] = (),
    ) -> Instance:
        """Start a model's process; ``args`` come after its own.

        Raises:
            StartFailed: (of ``swapd.errors``) if not even a process could be started.
        """

    def log(self, model: ModelId) -> bytes:
        """The model's output so far: the last bytes of its ring, over all its starts."""

    def follow(self, model: ModelId) -> AsyncIterator[bytes]:
        """The ring's bytes, then new ones as they come, until closed."""

    async def sweep(self) -> Sequence[str]:
        """End children that a dead swapd left behind (its own only); one line for each."""


class DeviceMonitor(Protocol):
    """Reads the devices; never raises: what cannot be read is unknown in the sample."""

    def glance(self, pids: Mapping[ModelId, int]) -> tuple[MachineSample, HeldBytes] | None:
        """As ``sample``, at once; ``None`` where that might block."""

    async def sample(self, pids: Mapping[ModelId, int]) -> tuple[MachineSample, HeldBytes]:
        """The machine's memory now, and what each of these processes holds where that can be told."""


class FootprintStore(Protocol):
    """Remembers measurements by binary, GGUF identity and memory-relevant flags."""

    def record(
        self,
        model: ModelId,
        generation: int,
        idle_bytes: Mapping[DeviceId, int],
        peak_bytes: Mapping[DeviceId, int],
        load_s: float,
        worked: bool,
        args: tuple[str, ...],
    ) -> bool:
        """Add or update this load's row; cheap, never raises. True: other models are to be sized anew."""


class ModelInfo(Protocol):
    """What is known of a model without loading it."""

    def footprint(self, model: ModelId, sample: MachineSample) -> Footprint:
        """Configured, else measured, else predicted (errs high), on the devices of this machine.

        ``free_bytes`` of the sample's GPUs: what would be free if none of our models were loaded.
        """

    def estimated_load_s(self, model: ModelId) -> float:
        """Measured before, else from the file's size."""

    def prediction_errors(self, model: ModelId) -> Mapping[DeviceId, int]:
        """Bytes by GPU that the last load of this run took beyond its prediction; empty if none was predicted."""


class ActivityLog(Protocol):
    """Remembers requests that ended."""

    def record(self, ended: EndedRequest) -> None:
        """Take a row; cheap, never blocks, never raises."""

    async def recent(self, *, limit: int, model: str = "", since: float = 0.0) -> Sequence[EndedRequest]:
        """The last rows, newest first: of one model, or that came at ``since`` (seconds of the epoch) or later."""


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...
