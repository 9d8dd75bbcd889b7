"""The relay as plain ASGI callables: returning means that the last byte was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import closing
from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode

from swapd.errors import BadRequest, SwapdError
from swapd.proxy.answer import Answer
from swapd.proxy.asgi import HANG_UP, HEADERS, RID, TAKE_OVER, Receive, Scope, Send, respond
from swapd.proxy.bodies import Body, HungUp, Spool, read_body
from swapd.proxy.captures import Captured, Captures
from swapd.proxy.directory import Directory, Target
from swapd.proxy.edits import edited, renamed
from swapd.proxy.exchange import Exchange, Relay, Request
from swapd.proxy.listing import Listing
from swapd.proxy.names import NOTHING, PARSED_WHOLE_BYTES, Asked, model_of
from swapd.proxy.peer_exchange import PeerExchange
from swapd.proxy.routes import is_model_routed
from swapd.proxy.sse import dialect_of
from swapd.proxy.tunnel import Tunnel

LOOK_UPS: Final = frozenset({"/props", "/slots", "/metrics", "/health", "/models", "/v1/models", "/lora-adapters"})
"""GET and HEAD of these never load a model, and never count as use."""


class Forwarder:
    """Finds the model of a request, by its body or by its path, and relays it."""

    def __init__(self, relay: Relay, directory: Directory, listing: Listing, captures: Captures | None = None) -> None:
        self._relay, self._directory, self._listing = relay, directory, listing
        self._captures = captures

    async def by_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the model that the body's or form's ``model`` names, else ``?model=``, else the default."""
        answer = Answer(scope, send, dialect_of(scope["path"]))
        body: Body = b""
        try:
            body = await read_body(scope, receive, self._relay.settings)
            if len(body) > PARSED_WHOLE_BYTES:
                asked = await _searched(scope, body)
            else:
                asked = model_of(body, scope[HEADERS].get(b"content-type", b""))  # type: ignore[arg-type] # no spool
            if not asked.model and scope["query_string"]:
                asked = Asked(_model_in_query(scope["query_string"]), asked.stream)
            answer.asked = asked.model
            target = self._directory.target(asked.model)
            name = target.there or target.route.upstream_model
            if target.edit is not None:
                body = await edited(scope, body, target.edit, name)
            elif name:
                body = await renamed(scope, body, name)
            request = _request(scope, scope["raw_path"], body, asked, target.there)
            await self._relayed(scope, receive, answer, target, request)
        except SwapdError as error:
            await self._refuse(answer, error)
        except HungUp:
            return
        finally:
            if isinstance(body, Spool):
                body.close()

    async def by_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``{id}/{path}``: straight to that model, whatever the method; websockets too."""
        model, raw_rest = self._directory.split(scope["raw_path"].removeprefix(b"/upstream/"))
        path = unquote(raw_rest.decode("latin-1"))
        answer = Answer(scope, send, dialect_of(path))
        answer.asked = model
        body: Body = b""
        try:
            route, edit, peer, _ = target = self._directory.named(model)
            if peer is not None:
                raise BadRequest(f"/upstream/ leads to models of this swapd; {model!r} is one of {peer.url}")
            if _is_websocket(scope):
                await self._tunnelled(scope, answer, target, _request(scope, raw_rest, b"", NOTHING))
                return
            if path in LOOK_UPS and scope["method"] in ("GET", "HEAD"):
                await self._looked_up(scope, receive, answer, send, target, path, raw_rest)
                return
            body = await read_body(scope, receive, self._relay.settings)
            asked = await _streams(scope, body)
            name = route.upstream_model if asked.model else ""
            if edit is not None and scope["method"] == "POST" and is_model_routed(path):
                body = await edited(scope, body, edit, name)
            elif name:
                body = await renamed(scope, body, name)
            await self._relayed(scope, receive, answer, target, _request(scope, raw_rest, body, asked))
        except SwapdError as error:
            await self._refuse(answer, error)
        except HungUp:
            return
        finally:
            if isinstance(body, Spool):
                body.close()

    async def by_query(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A look-up in the model that ``?model=`` names: loads nothing, does not count as use."""
        answer = Answer(scope, send, dialect_of(scope["path"]))
        try:
            target = self._directory.target(_model_in_query(scope["query_string"]))
            if target.peer is None:
                await self._looked_up(scope, receive, answer, send, target, scope["path"], scope["raw_path"])
            else:
                request = _request(scope, scope["raw_path"], b"", NOTHING, target.there)
                await self._relayed(scope, receive, answer, target, request)
        except SwapdError as error:
            await self._refuse(answer, error)

    async def _looked_up(
        self, scope: Scope, receive: Receive, answer: Answer, send: Send, target: Target, path: str, raw_path: bytes
    ) -> None:
        """A running model answers itself, for another one configuration and header; nothing is loaded."""
        route = target.route
        stopped = self._relay.supervisor.state_of(route.id) not in ("ready", "draining")
        told = self._listing.look_up(path, route) if stopped else None
        if told is not None:
            await respond(send, 200, told)
            self._relay.observer.looked_up(route.id, 200)
        else:
            request = _request(scope, raw_path, b"", NOTHING)
            await self._relayed(scope, receive, answer, target, request._replace(look_up=True))

    def _relayed(
        self, scope: Scope, receive: Receive, answer: Answer, target: Target, request: Request
    ) -> Awaitable[None]:
        route, peer = target.route, target.peer
        answer.model = route.id
        if peer is not None:
            exchange: Exchange = PeerExchange(self._relay, self._directory.peers.pool, peer, route, request, answer)
        elif self._captures is not None:
            exchange = Captured(self._relay, route, request, answer, self._captures)
        else:
            exchange = Exchange(self._relay, route, request, answer)
        return exchange.run(receive, scope.get("extensions", {}).get(HANG_UP))

    def _tunnelled(self, scope: Scope, answer: Answer, target: Target, request: Request) -> Awaitable[None]:
        answer.model = target.route.id
        extensions = scope["extensions"]
        tunnel = Tunnel(self._relay, target.route, request, answer, extensions[TAKE_OVER])
        return tunnel.run(_never, extensions[HANG_UP])

    async def _refuse(self, answer: Answer, error: SwapdError) -> None:
        await answer.fail(error)
        self._relay.observer.refused(answer, error)


