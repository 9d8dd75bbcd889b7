from __future__ import annotations

import pytest

from swapd.proxy.headers import request_head, response_headers


def test_headers_of_one_hop_stay_on_it() -> None:
    headers = [
        (b"host", b"swapd:8080"),
        (b"connection", b"keep-alive, X-Private"),
        (b"x-private", b"1"),
        (b"keep-alive", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"content-type", b"application/json"),
    ]
    head = request_head("POST", b"/v1/x?y=1", headers, 7, "")
    assert head == (
        b"POST /v1/x?y=1 HTTP/1.1\r\nhost: localhost\r\naccept-encoding: identity\r\n"
        b"content-type: application/json\r\ncontent-length: 7\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "length"), [("GET", False), ("HEAD", False), ("POST", True), ("PUT", True)])
def test_length_of_an_empty_body_is_told_where_one_is_expected(method: str, length: bool) -> None:
    assert (b"content-length: 0" in request_head(method, b"/", [], 0, "")) is length


def test_answer_keeps_its_own_headers_only() -> None:
    headers = [(b"date", b"x"), (b"connection", b"close"), (b"x-request-id", b"theirs"), (b"server", b"llama.cpp")]
    assert response_headers(headers) == ([(b"server", b"llama.cpp")], False)


def test_event_stream_is_never_buffered() -> None:
    headers = [(b"content-type", b"Text/Event-Stream; charset=utf-8"), (b"cache-control", b"max-age=9")]
    kept, is_stream = response_headers(headers)
    assert is_stream
    assert dict(kept)[b"cache-control"] == b"no-cache"
    assert dict(kept)[b"x-accel-buffering"] == b"no"
