"""Which headers pass: to the model's process without the client's secrets, back without what belongs to one hop."""

from __future__ import annotations

from typing import Final

from swapd.proxy.asgi import Headers
from swapd.proxy.sse import EVENT_STREAM

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_UPSTREAM: Final = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",  # an event stream must not be compressed
    b"authorization",
    b"x-api-key",
    b"cookie",
    b"origin",  # the browser rule was ours to apply; the process would answer with CORS headers of its own
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-extensions",
    b"sec-websocket-protocol",
}
_NOT_DOWNSTREAM: Final = _HOP_BY_HOP | {
    b"date",
    b"x-request-id",
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-allow-methods",
    b"access-control-allow-headers",
    b"access-control-expose-headers",
    b"access-control-max-age",
    b"access-control-allow-private-network",
}
_UPGRADE: Final[Headers] = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
_STREAM_HEADERS: Final[Headers] = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_BODYLESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

OWN_STREAM_HEAD: Final[Headers] = [(b"content-type", EVENT_STREAM), *_STREAM_HEADERS]
"""The head that swapd sends itself to a stream that waits."""


def request_head(
    method: str, target: bytes, headers: Headers, body_bytes: int, api_key: str, host: str = "localhost"
) -> bytes:
    """The head of the request to the model's process; ``target`` is path and query as they came."""
    dropped = _dropped(_NOT_UPSTREAM, headers)
    passed = b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in dropped])
    key = b"authorization: Bearer %b\r\n" % api_key.encode() if api_key else b""
    length = b"content-length: %d\r\n" % body_bytes if body_bytes or method not in _BODYLESS else b""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n%b%b%b\r\n" % (
        method.encode(),
        target,
        host.encode(),
        passed,
        key,
        length,
    )


def upgrade_head(target: bytes, headers: Headers, api_key: str) -> bytes:
    """The head that asks the model's process for a websocket: the handshake is the client's own."""
    head = request_head("GET", target, headers, 0, api_key)
    handshake = [pair for pair in headers if pair[0].startswith(b"sec-websocket-")]
    lines = b"".join([b"%b: %b\r\n" % pair for pair in (*_UPGRADE, *handshake)])
    return b"%b%b\r\n" % (head[:-2], lines)


def switched_head(headers: Headers, rid: str) -> bytes:
    """The head that tells the client that the process has taken its websocket."""
    kept = [pair for pair in headers if pair[0].startswith(b"sec-websocket-")]
    lines = [b"%b: %b\r\n" % pair for pair in (*_UPGRADE, *kept, (b"x-request-id", rid.encode()))]
    return b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % b"".join(lines)


def response_headers(headers: Headers) -> tuple[Headers, bool]:
    """What of an answer's headers reaches the client, and whether it is an event stream."""
    dropped = _dropped(_NOT_DOWNSTREAM, headers)
    kept = [pair for pair in headers if pair[0] not in dropped]
    for name, value in kept:
        if name == b"content-type" and value[:17].lower() == EVENT_STREAM:
            kept = [pair for pair in kept if pair[0] not in (b"cache-control", b"x-accel-buffering")]
            return kept + _STREAM_HEADERS, True
    return kept, False


def _dropped(always: frozenset[bytes], headers: Headers) -> frozenset[bytes]:
    """Those that never pass, and those that ``Connection`` names."""
    for name, value in headers:
        if name == b"connection" and value not in (b"keep-alive", b"close"):
            return always | frozenset(token.strip().lower() for token in value.split(b","))
    return always
