"""The relay under real uvicorn, with an upstream on a unix socket."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from swapd.core.spec import RouteSpec
from swapd.errors import Unloaded
from tests.component.fake_supervisor import Call, on_uvloop, until, world


async def hello(call: Call) -> None:
    await call.json({"hello": json.loads(call.body)["model"] if call.body else None})


async def three_events(call: Call) -> None:
    await call.begin_stream()
    for number in range(3):
        await call.event(json.dumps({"n": number}))
        await asyncio.sleep(0.01)
    await call.event(json.dumps({"timings": {"prompt_n": 900, "prompt_per_second": 812.5}}))
    await call.event("[DONE]")
    await call.end_stream()


async def silent(call: Call) -> None:
    await call.hung_up()


@on_uvloop
async def test_json_answer_is_relayed_and_the_lease_returned() -> None:
    async with world(hello) as w:
        reply = await w.chat()
        assert (reply.status, reply.json()) == (200, {"hello": "a"})
        assert reply.headers["x-request-id"]
        assert w.supervisor.closed == [("a", True, 0.0)]


@on_uvloop
async def test_stream_is_relayed_unbuffered_and_its_timings_reach_the_supervisor() -> None:
    async with world(three_events) as w:
        reply = await w.chat(stream=True)
        assert reply.whole
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["x-accel-buffering"] == "no"
        assert reply.headers["cache-control"] == "no-cache"
        await until(lambda: w.supervisor.closed)
        assert w.supervisor.closed == [("a", True, 812.5)]


@on_uvloop
async def test_each_token_reaches_the_client_before_the_next_is_made() -> None:
    may_go_on = asyncio.Event()

    async def step_by_step(call: Call) -> None:
        await call.begin_stream()
        for number in range(5):
            await call.event(str(number))
            await may_go_on.wait()
            may_go_on.clear()
        await call.end_stream()

    async with world(step_by_step) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        assert (await client.head())[0] == 200
        for number in range(5):
            assert await client.chunk() == f"data: {number}\n\n".encode()
            may_go_on.set()
        assert await client.chunk() == b""
        client.close()


@on_uvloop
async def test_lease_outlives_the_stream() -> None:
    finish = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        await finish.wait()
        await call.end_stream()

    async with world(slow) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await client.head()
        await client.chunk()
        assert len(w.supervisor.open) == 1
        finish.set()
        assert await client.chunk() == b""
        await until(lambda: not w.supervisor.open)
        client.close()


@on_uvloop
async def test_lease_is_taken_in_the_same_step_as_the_decision() -> None:
    """No other model's stop can come between the grant and the request being written."""
    order: list[str] = []

    async def noted(call: Call) -> None:
        order.append("upstream")
        await call.json({})

    async with world(noted) as w:
        await w.chat()  # a pooled connection from here on
        w.supervisor.on_request = lambda model: asyncio.get_running_loop().call_soon(order.append, "next turn")
        order.clear()
        await w.chat()
        assert order[0] in ("next turn", "upstream")
        assert w.supervisor.closed[-1] == ("a", True, 0.0)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_hang_up_during_prefill_closes_the_upstream_connection_at_once(stream: bool) -> None:
    ended = asyncio.Event()

    async def prefilling(call: Call) -> None:
        await call.hung_up()
        ended.set()

    @on_uvloop
    async def scenario() -> None:
        async with world(prefilling) as w:
            client = await w.client()
            await client.send("/v1/chat/completions", {"model": "a", "stream": stream})
            await until(lambda: w.upstream.calls)
            client.close()
            async with asyncio.timeout(1):
                await ended.wait()
            await until(lambda: not w.supervisor.open)
            assert w.supervisor.closed == [("a", False, 0.0)]

    scenario()


@on_uvloop
async def test_hang_up_in_mid_stream_closes_the_upstream_connection_and_spares_its_neighbour() -> None:
    ended: list[int] = []

    async def endless(call: Call) -> None:
        await call.begin_stream()
        try:
            for number in range(40):
                await call.event(str(number))
                await asyncio.sleep(0.01)
            await call.end_stream()
        except ConnectionError:
            ended.append(call.connection)

    async with world(endless) as w:
        neighbour = asyncio.ensure_future(w.chat(stream=True))
        await until(lambda: w.upstream.calls)
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await client.head()
        await client.chunk()
        client.close()
        await until(lambda: ended, 1)
        assert ended == [2]
        reply = await neighbour
        assert reply.whole and reply.body.count(b"data:") == 40


@on_uvloop
async def test_drain_on_hang_up_reads_the_answer_to_its_end_and_keeps_the_lease() -> None:
    go_on, done = asyncio.Event(), asyncio.Event()

    async def fragile(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        await go_on.wait()
        await call.event("2")
        await call.end_stream()
        done.set()

    async with world(fragile, {"a": RouteSpec("a", on_hangup="drain")}) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await client.head()
        await client.chunk()
        client.close()
        await asyncio.sleep(0.05)
        assert len(w.supervisor.open) == 1
        go_on.set()
        await done.wait()
        await until(lambda: not w.supervisor.open)
        await w.chat(stream=True)
        assert w.upstream.connections == 1  # it came to its end, so it could be used again


@on_uvloop
async def test_client_that_leaves_while_queued_is_withdrawn_at_once() -> None:
    async with world(hello) as w:
        w.supervisor.held.add("a")
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a"})
        await until(lambda: w.supervisor.waiting)
        client.close()
        await until(lambda: not w.supervisor.open)
        assert w.supervisor.closed == [("a", False, 0.0)]
        assert not w.upstream.calls


@on_uvloop
async def test_waiting_request_is_served_when_its_model_is_ready() -> None:
    async with world(hello) as w:
        w.supervisor.held.add("a")
        asked = asyncio.ensure_future(w.chat())
        await until(lambda: w.supervisor.waiting)
        w.supervisor.let_go("a")
        assert (await asked).json() == {"hello": "a"}


@on_uvloop
async def test_connection_is_used_again() -> None:
    async with world(hello) as w:
        for _ in range(5):
            assert (await w.chat()).status == 200
        assert w.upstream.connections == 1


@on_uvloop
async def test_idle_connection_that_the_process_closes_costs_no_request() -> None:
    async def closes_behind(call: Call) -> None:
        await hello(call)
        if call.number % 2:
            call.writer.close()

    async with world(closes_behind) as w:
        for _ in range(20):
            assert (await w.chat()).status == 200


def test_idle_connection_is_dropped_before_the_process_would_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama-server closes after 5 s; a request that meets that moment would be lost."""
    monkeypatch.setattr("swapd.proxy.upstream.IDLE_S", 0.05)

    @on_uvloop
    async def scenario() -> None:
        ended = asyncio.Event()

        async def watched(call: Call) -> None:
            await hello(call)
            if call.number == 1:
                await call.hung_up()
                ended.set()

        async with world(watched) as w:
            await w.chat()
            async with asyncio.timeout(1):
                await ended.wait()  # closed by us, without a request to make us look
            await w.chat()
            assert w.upstream.connections == 2

    scenario()


@on_uvloop
async def test_request_on_a_reused_connection_that_breaks_unanswered_is_sent_once_more() -> None:
    async def dies_under_the_second(call: Call) -> None:
        if call.number == 2:
            call.writer.transport.abort()
        else:
            await hello(call)

    async with world(dies_under_the_second) as w:
        assert (await w.chat()).status == 200
        assert (await w.chat()).status == 200
        assert w.upstream.connections == 2
        assert w.supervisor.requested == ["a", "a", "a"]
        assert not w.supervisor.open


@on_uvloop
async def test_fresh_connection_that_breaks_unanswered_is_502_with_the_last_words() -> None:
    async def dies(call: Call) -> None:
        call.writer.transport.abort()

    async with world(dies) as w:
        reply = await w.chat()
        assert reply.status == 502
        error = reply.json()["error"]
        assert error["code"] == "instance_died"
        assert "ggml_cuda: out of memory" in error["message"]
        assert len(w.upstream.calls) == 1


@on_uvloop
async def test_dead_process_brings_its_model_back_once() -> None:
    async with world(hello) as w:
        alive = w.supervisor.upstreams["a"]
        dead = type(alive)(path=alive.path + ".gone")
        w.supervisor.upstreams["a"] = dead

        def come_back(model: str) -> None:
            if w.supervisor.requested:
                w.supervisor.upstreams["a"] = alive

        w.supervisor.on_request = come_back
        assert (await w.chat()).status == 200
        assert w.supervisor.closed == [("a", False, 0.0), ("a", True, 0.0)]


@on_uvloop
async def test_process_that_stays_dead_is_502() -> None:
    async with world(hello) as w:
        w.supervisor.upstreams["a"] = type(w.supervisor.upstreams["a"])(path="/nowhere/a.sock")
        reply = await w.chat()
        assert reply.status == 502
        assert len(w.supervisor.requested) == 2
        assert not w.supervisor.open


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"error": {"message": "503 Service Unavailable: a died'),
        ("/v1/responses", b"event: response.failed\ndata: "),
        ("/v1/messages", b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"'),
    ],
)
def test_death_in_mid_stream_is_an_error_event_and_never_a_clean_end(path: str, event: bytes) -> None:
    async def dies(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        await asyncio.sleep(0.01)
        call.writer.transport.abort()

    @on_uvloop
    async def scenario() -> None:
        async with world(dies) as w:
            reply = await w.ask(path, {"model": "a", "stream": True})
            assert reply.status == 200
            assert not reply.whole
            assert b"data: 1\n\n\n\n" + event in reply.body
            assert b"[DONE]" not in reply.body
            await until(lambda: not w.supervisor.open)

    scenario()


@on_uvloop
async def test_death_in_mid_json_cuts_the_answer() -> None:
    async def dies(call: Call) -> None:
        call.writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"half')
        await call.writer.drain()
        await asyncio.sleep(0.02)
        call.writer.transport.abort()

    async with world(dies) as w:
        reply = await w.chat()
        assert not reply.whole


@on_uvloop
async def test_unload_in_mid_stream_ends_it_with_its_reason() -> None:
    async with world(endless_events) as w:
        asked = asyncio.ensure_future(w.chat(stream=True))
        await until(lambda: w.upstream.calls)
        await asyncio.sleep(0.03)
        w.supervisor.restart("a", Unloaded("a was unloaded by an operator"))
        reply = await asked
        assert not reply.whole
        assert b"a was unloaded by an operator" in reply.body


@on_uvloop
async def test_unload_before_the_first_byte_is_503() -> None:
    async with world(silent) as w:
        asked = asyncio.ensure_future(w.chat())
        await until(lambda: w.upstream.calls)
        w.supervisor.restart("a", Unloaded("a was unloaded by an operator"))
        reply = await asked
        assert reply.status == 503
        assert reply.json()["error"]["code"] == "unloaded"
        assert reply.headers["retry-after"] == "5"


@on_uvloop
async def test_next_generation_gets_no_connection_of_the_last() -> None:
    async with world(hello) as w:
        await w.chat()
        w.supervisor.restart("a", None)
        await w.chat()
        assert w.upstream.connections == 2


@on_uvloop
async def test_silence_longer_than_first_byte_timeout_is_502() -> None:
    async with world(silent, {"a": RouteSpec("a", first_byte_timeout_s=0.05)}) as w:
        reply = await w.chat()
        assert reply.status == 502
        assert "no first byte within 50ms" in reply.json()["error"]["message"]
        assert not w.supervisor.open


@on_uvloop
async def test_no_timeout_cuts_a_long_prefill() -> None:
    """0 means none: nothing of ours ticks while the process thinks."""

    async def thinks(call: Call) -> None:
        await asyncio.sleep(0.3)
        await hello(call)

    async with world(thinks, header_hold_s=0.01) as w:
        assert (await w.chat()).json() == {"hello": "a"}


@on_uvloop
async def test_slow_client_holds_the_process_back_and_gets_every_byte() -> None:
    sent = 0
    block = b"x" * 65536

    async def fast(call: Call) -> None:
        nonlocal sent
        await call.begin_stream()
        for _ in range(400):
            call.writer.write(b"%x\r\n%s\r\n" % (len(block), block))
            await call.writer.drain()
            sent += len(block)
        await call.end_stream()

    async with world(fast) as w:
        client = await w.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await until(lambda: w.upstream.calls)
        await asyncio.sleep(0.3)
        held_at = sent
        assert held_at < 400 * len(block)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        reply = await client.reply()
        assert reply.whole and len(reply.body) == 400 * len(block)
        client.close()


@on_uvloop
async def test_hang_up_while_held_back_ends_the_request() -> None:
    async def fast(call: Call) -> None:
        await call.begin_stream()
        while True:
            await call.event("x" * 60000)

    async with world(fast) as w:
        client = await w.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await until(lambda: w.upstream.calls)
        await asyncio.sleep(0.2)
        client.writer.transport.abort()
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_body_that_ends_with_the_connection_is_whole() -> None:
    async def old_style(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
        await call.writer.drain()
        call.writer.close()

    async with world(old_style) as w:
        reply = await w.chat()
        assert (reply.whole, reply.body) == (True, b"all of it")


@on_uvloop
async def test_interim_answers_and_bodyless_ones_pass() -> None:
    async def terse(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        call.writer.write(b"HTTP/1.1 204 No Content\r\nX-Own: kept\r\n\r\n")
        await call.writer.drain()

    async with world(terse) as w:
        for _ in range(2):
            reply = await w.chat()
            assert (reply.status, reply.headers["x-own"]) == (204, "kept")
        assert w.upstream.connections == 1


@on_uvloop
async def test_answer_that_is_no_http_is_502() -> None:
    async def garbage(call: Call) -> None:
        call.writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        await call.writer.drain()

    async with world(garbage) as w:
        assert (await w.chat()).status == 502


@on_uvloop
async def test_errors_of_the_engine_pass_unchanged() -> None:
    async def refuses(call: Call) -> None:
        await call.json(
            {"error": {"message": "unsupported tool type", "code": 400}}, "400 Bad Request", "X-Own: yes\r\n"
        )

    async with world(refuses) as w:
        reply = await w.ask("/v1/responses", {"model": "a", "tools": [{"type": "web_search"}]})
        assert (reply.status, reply.headers["x-own"]) == (400, "yes")
        assert reply.json() == {"error": {"message": "unsupported tool type", "code": 400}}


@on_uvloop
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/messages", b'"message": "prompt is too long: 9 tokens > 8 maximum"'),
        ("/v1/responses", b'"code": "context_length_exceeded"'),
        ("/upstream/a/v1/messages", b'"message": "too long"'),
    ],
)
async def test_prompt_that_is_too_long_is_told_in_the_words_of_the_protocol(path: str, said: bytes) -> None:
    """``/upstream`` is the engine itself: nothing is changed there."""

    async def refuses(call: Call) -> None:
        error = {"message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}
        await call.json({"error": error}, "400 Bad Request", "X-Own: yes\r\n")

    async with world(refuses) as w:
        for _ in range(2):  # the connection is used again
            reply = await w.ask(path, {"model": "a"})
            assert (reply.status, reply.headers["x-own"], reply.whole) == (400, "yes", True)
            assert said in reply.body and int(reply.headers["content-length"]) == len(reply.body)
            assert not w.supervisor.open


@on_uvloop
async def test_engine_that_dies_while_it_refuses_is_502() -> None:
    async def dies(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        await call.writer.drain()
        call.writer.transport.abort()

    async with world(dies) as w:
        assert (await w.chat()).status == 502


@on_uvloop
async def test_clients_secrets_stay_here_and_the_childs_own_key_goes_in() -> None:
    async with world(hello, {"a": RouteSpec("a", api_key="child-key")}, api_keys=("ours",)) as w:
        secrets = {
            "authorization": "Bearer ours",
            "x-api-key": "ours",
            "cookie": "c=1",
            "origin": "http://localhost:3000",
        }
        headers = {**secrets, "accept-encoding": "gzip", "anthropic-beta": "kept", "te": "trailers"}
        reply = await w.ask("/v1/chat/completions", {"model": "a"}, headers=headers)
        assert reply.status == 200
        seen = w.upstream.calls[0].headers
        assert seen["authorization"] == "Bearer child-key"
        assert seen["accept-encoding"] == "identity"
        assert seen["anthropic-beta"] == "kept"
        assert not {"x-api-key", "cookie", "origin", "te"} & set(seen)


@on_uvloop
async def test_upstream_model_replaces_the_name_and_nothing_else() -> None:
    async with world(hello, {"a": RouteSpec("a", upstream_model="served-name")}) as w:
        await w.ask("/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": "é"}]})
        assert json.loads(w.upstream.calls[0].body) == {
            "model": "served-name",
            "messages": [{"role": "user", "content": "é"}],
        }


@on_uvloop
async def test_body_and_query_are_forwarded_byte_by_byte() -> None:
    async with world(hello) as w:
        body = b'{ "model" : "a",\n "x":1e2, "unknown": [null]}'
        await w.ask("/v1/messages?beta=true", body)
        assert w.upstream.calls[0].body == body
        assert w.upstream.calls[0].target == "/v1/messages?beta=true"


@on_uvloop
async def test_multipart_upload_is_untouched_and_its_model_found() -> None:
    async def digest(call: Call) -> None:
        await call.json({"sha": hashlib.sha256(call.body).hexdigest()})

    async with world(digest) as w:
        noise = bytes(range(256)) * 4000
        form = (
            b'--B0\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
            + noise
            + b'\r\n--B0\r\nContent-Disposition: form-data; name="model"\r\n\r\nb\r\n--B0--\r\n'
        )
        kind = "multipart/form-data; boundary=B0"
        reply = await w.ask("/v1/audio/transcriptions", form, headers={"content-type": kind})
        assert reply.json() == {"sha": hashlib.sha256(form).hexdigest()}
        assert w.supervisor.requested == ["b"]
        assert w.upstream.calls[0].headers["content-type"] == kind


@on_uvloop
async def test_large_body_is_relayed_and_other_streams_go_on() -> None:
    async def size(call: Call) -> None:
        await call.json({"bytes": len(call.body)})

    async with world(size) as w:
        gaps: list[float] = []

        async def heart() -> None:
            loop = asyncio.get_running_loop()
            while True:
                before = loop.time()
                await asyncio.sleep(0.001)
                gaps.append(loop.time() - before)

        body = json.dumps({"model": "a", "image": "A" * 20_000_000}).encode()
        beating = asyncio.ensure_future(heart())
        reply = await w.ask("/v1/chat/completions", body)
        beating.cancel()
        assert reply.json() == {"bytes": len(body)}
        assert max(gaps) < 0.5  # the client, the server and the upstream all live in this loop


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit_is_413(chunked: bool) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello, max_body_bytes=1000) as w:
            client = await w.client()
            if chunked:
                client.writer.write(
                    b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                client.writer.write(b"800\r\n%s\r\n0\r\n\r\n" % (b"x" * 0x800))
            else:
                await client.send("/v1/messages", b"x" * 2000)
            reply = await client.reply()
            assert reply.status == 413
            assert reply.json()["error"]["type"] == "request_too_large"
            assert "max_body" in reply.json()["error"]["message"]
            client.close()

    scenario()


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"model": 3}', b'{"model": null}', b"[]", b"", b'"a"', b"12", b'{"model": ""}', b'{"model": "nope"}'],
)
def test_no_model_or_an_unknown_one_is_404_with_the_valid_ids(body: bytes) -> None:
    @on_uvloop
    async def scenario() -> None:
        routes = {"a": RouteSpec("a"), "b": RouteSpec("b"), "hidden": RouteSpec("hidden", unlisted=True)}
        async with world(hello, routes) as w:
            reply = await w.ask("/v1/chat/completions", body)
            assert reply.status == 404
            error = reply.json()["error"]
            assert error["code"] == "model_not_found"
            assert error["message"].endswith("valid ids: a, b")
            assert not w.supervisor.requested

    scenario()


@on_uvloop
async def test_body_that_is_no_json_is_400() -> None:
    async with world(hello) as w:
        for body in (b'{"model": ', b"\xff\xfe", b"[" * 100_000):
            reply = await w.ask("/v1/messages", body)
            assert (reply.status, reply.json()["type"]) == (400, "error")


@on_uvloop
async def test_model_in_the_query_counts_if_the_body_names_none() -> None:
    async with world(hello) as w:
        await w.ask("/v1/rerank?model=b", b'{"model": null}')
        assert w.supervisor.requested == ["b"]


@on_uvloop
async def test_upstream_path_reaches_ids_with_slashes_raw_or_encoded() -> None:
    async with world(hello) as w:
        for path in ("org/model:q4%20k", "org%2Fmodel%3Aq4%20k"):
            await w.ask(f"/upstream/{path}/v1/x%20y?z=1", {"model": "other"})
        assert w.supervisor.requested == ["org/model:q4 k"] * 2
        assert {call.target for call in w.upstream.calls} == {"/v1/x%20y?z=1"}
        await w.ask("/upstream/a", method="GET")
        assert w.upstream.calls[-1].target == "/"
        assert (await w.ask("/upstream/nope/x", method="GET")).status == 404


@on_uvloop
async def test_look_ups_never_load_a_model_and_never_count_as_use() -> None:
    async with world(hello) as w:
        w.supervisor.states["b"] = "stopped"
        for path in ("/upstream/b/props", "/upstream/b/slots", "/upstream/b/metrics", "/props?model=b"):
            reply = await w.ask(path, method="GET")
            assert (reply.status, reply.json()["error"]["code"]) == (503, "not_loaded")
        assert (await w.ask("/upstream/a/slots", method="GET")).status == 200
        assert (await w.ask("/slots?model=a", method="GET")).status == 200
        assert w.supervisor.requested == []
        await w.ask("/upstream/a/props", {"model": "a"})
        assert w.supervisor.requested == ["a"]


@on_uvloop
async def test_head_request_has_no_body_and_ends() -> None:
    async def as_get(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        await call.writer.drain()

    async with world(as_get) as w:
        reply = await w.ask("/upstream/a/index.html", method="HEAD")
        assert (reply.status, reply.headers["content-length"]) == (200, "100")
        assert not w.supervisor.open


@on_uvloop
async def test_interleaved_requests_to_two_models_are_all_answered() -> None:
    async with world(hello) as w:

        async def loop_on(model: str) -> None:
            for _ in range(60):
                assert (await w.chat(model)).status == 200

        await asyncio.gather(*(loop_on(model) for model in "abab"))
        assert not w.supervisor.open
        assert len(w.supervisor.closed) == 240


@on_uvloop
async def test_hundreds_of_requests_at_once_find_room_in_a_short_listen_queue() -> None:
    async def thinks(call: Call) -> None:
        await asyncio.sleep(0.02)
        await hello(call)

    async with world(thinks) as w:
        w.supervisor.held.add("a")
        asked = [asyncio.ensure_future(w.chat()) for _ in range(300)]
        await until(lambda: len(w.supervisor.waiting) == 300)
        w.supervisor.let_go("a")
        assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
        assert not w.supervisor.open


async def endless_events(call: Call) -> None:
    await call.begin_stream()
    while True:
        await call.event("x")
        await asyncio.sleep(0.01)
