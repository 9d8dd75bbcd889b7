"""One request from its ticket to its last byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Any, Final, Protocol

from swapd.core.spec import ModelId, RouteSpec
from swapd.errors import Cancelled, InstanceDied, NotLoaded, SwapdError
from swapd.proxy.answer import Answer, Stage
from swapd.proxy.asgi import Headers, Receive
from swapd.proxy.bodies import Spool
from swapd.proxy.headers import request_head
from swapd.proxy.request import Request as Request
from swapd.proxy.request import Trace
from swapd.proxy.settings import ProxySettings
from swapd.proxy.sse import told_comment, told_reasoning
from swapd.proxy.stepping import Driven
from swapd.proxy.tail import TAIL_BYTES, is_complete, is_keep_alive, prefill_rate
from swapd.proxy.upstream import Connection, Direct, Gone, Pool
from swapd.supervisor.pool import Supervisor
from swapd.supervisor.tickets import Ticket
from swapd.units import format_duration

CLIENT_GONE: Final = 499
TIMER_SLACK_S: Final = 0.001
"""uvloop counts milliseconds: a timer may come up to half of one early."""


class Observer(Protocol):
    """Hears of every request; nothing of it may block or raise."""

    def began(self, exchange: Exchange) -> None:
        """A request asks for its model."""

    def ended(self, exchange: Exchange) -> None:
        """It ended, somehow."""

    def looked_up(self, model: ModelId, status: int) -> None:
        """A look-up that swapd answered itself."""

    def refused(self, answer: Answer, error: SwapdError) -> None:
        """A request that came to no model."""


@dataclass(frozen=True, slots=True)
class Relay:
    """What all requests share."""

    supervisor: Supervisor
    pool: Pool
    settings: ProxySettings
    observer: Observer


class Phase(Enum):
    """Where a request is."""

    WAITING = auto()  # for its grant, or for a connection
    ASKED = auto()  # written to the process; no byte of the answer yet
    ANSWERING = auto()
    COMPLETE = auto()  # the last byte is with the client's side
    BROKEN = auto()  # the process's connection ended first
    GONE = auto()  # the client ended first


_WAITING, _ASKED, _ANSWERING, _COMPLETE, _BROKEN, _GONE = Phase
"""Python 3.11 looks a member up in its class by a call of the metaclass: a tenth of a microsecond each."""
_RUNNING: Final = (_ASKED, _ANSWERING)


class Exchange:
    """Lives for one request, in the request's own task; ``run`` returns when the last byte has gone out."""

    __slots__ = (
        "_beat_at",
        "_broken_by",
        "_byte_by",
        "_connection",
        "_loop",
        "_phase",
        "_relay",
        "_request",
        "_route",
        "_timer",
        "_timer_at",
        "_wake",
        "answer",
        "trace",
    )

    def __init__(self, relay: Relay, route: RouteSpec, request: Request, answer: Answer) -> None:
        self.answer = answer
        self.trace = Trace(route.id, request)
        self._relay, self._route, self._request = relay, route, request
        self._loop = asyncio.get_running_loop()
        self._phase = _WAITING
        self._connection: Connection | None = None
        self._broken_by: SwapdError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._byte_by = self._beat_at = inf
        if request.stream:
            self._beat_at = self._loop.time() + relay.settings.header_hold_s

    async def run(self, receive: Receive, watch: Callable[[Any], bool] | None) -> None:
        """Relay the request; errors go to the client as its protocol has them.

        ``watch``: our server's way to hear of a hang-up; None: ``receive`` tells.
        """
        told = Driven(receive(), self._hung_up) if watch is None else None
        self._relay.observer.began(self)
        try:
            if (watch is None or watch(self._hung_up)) and not await self._attempt(fresh=False):
                await self._attempt(fresh=True)
        except SwapdError as error:
            self.trace.error = error
            if isinstance(error, Cancelled) and self.answer.stuck:
                self.answer.cut()
            await self.answer.fail(error)
        finally:
            if told is not None:
                told.close()
            elif watch is not None:
                watch(None)
            if self._timer is not None:
                self._timer.cancel()
            self._relay.observer.ended(self)

    def cancel(self, error: Cancelled) -> None:
        """End it now, with this error; also if nothing is left but a client that does not take the answer."""
        if self._phase is not _GONE:
            self.trace.error = error
        if self._phase in _RUNNING and self._connection is not None:
            self._connection.retire(error)
        elif self._phase is _WAITING:
            self.on_broken(error)
        else:
            self._poke()

    @property
    def phase(self) -> Phase:
        """Where it is; ``GONE`` too if the client left and the process goes on (``on_hangup = "drain"``)."""
        return _GONE if self.answer.stage is Stage.DISCARDED else self._phase

    async def _attempt(self, *, fresh: bool) -> bool:
        """One ticket, one sending; False if nothing of an answer came and the request may be sent once more.

        ``fresh``: the second and last attempt, on a new connection.
        """
        self._phase = _WAITING if self._phase is _BROKEN else self._phase
        ticket = self._ticket()
        connection = None
        tail: Collection[bytes] = ()
        try:
            if ticket.upstream is None:
                await self._granted(ticket)
            connection = None if fresh else self._relay.pool.idle(ticket.model, ticket.generation)
            if connection is None and self._phase is _WAITING:
                connection = await self._connected(ticket)
            if self._phase is _GONE or self._broken_by is not None:
                return self._leave(connection)
            if connection is not None:
                self._ask(connection)
                tail = connection.tail
                if isinstance(self._request.body, Spool):
                    await self._upload(connection, self._request.body)
                while self._phase in _RUNNING:
                    await self._sleep()
                if self._phase is _COMPLETE:
                    if self.answer.stuck:
                        await self._taken()  # the lease outlives the stream
                    return True
            return await self._failed(ticket, connection, last_try=fresh)
        finally:
            if self._connection is not None and self._phase is not _COMPLETE:
                self._connection.abort()
            self._connection = None
            text = self.trace.tail = b"".join(tail)[-TAIL_BYTES:]
            ticket.close(served=bool(tail), prefill_tps=prefill_rate(text) if text else 0.0)

    def _ticket(self) -> Ticket:
        request, supervisor = self._request, self._relay.supervisor
        if not request.look_up:
            return supervisor.request(self._route.id, rid=request.rid, prompt_tokens=len(request.body) // 4)
        ticket = supervisor.peek(self._route.id)
        if ticket is None:
            raise NotLoaded(f"{self._route.id} is not loaded, and this look-up does not load it")
        return ticket

    async def _granted(self, ticket: Ticket) -> None:
        """Wait for the grant, or until the client has gone."""
        since = time.monotonic()
        waiting = Driven(ticket.wait(), self._poke)
        try:
            while not waiting.done and self._phase is _WAITING:
                await self._sleep()
            if self._phase is _WAITING:
                waiting.result()
        finally:
            waiting.close()
            self.trace.waited(since, self._relay.supervisor.load_span(self._route.id))

    async def _connected(self, ticket: Ticket) -> Connection | None:
        """A new connection; None if the process turns out dead."""
        assert ticket.upstream is not None
        try:
            return await self._relay.pool.connect(ticket.model, ticket.generation, ticket.upstream)
        except Gone:
            return None

    def _ask(self, connection: Connection) -> None:
        request, route = self._request, self._route
        head = self._head(request)
        self._connection, self._phase = connection, _ASKED
        if route.first_byte_timeout_s:
            self._byte_by = self._loop.time() + route.first_byte_timeout_s
        body = request.body
        if isinstance(body, bytes):
            connection.ask(self, head, body, head_only=request.method == "HEAD")
        else:
            connection.ask(self, head, b"", unsent=len(body))

    def _head(self, request: Request) -> bytes:
        return request_head(request.method, request.target, request.headers, len(request.body), self._route.api_key)

    async def _upload(self, connection: Connection, body: Spool) -> None:
        """Send a large body as fast as the process takes it, or until it has said all it wants to say."""
        async with aclosing(body.pieces()) as pieces:
            async for piece in pieces:
                while connection.full and self._phase in _RUNNING:
                    await self._sleep()
                if self._phase not in _RUNNING:
                    return
                connection.more(piece)

    def _leave(self, connection: Connection | None) -> bool:
        """Nobody is left to answer, or it was cancelled before it was sent."""
        if connection is not None:
            connection.abort()
        if self._broken_by is not None:
            raise self._broken_by
        self.answer.status = self.answer.status or CLIENT_GONE
        return True

    async def _failed(self, ticket: Ticket, connection: Connection | None, *, last_try: bool) -> bool:
        """The answer did not come to its end: False if the request may be sent again, else its error is raised."""
        if self._phase is _GONE:
            return self._leave(connection)
        if self._broken_by is not None:
            raise self._broken_by
        unanswered = self.answer.stage in (Stage.HELD, Stage.OPENED)
        if unanswered and not last_try and (connection is None or connection.used > 1):
            return False
        raise await self._death(ticket)

    async def _death(self, ticket: Ticket) -> SwapdError:
        return await self._relay.supervisor.death(ticket.model, ticket.generation)

    # what happens while the request's task sleeps

    def on_head(self, status: int, headers: Headers) -> None:
        self._phase = _ANSWERING
        self.answer.head(status, headers)

    def on_data(self, data: bytes, *, last: bool) -> Direct | None:
        keeps_up = self.answer.data(data, last=last)
        waits_on = not self.trace.first_at and not last and is_keep_alive(data)
        if data or last:
            self._byte_by = inf  # a comment too is a sign that the engine is at it
            if not waits_on:
                self._beat_at = inf
                if not self.trace.first_at:
                    self.trace.first(data)
        if last:
            self._phase = _COMPLETE
            self._poke()
        elif not keeps_up:
            if self._connection is not None:
                self._connection.pause()
            self._poke()
        return self.answer.direct if data and not waits_on else None

    def on_upgrade(self, headers: Headers, rest: bytes) -> None:
        """Nobody asked for one."""
        self.on_broken(None)

    def on_room(self) -> None:
        self._poke()

    def on_broken(self, error: SwapdError | None) -> None:
        self._phase, self._broken_by = _BROKEN, error
        self._poke()

    def _hung_up(self) -> None:
        if self._phase in _RUNNING and self._route.on_hangup == "drain":
            self.answer.discard()
            self._beat_at = inf
        elif self._phase is not _COMPLETE:
            self._phase = _COMPLETE if self._has_last_event() else _GONE
            if self._connection is not None:
                self._connection.abort()
        self._poke()

    def _has_last_event(self) -> bool:
        """Whether all that the protocol has is with the client: some leave then, before the last byte."""
        if self._connection is None or self.answer.stuck or self.answer.stage is not Stage.STREAMED:
            return False
        return is_complete(b"".join(self._connection.tail))

    def _poke(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _tick(self) -> None:
        self._timer_at = inf
        self._poke()

    async def _sleep(self) -> None:
        """Until something happened, or the slow client has taken what waits; what falls due meanwhile is done."""
        if self.answer.stuck and self._connection is not None:
            await self._taken()
            self._connection.resume()
            return
        due = self._beat_at if self._beat_at < self._byte_by else self._byte_by
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(due, self._tick), due
        self._wake = self._loop.create_future()
        await self._wake
        if due < inf:
            self._fall_due(self._loop.time() + TIMER_SLACK_S)

    async def _taken(self) -> None:
        """Until the client has taken what waits; a request that was cancelled waits for nobody."""
        taking = Driven(self.answer.drain(), self._poke)
        try:
            while not taking.done:
                if isinstance(self.trace.error, Cancelled):
                    raise self.trace.error
                self._wake = self._loop.create_future()
                await self._wake
            taking.result()
        finally:
            taking.close()

    def _fall_due(self, now: float) -> None:
        if now >= self._byte_by and self._phase in _RUNNING:
            timeout = format_duration(self._route.first_byte_timeout_s)
            raise InstanceDied(f"{self._route.id}: no first byte within {timeout} (first_byte_timeout)")
        if now >= self._beat_at and self._phase not in (_BROKEN, _GONE):
            heartbeat_s = self._relay.settings.heartbeat_s
            self.answer.keep_alive(silent=heartbeat_s == 0, told=self._told())
            self._beat_at = now + heartbeat_s if heartbeat_s else inf

    def _told(self) -> bytes:
        """What a chat stream is told while its model is not ready (``loading_status``)."""
        how, request = self._relay.settings.loading_status, self._request
        if how == "off" or self._phase is not _WAITING or not request.target.startswith(b"/v1/chat/completions"):
            return b""
        text = f"{self._route.id}: {self._relay.supervisor.outlook(self._route.id, request.rid)}"
        return told_comment(text) if how == "comment" else told_reasoning(text, request.rid, self._route.id)
