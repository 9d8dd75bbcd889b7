"""The few ASGI types and the one way of sending a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, TypeAlias

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Receive: TypeAlias = Callable[[], Coroutine[Any, Any, Message]]
Send: TypeAlias = Callable[[Message], Coroutine[Any, Any, None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Endpoint: TypeAlias = App
"""One row of the route table."""

RID: Final = "swapd.rid"
"""Key of the request id in the scope; the guard puts it there."""
HEADERS: Final = "swapd.headers"
"""Key of the request's headers as a dictionary; the guard puts it there."""
HANG_UP: Final = "swapd.hang_up"
"""Extension of our server: a function that takes a callback for the client's hang-up."""
WRITE_CHUNK: Final = "swapd.write_chunk"
"""Extension of our server: writes a chunk with its framing, as the process sent it, if the client keeps up."""
TAKE_OVER: Final = "swapd.take_over"
"""Extension of our server, of a request to upgrade: gives the connection to another protocol."""
ONE_WRITE: Final = "swapd.one_write"
"""Extension of our server: ``http.response.start`` may carry ``body`` and ``more_body``."""


async def respond(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """Send a whole answer at once; JSON unless ``headers`` name a content type."""
    own = headers or []
    if status != 204:
        own = [*own, (b"content-length", b"%d" % len(body))]
        if not any(name == b"content-type" for name, _ in own):
            own = [(b"content-type", b"application/json"), *own]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


async def stream(receive: Receive, send: Send, chunks: AsyncGenerator[bytes, None], headers: Headers) -> None:
    """Send what comes as it comes, until it ends or the client has gone."""
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async with asyncio.TaskGroup() as group, aclosing(chunks):
            watch = group.create_task(_watched(receive))
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            watch.cancel()
            await send({"type": "http.response.body", "body": b""})
    except* _Left:
        pass


class _Left(Exception):
    """The client has gone."""


async def _watched(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _Left


class MadeWhenAsked:
    """An app that is made by its first request: what takes long to make must not delay the start."""

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make it if need be, and pass the request on."""
        if self._app is None:
            self._app = self._make()
        await self._app(scope, receive, send)
