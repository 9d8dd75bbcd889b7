"""Bodies of recent requests and answers, for an operator who asked for them: in memory, bounded, without headers."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from swapd.core.spec import RouteSpec
from swapd.proxy.answer import Answer
from swapd.proxy.asgi import Headers, Receive
from swapd.proxy.bodies import Body
from swapd.proxy.exchange import Exchange, Relay, Request
from swapd.proxy.upstream import Direct

KEPT: Final = 50
KEPT_BYTES: Final = 16 << 20
"""Of all bodies together."""
BODY_BYTES: Final = 256 << 10
"""Of each; the rest is only counted."""


class Kept(NamedTuple):
    """A body's beginning; ``size``: how long all of it was."""

    content_type: str
    size: int
    data: bytes


class Capture(NamedTuple):
    """One request and what its model answered; nothing else of their heads: keys are there."""

    rid: str
    at: float
    model: str
    path: str
    status: int
    request: Kept
    response: Kept


class Captures:
    """The last ones; the oldest go."""

    def __init__(self, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept, self._kept_bytes = kept, kept_bytes
        self._captures: dict[str, Capture] = {}
        self._bytes = 0

    def add(self, capture: Capture) -> None:
        """Keep one."""
        self._captures[capture.rid] = capture
        self._bytes += _held(capture)
        while len(self._captures) > self._kept or self._bytes > self._kept_bytes:
            self._bytes -= _held(self._captures.pop(next(iter(self._captures))))

    def listed(self) -> list[dict[str, Any]]:
        """All without their bodies, newest first; JSON-ready."""
        return [_head(capture) for capture in reversed(self._captures.values())]

    def of(self, rid: str) -> dict[str, Any] | None:
        """One with its bodies; JSON-ready."""
        capture = self._captures.get(rid)
        if capture is None:
            return None
        return _head(capture) | {"request": _shown(capture.request), "response": _shown(capture.response)}


class Captured(Exchange):
    """A relayed request whose bodies are kept: its chunks take the longer way."""

    __slots__ = ("_captures", "_chunks", "_size", "_type")

    def __init__(self, relay: Relay, route: RouteSpec, request: Request, answer: Answer, captures: Captures) -> None:
        super().__init__(relay, route, request, answer)
        self._captures = captures
        self._chunks: list[bytes] = []
        self._size = 0
        self._type = ""

    async def run(self, receive: Receive, watch: Callable[[Any], bool] | None) -> None:
        """As any; kept when it ends, however it does."""
        request = self._request
        asked = Kept(_type_of(request.headers), len(request.body), await _beginning(request.body))
        try:
            await super().run(receive, watch)
        finally:
            got = Kept(self._type, self._size, b"".join(self._chunks)[:BODY_BYTES])
            path = request.target.partition(b"?")[0].decode("latin-1")
            at = round(time.time() - (time.monotonic() - self.trace.began), 3)
            self._captures.add(Capture(request.rid, at, self.trace.model, path, self.answer.status, asked, got))

    def on_head(self, status: int, headers: Headers) -> None:
        self._type = _type_of(headers)
        self._chunks, self._size = [], 0
        super().on_head(status, headers)

    def on_data(self, data: bytes, *, last: bool) -> Direct | None:
        if self._size < BODY_BYTES:
            self._chunks.append(data[: BODY_BYTES - self._size])
        self._size += len(data)
        super().on_data(data, last=last)
        return None


async def _beginning(body: Body) -> bytes:
    if isinstance(body, bytes):
        return body[:BODY_BYTES]
    async for piece in body.pieces():
        return piece[:BODY_BYTES]
    return b""


def _type_of(headers: Headers) -> str:
    return next((value.decode("latin-1")[:200] for name, value in headers if name == b"content-type"), "")


def _held(capture: Capture) -> int:
    return len(capture.request.data) + len(capture.response.data)


def _head(capture: Capture) -> dict[str, Any]:
    return {
        "rid": capture.rid,
        "at": capture.at,
        "model": capture.model,
        "path": capture.path,
        "status": capture.status,
        "request_bytes": capture.request.size,
        "response_bytes": capture.response.size,
    }


def _shown(kept: Kept) -> dict[str, Any]:
    """Text as text; what is none in base64."""
    shown: dict[str, Any] = {"content_type": kept.content_type, "bytes": kept.size, "cut": kept.size > len(kept.data)}
    try:
        return shown | {"text": _decoded(kept)}
    except UnicodeDecodeError:
        return shown | {"base64": base64.b64encode(kept.data).decode()}


def _decoded(kept: Kept) -> str:
    data = kept.data
    if kept.size > len(data):  # the cut may be inside a character
        for end in range(len(data), len(data) - 4, -1):
            try:
                return data[:end].decode()
            except UnicodeDecodeError:
                continue
    return data.decode()
