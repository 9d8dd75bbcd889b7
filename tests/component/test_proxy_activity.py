"""What is remembered of requests, how one is cancelled, and whose bodies are kept."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from swapd.activity_store import ActivityStore
from swapd.core.activity import EndedRequest
from swapd.core.spec import RouteSpec
from swapd.errors import StartFailed
from swapd.proxy.activity import client_of
from swapd.proxy.app import build_app
from swapd.proxy.captures import BODY_BYTES, Capture, Captures, Kept
from swapd.proxy.settings import ProxySettings
from tests.component.fake_supervisor import ROUTES, Call, World, on_uvloop, until, world

AGENT = {"user_agent": "pi/3.1 (linux; secret-token)"}
ADMIN = {"authorization": "Bearer boss"}
TIMINGS = {
    "cache_n": 900, "prompt_n": 100, "prompt_ms": 50.0, "prompt_per_second": 2000.0, "predicted_n": 8,
    "predicted_ms": 40.0, "predicted_per_second": 200.0, "draft_n": 10, "draft_n_accepted": 7,
}  # fmt: skip


class Rows(list[EndedRequest]):
    """An ``ActivityLog``."""

    def record(self, ended: EndedRequest) -> None:
        self.append(ended)

    async def recent(self, *, limit: int, model: str = "", since: float = 0.0) -> Sequence[EndedRequest]:
        return [row for row in reversed(self) if model in ("", row.model) and row.at >= since][:limit]


async def timed(call: Call) -> None:
    if b'"stream": true' not in call.body:
        return await call.json({"choices": [], "timings": TIMINGS})
    await call.begin_stream()
    await call.event('{"choices": []}')
    await call.event(json.dumps({"choices": [], "timings": TIMINGS}))
    await call.event("[DONE]")
    return await call.end_stream()


async def silent(call: Call) -> None:
    await call.hung_up()


async def endless(call: Call) -> None:
    await call.begin_stream()
    await call.event('{"n": 1}')
    await call.hung_up()


async def activity(w: World, query: str = "") -> Any:
    return (await w.ask(f"/api/activity{query}", method="GET")).json()


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_row_of_an_answer_has_the_engines_own_figures(stream: bool) -> None:
    @on_uvloop
    async def scenario() -> None:
        rows = Rows()
        async with world(timed, activity=rows) as w:
            before = time.time()
            rid = (await w.chat(stream=stream, **AGENT)).headers["x-request-id"]
            await until(lambda: rows)
            (row,) = rows
            assert (row.rid, row.model, row.asked, row.stream, row.path) == (
                rid,
                "a",
                "a",
                stream,
                "/v1/chat/completions",
            )
            assert (row.status, row.outcome, row.error) == (200, "ok", None)
            assert row.client == "pi/3.1 (local)"
            assert before - 0.1 < row.at < time.time()
            assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (1000, 900, 8)
            assert (row.prefill_s, row.decode_s, row.prefill_tps, row.decode_tps) == (0.05, 0.04, 2000.0, 200.0)
            assert (row.draft_tokens, row.draft_accepted) == (10, 7)
            assert (row.queue_s, row.load_s) == (0.0, 0.0)
            assert row.first_byte_s is not None and 0 < row.first_byte_s <= row.total_s
            shown = await activity(w)
            rounded = {name: round(v, 6) if isinstance(v, float) else v for name, v in row._asdict().items()}
            assert shown == {"active": [], "requests": [rounded]}
            assert not (await activity(w, "?model=b"))["requests"]
            assert (await w.ask("/api/activity?limit=0", method="GET")).status == 400

    scenario()


@on_uvloop
async def test_many_at_once_keep_their_own_figures() -> None:
    """A connection may be in use again before its last answer was looked at."""

    async def numbered(call: Call) -> None:
        number = json.loads(call.body)["n"]
        await asyncio.sleep(random.uniform(0, 0.002))
        await call.json({"usage": {"prompt_tokens": number, "completion_tokens": 1}})

    rows = Rows()
    async with world(numbered, activity=rows) as w:
        wanted: dict[str, int] = {}

        async def one(first: int) -> None:
            client = await w.client()
            for number in range(first, first + 40):
                await client.send("/v1/chat/completions", {"model": "a", "n": number})
                wanted[(await client.reply()).headers["x-request-id"]] = number
            client.close()

        await asyncio.gather(*(one(1000 * n) for n in range(12)))
        await until(lambda: len(rows) == len(wanted))
        assert {row.rid: row.prompt_tokens for row in rows} == wanted


@on_uvloop
async def test_wait_is_told_as_queue_and_load() -> None:
    rows = Rows()
    async with world(timed, activity=rows) as w:
        w.supervisor.held.add("a")
        asked = asyncio.ensure_future(w.chat())
        await until(lambda: w.supervisor.waiting)
        (active,) = (await activity(w))["active"]
        assert (active["model"], active["state"], active["stream"]) == ("a", "queued", False)
        w.supervisor.states["a"] = "starting"
        assert (await activity(w, "?model=a"))["active"][0]["state"] == "loading"
        assert not (await activity(w, "?model=b"))["active"]
        await asyncio.sleep(0.3)
        now = time.monotonic()
        w.supervisor.loads["a"] = (now - 0.2, now - 0.1)
        w.supervisor.let_go("a")
        await asked
        await until(lambda: rows)
        (row,) = rows
        assert row.load_s == pytest.approx(0.1, abs=0.002) and row.queue_s >= 0.19
        assert row.load_s + row.queue_s < row.total_s


@on_uvloop
async def test_errors_hang_ups_and_refusals_are_told_apart() -> None:
    rows = Rows()

    async def by_model(call: Call) -> None:
        if b"bad" in call.body:
            await call.json({"error": {"message": "no"}}, "400 Bad Request")
        else:
            await call.hung_up()

    async with world(by_model, activity=rows) as w:
        await w.chat("nope")
        await w.ask("/v1/chat/completions", {"model": "a", "x": "bad"})
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a"})
        await until(lambda: len(w.upstream.calls) == 2)
        client.close()
        await until(lambda: len(rows) == 3)
        w.supervisor.refusals["b"] = StartFailed("b did not start")
        await w.ask("/v1/messages", {"model": "b"})
        await until(lambda: len(rows) == 4)
        assert [(r.model, r.asked, r.status, r.outcome, r.error) for r in rows] == [
            ("", "nope", 404, "error", "model_not_found"),
            ("a", "a", 400, "error", "engine"),
            ("a", "a", 499, "hung_up", None),
            ("b", "b", 502, "error", "start_failed"),
        ]
        assert {r.prompt_tokens for r in rows} == {None}


@on_uvloop
async def test_stream_that_died_midway_is_an_error_with_status_200() -> None:
    async def dying(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        call.writer.close()

    rows = Rows()
    async with world(dying, activity=rows) as w:
        await w.chat(stream=True)
        await until(lambda: rows)
        assert (rows[0].status, rows[0].outcome, rows[0].error) == (200, "error", "instance_died")


@on_uvloop
async def test_client_that_left_a_request_that_is_drained_has_hung_up() -> None:
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        await go_on.wait()
        await call.event(json.dumps({"timings": TIMINGS}))
        await call.event("[DONE]")
        await call.end_stream()

    rows = Rows()
    async with world(slow, {"a": RouteSpec("a", on_hangup="drain")}, activity=rows) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await client.head()
        client.close()
        await asyncio.sleep(0.05)
        go_on.set()
        await until(lambda: rows)
        assert (rows[0].outcome, rows[0].completion_tokens) == ("hung_up", 8)


@on_uvloop
async def test_client_that_leaves_with_the_last_event_has_its_answer() -> None:
    """Some close the connection before the last chunk of the encoding has come."""

    async def lingers(call: Call) -> None:
        await call.begin_stream()
        await call.event("1")
        await call.event("[DONE]")
        await asyncio.sleep(30)

    rows = Rows()
    async with world(lingers, activity=rows) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await client.head()
        while b"[DONE]" not in await client.chunk():
            pass
        client.close()
        await until(lambda: rows)
        assert (rows[0].status, rows[0].outcome) == (200, "ok")


@on_uvloop
async def test_engines_own_keep_alives_are_no_answer_and_end_none_of_ours() -> None:
    async def prefills(call: Call) -> None:
        await call.begin_stream()
        call.writer.write(b"3\r\n:\n\n\r\n")
        await call.writer.drain()
        await asyncio.sleep(0.6)
        await call.event("1")
        await call.end_stream()

    rows = Rows()
    async with world(prefills, activity=rows, header_hold_s=0.2, heartbeat_s=0.05) as w:
        body = (await w.ask("/v1/responses", {"model": "a", "stream": True})).body
        before, after = body.split(b"data: 1")
        assert before.startswith(b":\n\n") and before.count(b"event: keepalive") >= 2 and b"keepalive" not in after
        await until(lambda: rows)
        assert rows[0].first_byte_s is not None and rows[0].first_byte_s >= 0.5


@on_uvloop
async def test_look_ups_are_no_activity() -> None:
    rows = Rows()
    async with world(timed, activity=rows) as w:
        await w.ask("/upstream/a/props", method="GET")
        await w.ask("/props?model=a", method="GET")
        assert not rows
        text = (await w.ask("/metrics", method="GET")).body.decode()
        assert 'swapd_requests_total{model="a",status="200"} 2.0' in text


@on_uvloop
async def test_status_tells_the_speed_of_the_last_answers() -> None:
    async with world(timed) as w:
        assert (await w.ask("/api/status", method="GET")).json()["answers"] == {}
        await w.chat()
        await w.chat(stream=True)
        await until(lambda: not w.supervisor.open)
        speed = (await w.ask("/api/status", method="GET")).json()["answers"]["a"]
        assert speed.pop("first_byte_s") > 0
        assert speed == {"answers": 2, "prefill_tps": 2000.0, "decode_tps": 200.0, "cached": 0.9, "draft_accepted": 0.7}


@on_uvloop
async def test_metrics_have_histograms_and_token_counters() -> None:
    async with world(timed) as w:
        await w.chat()
        await w.chat(stream=True)
        await until(lambda: not w.supervisor.open)
        lines = (await w.ask("/metrics", method="GET")).body.decode().splitlines()
        for line in (
            'gen_ai_server_request_duration_seconds_count{model="a"} 2.0',
            'gen_ai_server_time_to_first_token_seconds_count{model="a"} 1.0',
            'gen_ai_server_time_per_output_token_seconds_bucket{le="0.005",model="a"} 2.0',
            'gen_ai_server_time_per_output_token_seconds_bucket{le="0.0025",model="a"} 0.0',
            'gen_ai_client_token_usage_sum{model="a",token_type="input"} 2000.0',
            'gen_ai_client_token_usage_bucket{le="+Inf",model="a",token_type="output"} 2.0',
            'swapd_request_queue_seconds_count{model="a"} 2.0',
            'swapd_prompt_tokens_total{model="a"} 2000.0',
            'swapd_prompt_tokens_cached_total{model="a"} 1800.0',
            'swapd_generation_tokens_total{model="a"} 16.0',
            'swapd_draft_tokens_total{model="a"} 20.0',
            'swapd_draft_tokens_accepted_total{model="a"} 14.0',
        ):
            assert line in lines, line


# ---- cancelling


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_waiting_request_is_cancelled_with_499(path: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        rows = Rows()
        async with world(timed, activity=rows) as w:
            w.supervisor.held.add("a")
            asked = asyncio.ensure_future(w.ask(path, {"model": "a"}))
            await until(lambda: w.supervisor.waiting)
            rid = (await activity(w))["active"][0]["rid"]
            reply = await w.ask(f"/api/requests/{rid}/cancel")
            assert (reply.status, reply.json()) == (200, {"rid": rid, "cancelled": True})
            ended = await asked
            assert ended.status == 499 and b"cancelled" in ended.body
            assert not w.supervisor.open and not w.upstream.calls
            await until(lambda: rows)
            assert (rows[0].outcome, rows[0].error, rows[0].status) == ("cancelled", "cancelled", 499)
            assert (await w.ask(f"/api/requests/{rid}/cancel")).status == 404

    scenario()


@on_uvloop
async def test_running_request_is_cancelled_and_its_connection_closed_at_once() -> None:
    rows = Rows()
    async with world(silent, activity=rows) as w:
        asked = asyncio.ensure_future(w.chat())
        await until(lambda: w.upstream.calls)
        (active,) = (await activity(w))["active"]
        assert active["state"] == "prefill"
        await w.ask(f"/api/requests/{active['rid']}/cancel")
        ended = await asked
        assert (ended.status, ended.json()["error"]["code"]) == (499, "cancelled")
        await until(w.upstream.tasks[0].done)
        assert w.supervisor.closed == [("a", False, 0.0)]
        await until(lambda: rows)
        assert rows[0].outcome == "cancelled"


@on_uvloop
async def test_streaming_request_ends_with_an_event_and_a_cut() -> None:
    rows = Rows()
    async with world(endless, activity=rows) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        assert (await client.head())[0] == 200
        await client.chunk()
        (active,) = (await activity(w))["active"]
        assert active["state"] == "answering"
        await w.ask(f"/api/requests/{active['rid']}/cancel")
        event = await client.chunk()
        assert event.startswith(b"\n\ndata: ") and json.loads(event[8:])["error"]["code"] == "cancelled"
        assert await client.reader.read() == b""  # no last chunk: cut
        await until(lambda: rows)
        assert (rows[0].status, rows[0].outcome) == (200, "cancelled")
        client.close()


@on_uvloop
async def test_cancelling_an_answer_that_waits_for_its_client_hits_nobody_else() -> None:
    """Its connection to the process serves another request already."""
    takes_more = asyncio.Event()

    async def answer(call: Call) -> None:
        if call.number == 2:
            await asyncio.sleep(0.2)
        await call.json({"number": call.number})

    async with world(answer) as w:
        app = build_app(w.supervisor, ROUTES, ProxySettings())  # type: ignore[arg-type]

        async def ask(path: str, sent: list[Any], takes: asyncio.Event | None = None) -> None:
            messages = [{"type": "http.request", "body": b'{"model": "a"}'}]

            async def receive() -> Any:
                return messages.pop() if messages else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                if takes is not None:
                    await takes.wait()
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                     "headers": [(b"host", b"localhost")]}  # fmt: skip
            await app(scope, receive, send)

        slow: list[Any] = []
        waits = asyncio.ensure_future(ask("/v1/chat/completions", slow, takes_more))
        await until(lambda: w.upstream.calls)
        await asyncio.sleep(0.05)
        quick: list[Any] = []
        other = asyncio.ensure_future(ask("/v1/chat/completions", quick))
        await until(lambda: len(w.upstream.calls) == 2)
        assert w.upstream.connections == 1
        seen: list[Any] = []
        await ask("/api/unload", seen)
        prefix, _, number = dict(seen[0]["headers"])[b"x-request-id"].decode().partition("-")
        cancelled: list[Any] = []
        await ask(f"/api/requests/{prefix}-{int(number, 16) - 2:x}/cancel", cancelled)
        assert cancelled[0]["status"] == 200
        await waits
        assert not slow, "it waits for its client no longer"
        await other
        assert b"".join(m.get("body", b"") for m in quick) == b'{"number": 2}'


@on_uvloop
async def test_request_whose_client_does_not_read_is_cancelled_and_its_lease_returned() -> None:
    rows = Rows()

    async def floods(call: Call) -> None:
        await call.begin_stream()
        for _ in range(2000):
            await call.event("x" * 60_000)
        await call.hung_up()

    async with world(floods, activity=rows) as w:
        client = await w.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send("/v1/chat/completions", {"model": "a", "stream": True})
        await until(lambda: w.upstream.calls)
        await asyncio.sleep(0.2)
        (active,) = (await activity(w))["active"]
        assert active["state"] == "answering"
        assert (await w.ask(f"/api/requests/{active['rid']}/cancel")).status == 200
        await until(lambda: not w.supervisor.open)
        await until(lambda: rows)
        assert rows[0].outcome == "cancelled" and not (await activity(w))["active"]
        client.close()


@on_uvloop
async def test_figures_and_names_beyond_sense_cost_nobody_anything() -> None:
    async def odd(call: Call) -> None:
        await call.json({"timings": {"prompt_ms": int("1" * 400), "predicted_n": 7}})

    store = ActivityStore(None, delay_s=0.0)
    async with world(odd, activity=store) as w:
        assert (await w.ask("/v1/chat/completions", b'{"model":"\\ud800"}')).status == 404
        assert (await w.chat()).status == 200
        assert (await w.ask("/metrics", method="GET")).status == 200
        refused, served = sorted((await activity(w))["requests"], key=lambda row: row["status"], reverse=True)
        assert (refused["asked"], served["completion_tokens"], served["prefill_s"]) == ("?", 7, None)
    store.close()


@on_uvloop
async def test_cancelling_needs_an_admin_key_and_a_request() -> None:
    async with world(silent, api_keys=("k",), admin_keys=("boss",)) as w:
        user = {"authorization": "Bearer k"}
        reply = await w.ask("/api/requests/x/cancel", headers=user)
        assert (reply.status, reply.json()["error"]["code"]) == (403, "forbidden")
        reply = await w.ask("/api/requests/x/cancel", headers=ADMIN)
        assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found")
        assert (await w.ask("/api/activity", method="GET", headers=user)).status == 200
        assert (await w.ask("/api/activity", method="GET")).status == 401


# ---- captures


@on_uvloop
async def test_bodies_are_kept_for_admin_keys_without_keys_and_headers() -> None:
    async with world(timed, capture=True, admin_keys=("boss",)) as w:
        headers = {"authorization": "Bearer boss", "x_api_key": "boss", "content_type": "application/json"}
        body = {"model": "a", "stream": True, "messages": "hello ö"}
        rid = (await w.ask("/v1/chat/completions?key=boss", body, headers=headers)).headers["x-request-id"]
        assert (await w.ask("/api/captures", method="GET")).status == 401
        listed = await w.ask("/api/captures", method="GET", headers=ADMIN)
        (head,) = listed.json()["captures"]
        assert (head["rid"], head["status"], head["path"]) == (rid, 200, "/v1/chat/completions")
        whole = await w.ask(f"/api/captures/{rid}", method="GET", headers=ADMIN)
        assert json.loads(whole.json()["request"]["text"]) == body
        answer = whole.json()["response"]
        assert answer["text"].endswith("data: [DONE]\n\n") and answer["content_type"] == "text/event-stream"
        assert answer["bytes"] == len(answer["text"]) and not answer["cut"]
        assert b"boss" not in listed.body + whole.body
        assert (await w.ask("/api/captures/none", method="GET", headers=ADMIN)).status == 404


@on_uvloop
async def test_long_bodies_are_cut_and_only_counted_on() -> None:
    text = "é" * BODY_BYTES

    async def long(call: Call) -> None:
        await call.json({"n": text})

    async with world(long, capture=True, admin_keys=("boss",)) as w:
        body = {"model": "a", "x": "y" * (9 << 20)}  # waits on disk
        reply = await w.ask("/v1/chat/completions", body)
        assert reply.json() == {"n": text}
        shown = (await w.ask(f"/api/captures/{reply.headers['x-request-id']}", method="GET", headers=ADMIN)).json()
        assert shown["request"]["cut"] and shown["request"]["bytes"] == len(json.dumps(body))
        assert shown["response"]["cut"] and shown["response"]["bytes"] == len(reply.body)
        assert len(shown["response"]["text"].encode()) <= BODY_BYTES == len(shown["request"]["text"])


@on_uvloop
async def test_nothing_is_kept_without_the_setting_or_an_admin_key() -> None:
    async with world(timed, admin_keys=("boss",)) as w:
        reply = await w.ask("/api/captures", method="GET", headers=ADMIN)
        assert reply.status == 404 and "[server] capture" in reply.json()["error"]["message"]
    async with world(timed, capture=True) as w:
        await w.chat()
        reply = await w.ask("/api/captures", method="GET")
        assert reply.status == 403 and "[server] admin_keys" in reply.json()["error"]["message"]


def test_captures_are_bounded_in_number_and_bytes() -> None:
    def capture(rid: str, size: int) -> Capture:
        return Capture(rid, 0.0, "a", "/", 200, Kept("", size, b"x" * size), Kept("", 0, b""))

    captures = Captures(kept=3, kept_bytes=100)
    for number in range(5):
        captures.add(capture(f"r{number}", 10))
    assert [one["rid"] for one in captures.listed()] == ["r4", "r3", "r2"]
    captures.add(capture("big", 85))
    assert [one["rid"] for one in captures.listed()] == ["big", "r4"]
    captures.add(capture("huge", 101))
    assert captures.listed() == []
    captures.add(Capture("raw", 0.0, "a", "/", 200, Kept("image/png", 2, b"\xff\xd8"), Kept("", 9, "aé".encode()[:-1])))
    shown = captures.of("raw")
    assert shown is not None and shown["request"]["base64"] == "/9g=" and shown["response"]["text"] == "a"


@pytest.mark.parametrize(
    ("agent", "host", "client"),
    [
        (b"OpenAI/Python 3.57.0", "127.0.0.1", "OpenAI/Python (local)"),
        (b"QwenCode/1.2 (linux)", "192.168.1.7", "QwenCode/1.2 (private)"),
        (b"curl/8", "8.8.8.8", "curl/8 (public)"),
        (b"curl/8", "::1", "curl/8 (local)"),
        (b"", "", "? (local)"),
        (b"x\x1b[31m" + b"y" * 99, "", "x[31m" + "y" * 58 + " (local)"),
    ],
)
def test_client_is_its_product_and_how_far_away_it_is(agent: bytes, host: str, client: str) -> None:
    assert client_of(agent, host) == client
