"""Event streams: keep-alives and errors in each protocol's own form."""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Any, Final

from swapd.errors import SwapdError
from swapd.proxy.statuses import Shape, error_object, may_succeed_later, message_of, status_of


class Dialect(Enum):
    """Which protocol a stream speaks: each has its own keep-alives and error events."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"

    @property
    def shape(self) -> Shape:
        """The shape of its JSON errors."""
        return Shape.ANTHROPIC if self is Dialect.MESSAGES else Shape.OPENAI


KEEP_ALIVES: Final = {
    Dialect.CHAT: b": ping\n\n",
    Dialect.RESPONSES: b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n',
    Dialect.MESSAGES: b'event: ping\ndata: {"type":"ping"}\n\n',
}
EVENT_STREAM: Final = b"text/event-stream"


def dialect_of(path: str) -> Dialect:
    """The protocol of a path; all but two speak OpenAI's."""
    if path.startswith("/v1/messages"):
        return Dialect.MESSAGES
    return Dialect.RESPONSES if path == "/v1/responses" else Dialect.CHAT


def told_comment(text: str) -> bytes:
    """What a waiting stream is told, where no client reads it but a human may."""
    return f": {text}\n\n".encode()


def told_reasoning(text: str, rid: str, model: str) -> bytes:
    """The same as a chat chunk that clients show as the model's thinking."""
    choice = {"index": 0, "delta": {"role": "assistant", "reasoning_content": f"{text}\n"}, "finish_reason": None}
    chunk = {
        "id": f"chatcmpl-{rid}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
    }
    return event("", chunk)


def error_event(error: SwapdError, dialect: Dialect, rid: str, model: str) -> bytes:
    """An error after the 200 as the event that makes agents ask again, or stop where asking again cannot help."""
    again = may_succeed_later(error)
    text = message_of(error)
    if again:
        text = f"429 Too Many Requests: {text}" if status_of(error) == 429 else f"503 Service Unavailable: {text}"
    if dialect is Dialect.CHAT:
        if not again:
            return event("", {"error": error_object(error, Shape.OPENAI)})
        code = 429 if status_of(error) == 429 else 503
        return event("", {"error": {"message": text, "type": "server_error", "code": code}})
    if dialect is Dialect.RESPONSES:
        return failed_event(rid, model, "server_error" if again else "invalid_prompt", text)
    if not again:
        return event("error", {"type": "error", "error": error_object(error, Shape.ANTHROPIC)})
    return event("error", {"type": "error", "error": {"type": "overloaded_error", "message": text}})


def failed_event(rid: str, model: str, code: str, text: str) -> bytes:
    """How a stream of responses ends in failure."""
    response = {
        "id": f"resp_{rid}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": "failed",
        "output": [],
        "error": {"code": code, "message": text},
    }
    return event("response.failed", {"type": "response.failed", "sequence_number": 0, "response": response})


def event(name: str, data: dict[str, Any]) -> bytes:
    """One server-sent event; ``name`` may be empty."""
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data)}\n\n".encode()
