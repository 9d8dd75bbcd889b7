"""A websocket to a model: asked for as any request, then two transports that hand each other's bytes on, unread.

The lease lasts as long as the socket. A process that refuses the upgrade answers
as to any other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, TypeAlias

from swapd.core.spec import RouteSpec
from swapd.errors import SwapdError
from swapd.proxy.answer import Answer, Stage
from swapd.proxy.asgi import Headers
from swapd.proxy.exchange import Exchange, Phase, Relay, Request
from swapd.proxy.frames import GOING_AWAY, FrameEdge
from swapd.proxy.headers import switched_head, upgrade_head
from swapd.proxy.upstream import Connection

SWITCHED: Final = 101
TakeOver: TypeAlias = Callable[[asyncio.Protocol], asyncio.Transport]


class Side(asyncio.Protocol):
    """One end of a tunnel; ``edge`` follows what the other end sends to this one."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.other: Side
        self.transport: asyncio.Transport
        self.edge: FrameEdge | None = None
        self._on_end = on_end

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def write(self, data: bytes) -> None:
        """Hand bytes on."""
        if self.edge is not None:
            self.edge.feed(data)
        self.transport.write(data)

    def pause_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.other.transport.close()  # what waits to be written there still is
        self._on_end()


class Tunnel(Exchange):
    """One websocket from its ticket to its end."""

    __slots__ = ("_near", "_take_over")

    def __init__(self, relay: Relay, route: RouteSpec, request: Request, answer: Answer, take_over: TakeOver) -> None:
        super().__init__(relay, route, request, answer)
        self._take_over = take_over
        self._near: Side | None = None

    def _ask(self, connection: Connection) -> None:
        request, route = self._request, self._route
        self._connection, self._phase = connection, Phase.ASKED
        if route.first_byte_timeout_s:
            self._byte_by = self._loop.time() + route.first_byte_timeout_s
        connection.ask(self, upgrade_head(request.target, request.headers, route.api_key), b"")

    def on_upgrade(self, headers: Headers, rest: bytes) -> None:
        connection = self._connection
        assert connection is not None
        near = self._near = Side(self._ended)
        far = Side(lambda: self._far_ended(connection))
        near.other, far.other, near.edge = far, near, FrameEdge()
        far.transport, near.transport = connection.become(far), self._take_over(near)
        self._phase, self._byte_by = Phase.ANSWERING, inf
        self.answer.status, self.answer.stage = SWITCHED, Stage.ENDED
        near.transport.write(switched_head(headers, self._request.rid))
        if rest:
            near.write(rest)

    def on_broken(self, error: SwapdError | None) -> None:
        """Before the upgrade a request's error; after it the process is being stopped: the client is told so."""
        near = self._near
        if near is None:
            super().on_broken(error)
            return
        if near.edge is not None and near.edge.at_edge:
            near.transport.write(GOING_AWAY)
        near.transport.close()
        self._ended()

    def _far_ended(self, connection: Connection) -> None:
        connection.abort()
        self._ended()

    def _ended(self) -> None:
        self._phase = Phase.COMPLETE
        self._poke()
