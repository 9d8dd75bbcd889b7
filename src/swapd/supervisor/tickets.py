"""A request's place in the line, and then its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swapd.core.spec import ModelId
from swapd.errors import SwapdError
from swapd.supervisor.ports import Upstream


class Ticket:
    """One request for a model: first a waiter, then (if granted) a lease, until ``close``.

    Whoever gets one closes it in a ``finally``: on success, error, hang-up and
    cancel. Closing a waiter withdraws it; closing a lease returns it. A grant can
    come before ``request`` returns, so the fast path never suspends.
    """

    __slots__ = ("_close", "_waker", "error", "generation", "model", "rid", "upstream")

    def __init__(self, rid: str, model: ModelId, close: Callable[[Ticket, bool, float], None]) -> None:
        self.rid = rid
        self.model = model
        self.generation = 0
        self.upstream: Upstream | None = None
        self.error: SwapdError | None = None
        self._close: Callable[[Ticket, bool, float], None] | None = close
        self._waker: asyncio.Future[None] | None = None

    async def wait(self) -> Upstream:
        """Wait for the grant; the only wait of a request.

        Raises:
            SwapdError: the refusal (a ``CapacityError`` or ``InstanceError``).
        """
        if self.upstream is None and self.error is None:
            self._waker = asyncio.get_running_loop().create_future()
            await self._waker
        if self.error is not None:
            raise self.error
        assert self.upstream is not None
        return self.upstream

    def close(self, *, served: bool, prefill_tps: float = 0.0) -> None:
        """Return the lease, or withdraw. ``served``: the engine answered. A second call does nothing."""
        close, self._close = self._close, None
        if close is not None:
            close(self, served, prefill_tps)

    def grant(self, upstream: Upstream, generation: int) -> None:
        """For the supervisor alone."""
        self.upstream, self.generation = upstream, generation
        self._wake()

    def refuse(self, error: SwapdError) -> None:
        """For the supervisor alone. A refused ticket needs no ``close``."""
        self.error, self._close = error, None
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)
