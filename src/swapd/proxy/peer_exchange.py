"""A request that a peer answers: relayed as to a process of ours, but nothing is loaded and nobody queues here."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from swapd.core.naming import Peer
from swapd.core.spec import RouteSpec
from swapd.errors import PeerUnreachable, SwapdError
from swapd.proxy.answer import Answer
from swapd.proxy.asgi import Headers
from swapd.proxy.exchange import Exchange, Relay, Request
from swapd.proxy.headers import request_head
from swapd.proxy.peers import GENERATION
from swapd.proxy.upstream import CONNECT_S, Connection, Gone, Pool
from swapd.supervisor.tickets import Ticket

HOPS: Final = b"x-swapd-hops"
MAX_HOPS: Final = 4
"""Peers that name each other's models would send a request round for ever."""


class PeerExchange(Exchange):
    """One request to a peer. The client's keys stay here: the peer gets its own."""

    __slots__ = ("_peer",)

    def __init__(
        self, relay: Relay, pool: Pool, peer: Peer, route: RouteSpec, request: Request, answer: Answer
    ) -> None:
        super().__init__(replace(relay, pool=pool), route, _outward(request, peer), answer)
        self._peer = peer

    def _ticket(self) -> Ticket:
        ticket = Ticket(self._request.rid, self._peer.id, _close_nothing)
        ticket.grant(self._peer.upstream, GENERATION)
        return ticket

    async def _connected(self, ticket: Ticket) -> Connection | None:
        try:
            connection = await self._relay.pool.connect(ticket.model, ticket.generation, self._peer.upstream)
        except Gone as gone:
            words = str(gone) or f"no connection within {CONNECT_S:g} s"
            raise PeerUnreachable(f"peer {self._peer.id} ({self._peer.url}) cannot be reached: {words}") from gone
        connection.watch_far_end()
        return connection

    def _head(self, request: Request) -> bytes:
        size, peer = len(request.body), self._peer
        return request_head(request.method, request.target, request.headers, size, peer.api_key, peer.host)

    async def _death(self, ticket: Ticket) -> SwapdError:
        return PeerUnreachable(f"peer {self._peer.id} ({self._peer.url}) closed the connection before its answer ended")

    def _told(self) -> bytes:
        """What a peer's model does is the peer's to tell."""
        return b""


def _outward(request: Request, peer: Peer) -> Request:
    """With the peer's prefix, and without what only concerns the browser that asked us.

    Raises:
        PeerUnreachable: it came through too many swapds already.
    """
    headers: Headers = []
    hops = 0
    for name, value in request.headers:
        if name == HOPS:
            hops = int(value) if value.isdigit() else 0
        elif not name.startswith(b"sec-fetch-") and name != b"referer":
            headers.append((name, value))
    if hops >= MAX_HOPS:
        raise PeerUnreachable(
            f"peer {peer.id}: the request went through {hops} peers already; do they name each other?"
        )
    headers.append((HOPS, b"%d" % (hops + 1)))
    return request._replace(headers=headers, target=peer.base.encode() + request.target)


def _close_nothing(ticket: Ticket, served: bool, prefill_tps: float) -> None:
    """A peer counts its own leases."""
