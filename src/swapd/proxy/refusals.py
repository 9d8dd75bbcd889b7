"""The engine's own errors, said in the protocol that was asked: llama-server has one form for all three.

A prompt that is too long is the one that clients act on, each by other words: with them they summarize and go on.
"""

from __future__ import annotations

import json
from typing import Any, Final

from swapd.proxy.asgi import Headers
from swapd.proxy.sse import Dialect, event, failed_event
from swapd.proxy.statuses import anthropic_type

OVERFLOW: Final = "exceed_context_size_error"
"""llama-server's ``type`` of a prompt that is too long; ``n_prompt_tokens`` and ``n_ctx`` stand beside it."""
OVERFLOW_CODE: Final = "context_length_exceeded"
"""OpenAI's ``code`` for the same."""
MAX_BYTES: Final = 65536


def needs_words(status: int, headers: Headers, dialect: Dialect) -> bool:
    """Whether an engine's head announces an error that may have to be said otherwise: its body is then collected."""
    if status < 400 or (status != 400 and dialect is not Dialect.MESSAGES):
        return False
    found = dict(headers)
    length = found.get(b"content-length", b"")
    is_json = found.get(b"content-type", b"").startswith(b"application/json")
    return is_json and length.isdigit() and int(length) <= MAX_BYTES


def in_its_words(status: int, body: bytes, dialect: Dialect, rid: str) -> bytes:
    """An error's whole body as the protocol has it; one that is right already stays byte for byte."""
    told = _error_member(body)
    message = told.get("message")
    if not isinstance(message, str):
        return body
    if dialect is not Dialect.MESSAGES:
        return json.dumps({"error": {**told, "code": OVERFLOW_CODE}}).encode() if told.get("type") == OVERFLOW else body
    if _outer_type(body) == "error":
        return body
    error = {"type": anthropic_type(status), "message": _anthropic_words(told, message)}
    return json.dumps({"type": "error", "error": error, "request_id": rid}).encode()


def refusal_event(status: int, body: bytes, dialect: Dialect, rid: str, model: str) -> bytes:
    """The engine's refusal, come when the 200 was out already, as an event."""
    told = _error_member(body)
    message = told.get("message")
    text = message if isinstance(message, str) else body.decode("utf-8", "replace")[:2000] or f"HTTP {status}"
    overflow = told.get("type") == OVERFLOW
    if dialect is Dialect.CHAT:
        code = {"code": OVERFLOW_CODE} if overflow else {}
        return event("", {"error": {**told, **code} or {"message": text, "type": "server_error", "code": status}})
    if dialect is Dialect.RESPONSES:
        final = OVERFLOW_CODE if overflow else "invalid_prompt"
        return failed_event(rid, model, "server_error" if status >= 500 else final, text)
    error = {"type": anthropic_type(status), "message": _anthropic_words(told, text)}
    return event("error", {"type": "error", "error": error})


def _anthropic_words(told: dict[str, Any], message: str) -> str:
    """Claude Code knows a prompt that is too long by these words only."""
    prompt, limit = told.get("n_prompt_tokens"), told.get("n_ctx")
    if told.get("type") != OVERFLOW or not isinstance(prompt, int) or not isinstance(limit, int):
        return message
    return f"prompt is too long: {prompt} tokens > {limit} maximum"


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _outer_type(body: bytes) -> object:
    return _parsed(body).get("type")


def _error_member(body: bytes) -> dict[str, Any]:
    error = _parsed(body).get("error")
    return error if isinstance(error, dict) else {}
