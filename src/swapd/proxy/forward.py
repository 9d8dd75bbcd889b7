"""The relay as plain ASGI callables: returning means that the last byte was sent."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, TypeAlias
from urllib.parse import parse_qs, unquote

from swapd.core.spec import ModelId, RouteSpec
from swapd.errors import BadRequest, SwapdError, TooLarge, UnknownModel
from swapd.proxy.answer import Answer
from swapd.proxy.asgi import HANG_UP, HEADERS, RID, Receive, Scope, Send
from swapd.proxy.exchange import Exchange, Relay, Request
from swapd.proxy.names import NOTHING, Asked, model_of, with_model
from swapd.proxy.sse import dialect_of
from swapd.units import format_size

LOOK_UPS: Final = frozenset({"/props", "/slots", "/metrics", "/health", "/models", "/v1/models", "/lora-adapters"})
"""GET and HEAD of these never load a model, and never count as use."""

Routes: TypeAlias = Mapping[ModelId, RouteSpec]


class _HungUp(Exception):
    """The client left before its request was here."""


class Forwarder:
    """Finds the model of a request, by its body or by its path, and relays it."""

    def __init__(self, relay: Relay, routes: Routes) -> None:
        self._relay, self._routes = relay, routes

    async def by_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A model-routed POST: the model is the body's or form's ``model``, else ``?model=``."""
        answer = Answer(scope, send, dialect_of(scope["path"]))
        try:
            body = await self._body(scope, receive)
            asked = model_of(body, scope[HEADERS].get(b"content-type", b""))
            if not asked.model and scope["query_string"]:
                asked = Asked(_model_in_query(scope["query_string"]), asked.stream)
            route = route_of(self._routes, asked.model)
        except SwapdError as error:
            await self._refuse(answer, error)
        except _HungUp:
            return
        else:
            await self._relayed(scope, receive, answer, route, _request(scope, scope["raw_path"], body, asked))

    async def by_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/upstream/{id}/{path}``: any method, straight to that model."""
        model, raw_rest = split_id(self._routes, scope["raw_path"].removeprefix(b"/upstream/"))
        path = unquote(raw_rest.decode("latin-1"))
        answer = Answer(scope, send, dialect_of(path))
        try:
            route = route_of(self._routes, model)
            body = await self._body(scope, receive)
        except SwapdError as error:
            await self._refuse(answer, error)
        except _HungUp:
            return
        else:
            request = _request(scope, raw_rest, body, _streams(scope, body))
            looks_up = path in LOOK_UPS and request.method in ("GET", "HEAD")
            await self._relayed(scope, receive, answer, route, request._replace(look_up=looks_up))

    async def by_query(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET ``/props?model=`` and its like: a look-up, answered by a running model only."""
        answer = Answer(scope, send, dialect_of(scope["path"]))
        try:
            route = route_of(self._routes, _model_in_query(scope["query_string"]))
        except SwapdError as error:
            await self._refuse(answer, error)
        else:
            request = _request(scope, scope["raw_path"], b"", NOTHING)
            await self._relayed(scope, receive, answer, route, request._replace(look_up=True))

    def _relayed(
        self, scope: Scope, receive: Receive, answer: Answer, route: RouteSpec, request: Request
    ) -> Awaitable[None]:
        if route.upstream_model and request.body:
            request = request._replace(body=with_model(request.body, route.upstream_model))
        answer.model = route.id
        return Exchange(self._relay, route, request, answer).run(receive, scope.get("extensions", {}).get(HANG_UP))

    async def _refuse(self, answer: Answer, error: SwapdError) -> None:
        await answer.fail(error)
        self._relay.count("", answer.status)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit = self._relay.settings.max_body_bytes
        announced: bytes = scope[HEADERS].get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUp
            body: bytes = message.get("body", b"")
            size += len(body)
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body"):
                return b"".join([*chunks, body]) if chunks else body
            chunks.append(body)


def route_of(routes: Routes, model: str) -> RouteSpec:
    """The model of that name.

    Raises:
        UnknownModel: with the valid ids.
    """
    route = routes.get(model)
    if route is None:
        valid = ", ".join(sorted(known.id for known in routes.values() if not known.unlisted)) or "none is configured"
        what = f"there is no model {model[:200]!r}" if model else "the request names no model"
        raise UnknownModel(f"{what}; valid ids: {valid}")
    return route


def split_id(routes: Routes, raw: bytes) -> tuple[ModelId, bytes]:
    """The longest known id at the front of a raw path (slashes in it raw or encoded), and the path behind it."""
    parts = raw.split(b"/")
    for count in range(len(parts), 0, -1):
        model = unquote(b"/".join(parts[:count]).decode("latin-1"))
        if model in routes:
            return model, b"/" + b"/".join(parts[count:])
    return unquote(parts[0].decode("latin-1")), b"/" + b"/".join(parts[1:])


def _request(scope: Scope, raw_path: bytes, body: bytes, asked: Asked) -> Request:
    query: bytes = scope["query_string"]
    target = raw_path + b"?" + query if query else raw_path
    return Request(scope[RID], scope["method"], target, scope["headers"], body, asked.stream)


def _streams(scope: Scope, body: bytes) -> Asked:
    """Whether a body asks for a stream; what cannot be read is the process's own business."""
    try:
        return model_of(body, scope[HEADERS].get(b"content-type", b"")) if scope["method"] == "POST" else NOTHING
    except BadRequest:
        return NOTHING


def _model_in_query(query: bytes) -> str:
    return parse_qs(query.decode("latin-1")).get("model", [""])[-1]


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {format_size(limit)} ([server] max_body)")
