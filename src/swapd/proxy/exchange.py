"""One request from its ticket to its last byte."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final

from swapd.core.spec import RouteSpec
from swapd.errors import InstanceDied, NotLoaded, SwapdError
from swapd.proxy.answer import Answer, Stage
from swapd.proxy.asgi import Headers, Message, Receive
from swapd.proxy.headers import request_head
from swapd.proxy.settings import ProxySettings
from swapd.proxy.sse import TAIL_BYTES, prefill_tps
from swapd.proxy.stepping import Driven
from swapd.proxy.upstream import Connection, Gone, Pool
from swapd.supervisor.pool import Supervisor
from swapd.supervisor.ports import Upstream
from swapd.supervisor.tickets import Ticket
from swapd.units import format_duration

TAIL_CHUNKS: Final = 8


@dataclass(frozen=True, slots=True)
class Request:
    """What the client asked, read whole; ``target`` is path and query as they go upstream."""

    rid: str
    method: str
    target: bytes
    headers: Headers
    body: bytes
    stream: bool
    look_up: bool = False


@dataclass(frozen=True, slots=True)
class Relay:
    """What all requests share."""

    supervisor: Supervisor
    pool: Pool
    settings: ProxySettings


class Phase(Enum):
    """Where a request is."""

    WAITING = auto()  # for its grant, or for a connection
    ASKED = auto()  # written to the process; no byte of the answer yet
    ANSWERING = auto()
    COMPLETE = auto()  # the last byte is with the client's side
    BROKEN = auto()  # the process's connection ended first
    GONE = auto()  # the client ended first


class _ClientGone(Exception):
    """Nobody is left to answer."""


class _Resend(Exception):
    """Nothing of an answer came, and the request may be sent once more."""


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
        "_tail",
        "_timer",
        "_timer_at",
        "_wake",
        "_watch",
        "answer",
    )

    def __init__(self, relay: Relay, route: RouteSpec, request: Request, answer: Answer) -> None:
        self.answer = answer
        self._relay, self._route, self._request = relay, route, request
        self._loop = asyncio.get_running_loop()
        self._phase = Phase.WAITING
        self._connection: Connection | None = None
        self._broken_by: SwapdError | None = None
        self._tail: deque[bytes] = deque(maxlen=TAIL_CHUNKS)
        self._wake: asyncio.Future[None] | None = None
        self._watch: Driven[Message] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._byte_by = self._beat_at = inf
        if request.stream:
            self._beat_at = self._loop.time() + relay.settings.header_hold_s

    async def run(self, receive: Receive) -> None:
        """Relay the request; errors go to the client as its protocol has them."""
        self._watch = Driven(receive(), self._hung_up)
        try:
            if self._phase is not Phase.GONE:
                await self._attempts()
        except _ClientGone:
            self.answer.status = self.answer.status or 499
        except SwapdError as error:
            await self.answer.fail(error)
        finally:
            self._watch.close()
            if self._timer is not None:
                self._timer.cancel()

    async def _attempts(self) -> None:
        try:
            await self._attempt(fresh=False)
        except _Resend:
            self._phase = Phase.WAITING
            await self._attempt(fresh=True)

    async def _attempt(self, *, fresh: bool) -> None:
        """One ticket, one sending; ``fresh``: the second and last one, on a new connection."""
        ticket = self._ticket()
        try:
            upstream = ticket.upstream or await self._granted(ticket)
            connection = None if fresh else self._relay.pool.idle(ticket.model, ticket.generation)
            if connection is None:
                connection = await self._connected(ticket, upstream, last_try=fresh)
            self._ask(connection)
            await self._until_over(ticket, may_resend=connection.used > 1)
        finally:
            if self._connection is not None and self._phase is not Phase.COMPLETE:
                self._connection.abort()
            self._connection = None
            ticket.close(served=bool(self._tail), prefill_tps=prefill_tps(self._tail))

    def _ticket(self) -> Ticket:
        request, supervisor = self._request, self._relay.supervisor
        if not request.look_up:
            return supervisor.request(self._route.id, rid=request.rid, prompt_tokens=len(request.body) // 4)
        ticket = supervisor.peek(self._route.id)
        if ticket is None:
            raise NotLoaded(f"{self._route.id} is not loaded, and this look-up does not load it")
        return ticket

    async def _granted(self, ticket: Ticket) -> Upstream:
        waiting = Driven(ticket.wait(), self._poke)
        try:
            while not waiting.done and self._phase is Phase.WAITING:
                await self._sleep()
            if self._phase is Phase.GONE:
                raise _ClientGone
            return waiting.result()
        finally:
            waiting.close()

    async def _connected(self, ticket: Ticket, upstream: Upstream, *, last_try: bool) -> Connection:
        try:
            connection = await self._relay.pool.connect(ticket.model, ticket.generation, upstream)
        except Gone:
            if last_try:
                raise await self._relay.supervisor.death(ticket.model, ticket.generation) from None
            raise _Resend from None
        if self._phase is Phase.GONE:
            connection.abort()
            raise _ClientGone
        return connection

    def _ask(self, connection: Connection) -> None:
        request, route = self._request, self._route
        head = request_head(request.method, request.target, request.headers, len(request.body), route.api_key)
        self._connection, self._phase = connection, Phase.ASKED
        if route.first_byte_timeout_s:
            self._byte_by = self._loop.time() + route.first_byte_timeout_s
        connection.ask(self, head, request.body, head_only=request.method == "HEAD")

    async def _until_over(self, ticket: Ticket, *, may_resend: bool) -> None:
        while self._phase in (Phase.ASKED, Phase.ANSWERING):
            if self.answer.stuck:
                await self._drain()
            else:
                await self._sleep()
        if self._phase is Phase.GONE:
            raise _ClientGone
        if self._phase is Phase.COMPLETE:
            await self.answer.drain()  # the lease outlives the stream
        elif self._broken_by is not None:
            raise self._broken_by
        elif may_resend and self.answer.stage in (Stage.HELD, Stage.OPENED):
            raise _Resend
        else:
            raise await self._relay.supervisor.death(ticket.model, ticket.generation)

    async def _drain(self) -> None:
        await self.answer.drain()
        if self._connection is not None:
            self._connection.resume()

    # what happens while the request's task sleeps

    def on_head(self, status: int, headers: Headers) -> None:
        self._phase = Phase.ANSWERING
        self.answer.head(status, headers)

    def on_data(self, data: bytes, *, last: bool) -> None:
        self._beat_at = self._byte_by = inf
        self._tail.append(data[-TAIL_BYTES:])
        keeps_up = self.answer.data(data, last=last)
        if last:
            self._phase = Phase.COMPLETE
            self._poke()
        elif not keeps_up:
            if self._connection is not None:
                self._connection.pause()
            self._poke()

    def on_broken(self, error: SwapdError | None) -> None:
        self._phase, self._broken_by = Phase.BROKEN, error
        self._poke()

    def _hung_up(self) -> None:
        if self._phase in (Phase.ASKED, Phase.ANSWERING) and self._route.on_hangup == "drain":
            self.answer.discard()
            self._beat_at = inf
        elif self._phase is not Phase.COMPLETE:
            self._phase = Phase.GONE
            if self._connection is not None:
                self._connection.abort()
        self._poke()

    def _poke(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _sleep(self) -> None:
        """Until something happened; what falls due meanwhile is done."""
        due = min(self._beat_at, self._byte_by)
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(due, self._poke), due
        self._wake = self._loop.create_future()
        await self._wake
        if self._timer_at < inf and self._timer_at <= self._loop.time():
            self._timer_at = inf
            self._fall_due(self._loop.time())

    def _fall_due(self, now: float) -> None:
        if now >= self._byte_by and self._phase in (Phase.ASKED, Phase.ANSWERING):
            timeout = format_duration(self._route.first_byte_timeout_s)
            raise InstanceDied(f"{self._route.id}: no first byte within {timeout} (first_byte_timeout)")
        if now >= self._beat_at and self._phase not in (Phase.BROKEN, Phase.GONE):
            heartbeat_s = self._relay.settings.heartbeat_s
            self.answer.keep_alive(silent=heartbeat_s == 0)
            self._beat_at = now + heartbeat_s if heartbeat_s else inf
