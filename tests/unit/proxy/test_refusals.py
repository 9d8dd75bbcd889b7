"""The engine's errors in the words of each protocol."""

from __future__ import annotations

import json

import pytest

from swapd.proxy.refusals import MAX_BYTES, in_its_words, needs_words, refusal_event
from swapd.proxy.sse import Dialect

TOO_LONG = {
    "code": 400,
    "message": "request (6031 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 6031,
    "n_ctx": 4096,
}
BODY = json.dumps({"error": TOO_LONG}).encode()
WORDS = "prompt is too long: 6031 tokens > 4096 maximum"


@pytest.mark.parametrize(
    ("status", "kind", "length", "dialects"),
    [
        (200, b"application/json", b"9", ""),
        (400, b"application/json; charset=utf-8", b"9", "chat responses messages"),
        (500, b"application/json", b"9", "messages"),
        (400, b"text/plain", b"9", ""),
        (400, b"application/json", b"%d" % (MAX_BYTES + 1), ""),
        (400, b"application/json", b"", ""),
    ],
)
def test_only_short_json_errors_are_collected(status: int, kind: bytes, length: bytes, dialects: str) -> None:
    headers = [(b"content-type", kind), *([(b"content-length", length)] if length else [])]
    assert " ".join(d.value for d in Dialect if needs_words(status, headers, d)) == dialects


@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.RESPONSES])
def test_prompt_that_is_too_long_has_openais_code_and_the_engines_own_fields(dialect: Dialect) -> None:
    said = json.loads(in_its_words(400, BODY, dialect, "r"))
    assert said == {"error": {**TOO_LONG, "code": "context_length_exceeded"}}


def test_prompt_that_is_too_long_has_anthropics_words() -> None:
    said = json.loads(in_its_words(400, BODY, Dialect.MESSAGES, "r"))
    assert said == {"type": "error", "error": {"type": "invalid_request_error", "message": WORDS}, "request_id": "r"}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (503, "overloaded_error"), (500, "api_error")]
)
def test_other_errors_get_anthropics_shape_with_the_engines_words(status: int, kind: str) -> None:
    body = b'{"error": {"message": "as the engine says", "code": 1}}'
    assert in_its_words(status, body, Dialect.CHAT, "r") == body
    said = json.loads(in_its_words(status, body, Dialect.MESSAGES, "r"))
    assert said["error"] == {"type": kind, "message": "as the engine says"}


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[" * 100_000, b'{"error": "text"}', b'{"type": "error", "error": {"message": "mine"}}'],
)
def test_what_is_right_or_cannot_be_read_stays_byte_for_byte(body: bytes) -> None:
    assert in_its_words(400, body, Dialect.MESSAGES, "r") == body


def test_overflow_without_its_figures_keeps_the_engines_words() -> None:
    body = b'{"error": {"message": "too long", "type": "exceed_context_size_error", "n_ctx": "?"}}'
    assert json.loads(in_its_words(400, body, Dialect.MESSAGES, "r"))["error"]["message"] == "too long"


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        (Dialect.CHAT, '"code": "context_length_exceeded"'),
        (Dialect.RESPONSES, '"code": "context_length_exceeded"'),
        (Dialect.MESSAGES, f'"message": "{WORDS}"'),
    ],
)
def test_after_the_200_an_event_has_the_same_words(dialect: Dialect, part: str) -> None:
    assert part in refusal_event(400, BODY, dialect, "r", "a").decode()


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"error": "text"}', b'{"error": {"message": 3}}'])
def test_refusals_that_cannot_be_read_are_events_all_the_same(dialect: Dialect, body: bytes) -> None:
    event = refusal_event(500, body, dialect, "r", "a")
    assert b"data: {" in event and event.endswith(b"\n\n")
