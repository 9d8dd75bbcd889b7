"""The own API's answers about requests, as its OpenAPI document describes them."""

from __future__ import annotations

from typing import Literal

from swapd.core.activity import Outcome
from swapd.proxy.api_models import Answered


class ActiveRequest(Answered):
    """A request under way."""

    rid: str
    at: float
    model: str
    asked: str
    client: str
    path: str
    stream: bool
    state: Literal["queued", "loading", "prefill", "answering"]
    age_s: float


class RequestRow(Answered):
    """A request that ended; null: not known.

    ``prompt_tokens`` includes ``cached_tokens``; rates are the engine's own.
    """

    rid: str
    at: float
    model: str
    asked: str
    client: str
    path: str
    stream: bool
    status: int
    outcome: Outcome
    error: str | None
    total_s: float
    queue_s: float
    load_s: float
    first_byte_s: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    prefill_s: float | None
    decode_s: float | None
    prefill_tps: float | None
    decode_tps: float | None
    draft_tokens: int | None
    draft_accepted: int | None


class Activity(Answered):
    """``GET /api/activity``."""

    active: list[ActiveRequest]
    requests: list[RequestRow]


class CancelledRequest(Answered):
    """The request that was ended."""

    rid: str
    cancelled: bool


class CaptureHead(Answered):
    """A request whose bodies are kept."""

    rid: str
    at: float
    model: str
    path: str
    status: int
    request_bytes: int
    response_bytes: int


class CaptureList(Answered):
    """``GET /api/captures``."""

    captures: list[CaptureHead]


class CapturedBody(Answered):
    """A body's beginning: ``text``, or ``base64`` if it is none; ``cut``: there was more."""

    content_type: str
    bytes: int
    cut: bool
    text: str | None = None
    base64: str | None = None


class FullCapture(CaptureHead):
    """``GET /api/captures/{rid}``."""

    request: CapturedBody
    response: CapturedBody