def _is_websocket(scope: Scope) -> bool:
    """Whether a websocket is asked for; a request that has a body too stays an ordinary one."""
    headers = scope[HEADERS]
    if headers.get(b"upgrade", b"").lower() != b"websocket" or scope["method"] != "GET":
        return False
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    return not has_body and TAKE_OVER in scope.get("extensions", {})


async def _never() -> dict[str, str]:
    raise AssertionError("our server tells of a hang-up by itself")


async def _searched(scope: Scope, body: Body) -> Asked:
    """What a large body asks for, found beside the loop."""
    kind = scope[HEADERS].get(b"content-type", b"")

    def search() -> Asked:
        if isinstance(body, bytes):
            return model_of(body, kind)
        with closing(body.view()) as view:
            return model_of(view, kind)

    return await asyncio.to_thread(search)


def _request(scope: Scope, raw_path: bytes, body: Body, asked: Asked, there: str = "") -> Request:
    """``there``: the name that a peer knows, for the query as well."""
    query: bytes = scope["query_string"]
    if there and b"model=" in query:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        query = urlencode([(key, there if key == "model" else value) for key, value in fields]).encode()
    target = raw_path + b"?" + query if query else raw_path
    agent, peer = scope[HEADERS].get(b"user-agent", b""), scope.get("client")
    return Request(scope[RID], scope["method"], target, scope["headers"], body, asked.stream, asked.model, agent, peer)


async def _streams(scope: Scope, body: Body) -> Asked:
    """Whether a body asks for a stream; what cannot be read is the process's own business."""
    if scope["method"] != "POST":
        return NOTHING
    try:
        return await _searched(scope, body)
    except BadRequest:
        return NOTHING


def _model_in_query(query: bytes) -> str:
    return parse_qs(query.decode("latin-1")).get("model", [""])[-1]
