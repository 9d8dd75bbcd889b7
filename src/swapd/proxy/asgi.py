"""The few ASGI types and the one way of sending a whole answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Receive: TypeAlias = Callable[[], Coroutine[Any, Any, Message]]
Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

RID = "swapd.rid"
"""Key of the request id in the scope; the guard puts it there."""


class Endpoint(Protocol):
    """One row of the route table: an ASGI callable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


async def respond(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """Send a whole answer at once; JSON unless ``headers`` name a content type."""
    own = headers or []
    if status != 204:
        own = [*own, (b"content-length", b"%d" % len(body))]
        if not any(name == b"content-type" for name, _ in own):
            own = [(b"content-type", b"application/json"), *own]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})
