from __future__ import annotations

import pytest

from swapd.proxy.sse import Dialect, dialect_of, refusal_event


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", Dialect.CHAT),
        ("/v1/completions", Dialect.CHAT),
        ("/v1/responses", Dialect.RESPONSES),
        ("/v1/messages", Dialect.MESSAGES),
        ("/v1/messages/count_tokens", Dialect.MESSAGES),
    ],
)
def test_dialect_of_a_path(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"error": "text"}', b'{"error": {"message": 3}}'])
def test_refusals_that_cannot_be_read_are_events_all_the_same(dialect: Dialect, body: bytes) -> None:
    event = refusal_event(500, body, dialect, "r", "a")
    assert b"data: {" in event and event.endswith(b"\n\n")
