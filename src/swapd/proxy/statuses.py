"""The one table from errors to HTTP, and their bodies in the shape of the API asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from swapd.errors import (
    BackingOff,
    BadRequest,
    Cancelled,
    CapacityError,
    DevicesUnknown,
    Forbidden,
    InstanceDied,
    InstanceError,
    InsufficientMemory,
    MemoryHeldByOthers,
    NotLoaded,
    PeerUnreachable,
    QueueFull,
    Refused,
    ShuttingDown,
    StartFailed,
    StartTimeout,
    SwapdError,
    TooLarge,
    Unauthorized,
    UnknownModel,
    UnknownProfile,
    Unloaded,
    WaitedTooLong,
)
from swapd.proxy.asgi import RID, Headers, Scope, Send, respond
from swapd.units import mib


class Shape(Enum):
    """Whose error bodies a client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


STATUSES: Final[Mapping[type[SwapdError], int]] = {
    BadRequest: 400,
    Unauthorized: 401,
    Forbidden: 403,
    UnknownModel: 404,
    UnknownProfile: 404,
    Cancelled: 499,
    TooLarge: 413,
    QueueFull: 429,
    Refused: 409,
    BackingOff: 503,
    WaitedTooLong: 503,
    Unloaded: 503,
    ShuttingDown: 503,
    DevicesUnknown: 503,
    NotLoaded: 503,
    MemoryHeldByOthers: 503,
    InsufficientMemory: 503,
    StartFailed: 502,
    StartTimeout: 504,
    InstanceDied: 502,
    PeerUnreachable: 502,
}
"""Every leaf of ``SwapdError`` that can reach HTTP (``ConfigError`` and ``GgufError`` end the start instead)."""

INTERNAL: Final = b'{"error": {"message": "internal error", "type": "server_error", "param": null, "code": "internal"}}'
"""The body of every 500: what went wrong is in the log, under the request's id."""

RETRY_AFTER_S: Final = 5
MAX_RETRY_AFTER_S: Final = 60
STDERR_CHARS: Final = 2000
"""How much of a dead process's last output goes into a message."""

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: SwapdError) -> int:
    """The HTTP status of an error; 500 for one that should not get here."""
    return STATUSES.get(type(error), 500)


def retry_after_s(error: SwapdError) -> int | None:
    """Whole seconds, at most 60, on every 429 and 503 but "can never fit"."""
    if status_of(error) not in (429, 503) or isinstance(error, InsufficientMemory):
        return None
    told = error.retry_after_s if isinstance(error, CapacityError) else None
    return RETRY_AFTER_S if told is None else max(1, min(MAX_RETRY_AFTER_S, told))


def may_succeed_later(error: SwapdError) -> bool:
    """Whether asking again can help; agents read this from the words and codes of an error event."""
    return status_of(error) in (429, 502, 503, 504) and not isinstance(error, InsufficientMemory)


def message_of(error: SwapdError) -> str:
    """The message that reaches the user word for word: with the process's last lines, if it had any."""
    tail = error.stderr_tail.strip()[-STDERR_CHARS:] if isinstance(error, InstanceError) else ""
    return f"{error.message}\n{tail}" if tail and tail not in error.message else error.message


def details(error: SwapdError) -> dict[str, Any]:
    """More fields of an error object: MiB needed and available per device."""
    if isinstance(error, InsufficientMemory):
        return {
            "needed_mib": {device: mib(size) for device, size in error.needed.items()},
            "available_mib": {device: size >> 20 for device, size in error.available.items()},
        }
    return {}


def error_object(error: SwapdError, shape: Shape) -> dict[str, Any]:
    """The ``error`` member of a body."""
    status, message = status_of(error), message_of(error)
    if shape is Shape.ANTHROPIC:
        return {"type": anthropic_type(status), "message": message, **details(error)}
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "param": None, "code": error.code, **details(error)}


def anthropic_type(status: int) -> str:
    """The ``type`` of an error of this status in Anthropic's shape."""
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(error: SwapdError, shape: Shape, rid: str) -> bytes:
    """A whole JSON body."""
    if shape is Shape.ANTHROPIC:
        return json.dumps({"type": "error", "error": error_object(error, shape), "request_id": rid}).encode()
    return json.dumps({"error": error_object(error, shape)}).encode()


def error_headers(error: SwapdError) -> Headers:
    """Content type, and ``Retry-After`` or the challenge where they belong."""
    headers: Headers = [(b"content-type", b"application/json")]
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", b"%d" % wait_s))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="swapd"'))
    return headers


async def refuse(scope: Scope, send: Send, error: SwapdError, shape: Shape = Shape.OPENAI) -> None:
    """Answer a whole request with an error."""
    await respond(send, status_of(error), error_body(error, shape, scope[RID]), error_headers(error))
