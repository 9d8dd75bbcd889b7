"""The one owner of ``Scheduler``: events in, commands out, children and leases in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from swapd.core.spec import ModelId
from swapd.errors import InstanceDied, SwapdError
from swapd.supervisor.tickets import Ticket

RetireListener: TypeAlias = Callable[[ModelId, int, SwapdError | None], None]
"""Called with (model, generation, error) right before a process is stopped: close every upstream
connection to it; requests still running on it end with ``error`` (there are none if it is None)."""


class Supervisor:
    """Owns the scheduler, the instances and the tickets."""

    def request(self, model: ModelId, *, rid: str, prompt_tokens: int = 0) -> Ticket:
        """Ask for a model; the ticket may be granted or refused already. Synchronous, never suspends."""
        raise NotImplementedError

    def load(self, model: ModelId, *, rid: str, preload: bool = False) -> Ticket:
        """Ask that a model be loaded; granted when it is ready, holds no lease; withdrawing it stops nothing."""
        raise NotImplementedError

    async def unload(self, model: ModelId, *, force: bool = False, wait: bool = True) -> None:
        """Unload a model; returns when its process is gone (at once with ``wait=False``)."""
        raise NotImplementedError

    async def death(self, model: ModelId, generation: int) -> InstanceDied:
        """Why a process that broke a connection ended; waits at most half a second for its exit."""
        raise NotImplementedError

    def add_retire_listener(self, listener: RetireListener) -> None:
        """Register the proxy's hook that closes upstream connections."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """``devices``, ``ram`` and ``models`` of ``GET /api/status``, JSON-ready, and ``known``: whether devices are."""
        raise NotImplementedError

    def explain(self, model: ModelId) -> Mapping[str, Any]:
        """What a request for the model would do now, and why; JSON-ready."""
        raise NotImplementedError

    def state_of(self, model: ModelId) -> str:
        """The word of ``InstanceState`` for one model."""
        raise NotImplementedError

    def peek(self, model: ModelId) -> Ticket | None:
        """A ticket for a look-up on a running instance: never loads, never counts as use; None if it is not ready."""
        raise NotImplementedError

    def models(self) -> Sequence[ModelId]:
        """All ids, in file order."""
        raise NotImplementedError

    def devices_known(self) -> bool:
        """False while the GPUs cannot be read."""
        raise NotImplementedError

    def log(self, model: ModelId) -> bytes:
        """The model's output so far (a bounded ring)."""
        raise NotImplementedError

    def follow(self, model: ModelId) -> AsyncIterator[bytes]:
        """The model's output so far, then as it comes."""
        raise NotImplementedError

    def changes(self) -> AsyncIterator[Mapping[str, Any]]:
        """``{"model", "state", "reason", ...}`` at each state change or load progress, until closed."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Stop admitting, drain, stop every child; bounded. Leases cut at the end of ``drain``."""
        raise NotImplementedError

    def shutdown_now(self) -> None:
        """A second signal: no more drain, SIGKILL."""
        raise NotImplementedError
