"""``GET /v1/models``: every model, loaded or not, without asking any of them."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from swapd.core.spec import RouteSpec
from swapd.errors import UnknownModel
from swapd.proxy.asgi import RID, Receive, Scope, Send, respond
from swapd.proxy.forward import Routes, route_of, split_id
from swapd.proxy.statuses import Shape, error_body
from swapd.supervisor.pool import Supervisor

_WORDS: Final = {"ready": "loaded", "draining": "loaded", "starting": "loading"}


class Listing:
    """Answers from configuration and the supervisor's view."""

    def __init__(self, supervisor: Supervisor, routes: Routes) -> None:
        self._supervisor, self._routes = supervisor, routes
        self._created = int(time.time())

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/v1/models`` and ``/models``."""
        data = [self._entry(route) for route in self._routes.values() if not route.unlisted]
        await respond(send, 200, json.dumps({"object": "list", "data": data}).encode())

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/v1/models/{id}``; slashes in the id may be raw or encoded."""
        model, rest = split_id(self._routes, scope["raw_path"].removeprefix(b"/v1/models/"))
        try:
            route = route_of(self._routes, model if rest == b"/" else f"{model}{rest.decode('latin-1')}")
        except UnknownModel as error:
            await respond(send, 404, error_body(error, Shape.OPENAI, scope[RID]))
        else:
            await respond(send, 200, json.dumps(self._entry(route)).encode())

    def _entry(self, route: RouteSpec) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": route.id,
            "object": "model",
            "created": self._created,
            "owned_by": "swapd",
            "display_name": route.id,
            "status": {"value": _WORDS.get(self._supervisor.state_of(route.id), "unloaded")},
        }
        if route.ctx_tokens:
            entry |= {"context_length": route.ctx_tokens, "meta": {"n_ctx": route.ctx_tokens}}
        if route.description:
            entry["description"] = route.description
        return entry
