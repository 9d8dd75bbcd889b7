"""The outermost layer of every request: its id, the browser rule, keys and CORS. Pure ASGI, and on the hot path."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Final

from swapd.errors import SwapdError
from swapd.proxy.asgi import HEADERS, RID, App, Headers, Message, Receive, Scope, Send, respond
from swapd.proxy.keys import Gatekeeper
from swapd.proxy.settings import ProxySettings
from swapd.proxy.sse import dialect_of
from swapd.proxy.statuses import INTERNAL, refuse

log = logging.getLogger("swapd.proxy")

_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADER_LIST: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]*")


class Guard:
    """Lets a request through to ``app``, or answers it; adds the same headers to every answer."""

    def __init__(self, app: App, settings: ProxySettings) -> None:
        self.app = app
        self._gate = Gatekeeper(settings)
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        rid = scope[RID] = f"{self._prefix}-{next(self._numbers):x}"
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scope[HEADERS] = headers
        extra: Headers = [(b"x-request-id", rid.encode())]
        started = False

        def sent(message: Message):  # type: ignore[no-untyped-def]
            nonlocal started
            if not started:
                started = True
                message = {**message, "headers": [*message["headers"], *extra]}
            return send(message)

        try:
            self._gate.check_browser(headers)
            if b"origin" in headers:
                extra += _cors(headers[b"origin"])
            if scope["method"] == "OPTIONS":
                await respond(sent, 204, b"", _preflight(headers))
                return
            self._gate.check_key(scope["path"], headers, scope["method"])
        except SwapdError as error:
            await refuse(scope, sent, error, dialect_of(scope["path"]).shape)
            return
        try:
            await self.app(scope, receive, sent)
        except Exception:
            log.exception("request %s failed", rid)
            if started:
                raise  # the server closes the connection
            await respond(sent, 500, INTERNAL)


def _cors(origin: bytes) -> Headers:
    """What lets an allowed page read an answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"x-request-id, retry-after"),
        (b"vary", b"Origin"),
    ]


def _preflight(headers: Mapping[bytes, bytes]) -> Headers:
    """The answer to OPTIONS: needs no key, wakes no model."""
    if b"origin" not in headers:
        return []
    answer: Headers = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"600")]
    wanted = headers.get(b"access-control-request-headers", b"")
    if wanted and _HEADER_LIST.fullmatch(wanted):
        answer.append((b"access-control-allow-headers", wanted))
    if headers.get(b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer
