from __future__ import annotations

import pytest

from swapd.proxy.sse import Dialect, dialect_of, prefill_tps, refusal_event, usage


@pytest.mark.parametrize(
    ("tail", "tps"),
    [
        ([b'data: {"timings":{"prompt_per_second":812.5}}\n\n', b"data: [DONE]\n\n"], 812.5),
        ([b'{"timings":{"prompt_per_', b'second" : 1e3}}'], 1000.0),
        ([b'"prompt_per_second": 1', b'"prompt_per_second": 2}'], 2.0),
        ([b'"prompt_per_second": null'], 0.0),
        ([b'"prompt_per_second": NaN'], 0.0),
        ([b"x" * 1_000_000], 0.0),
        ([b'"prompt_per_second": 5', b"x" * 10_000], 0.0),
        ([], 0.0),
    ],
)
def test_prefill_rate_is_read_from_the_tail_or_not_at_all(tail: list[bytes], tps: float) -> None:
    assert prefill_tps(tail) == tps


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        ([b'data: {"usage":{"total_tokens":9}}\n\n', b"data: [DONE]\n\n"], {"total_tokens": 9}),
        ([b'{"usage": {"total_tokens": 9, "details": {"cached": 1}}}'], {"total_tokens": 9, "details": {"cached": 1}}),
        ([b'data: {"usage":null,"x":{}}\n\n'], None),
        ([b'{"usage": {"total_tok'], None),
        ([b'{"usage": ' + b"{" * 5000], None),
        ([b"\xff\xfe"], None),
    ],
)
def test_usage_is_read_from_the_tail_or_not_at_all(tail: list[bytes], found: object) -> None:
    assert usage(tail) == found


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
