"""The routes that no model answers: lists, probes, metrics and swapd's own API."""

from __future__ import annotations

import asyncio
import json

from swapd.core.spec import RouteSpec
from swapd.errors import InstanceDied, InsufficientMemory, StartTimeout
from tests.component.fake_supervisor import Call, on_uvloop, until, world


async def hello(call: Call) -> None:
    await call.json({})


ROUTES = {
    "a": RouteSpec("a", ctx_tokens=24576, description="the big one"),
    "org/m x": RouteSpec("org/m x"),
    "hidden": RouteSpec("hidden", unlisted=True),
}


@on_uvloop
async def test_list_shows_every_model_with_status_and_context_and_asks_none() -> None:
    async with world(hello, ROUTES) as w:
        w.supervisor.states.update({"org/m x": "starting"})
        for path in ("/v1/models", "/models", "/v1/models?limit=1000"):
            listed = (await w.ask(path, method="GET")).json()
            assert listed["object"] == "list"
            assert [one["id"] for one in listed["data"]] == ["a", "org/m x"]
        big, other = listed["data"]
        assert big["status"] == {"value": "loaded"}
        assert (big["context_length"], big["meta"]["n_ctx"], big["description"]) == (24576, 24576, "the big one")
        assert other["status"] == {"value": "loading"}
        assert not w.upstream.calls and not w.supervisor.requested


@on_uvloop
async def test_one_model_by_its_id_raw_or_encoded() -> None:
    async with world(hello, ROUTES) as w:
        for path in ("org/m%20x", "org%2Fm%20x"):
            assert (await w.ask(f"/v1/models/{path}", method="GET")).json()["id"] == "org/m x"
        assert (await w.ask("/v1/models/hidden", method="GET")).status == 200
        for path in ("nope", "a/b"):
            reply = await w.ask(f"/v1/models/{path}", method="GET")
            assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")


@on_uvloop
async def test_probes() -> None:
    async with world(hello) as w:
        assert (await w.ask("/health", method="GET")).json() == {"status": "ok"}
        assert (await w.ask("/", method="GET")).status == 200
        assert (await w.ask("/", method="HEAD")).body == b""
        assert (await w.ask("/ready", method="GET")).status == 200
        w.supervisor.known = False
        reply = await w.ask("/ready", method="GET")
        assert (reply.status, reply.json()["error"]["code"]) == (503, "devices_unknown")
        assert (await w.ask("/health", method="GET")).status == 200


@on_uvloop
async def test_unknown_paths_and_methods_are_json() -> None:
    async with world(hello) as w:
        for path in ("/nope", "/v1/nope", "/api/nope", "/v1/messages/nope"):
            reply = await w.ask(path, {"model": "a"})
            assert (reply.status, "error" in reply.json()) == (404, True)
        for method, path in [("GET", "/v1/chat/completions"), ("POST", "/health"), ("GET", "/api/unload")]:
            reply = await w.ask(path, {} if method == "POST" else None, method=method)
            assert (reply.status, reply.json()["error"]["code"]) == (405, "method_not_allowed")
        assert "POST" in (await w.ask("/v1/messages", method="DELETE")).headers["allow"]


@on_uvloop
async def test_metrics_are_prometheus_and_contact_no_model() -> None:
    async with world(hello) as w:
        await w.chat()
        await w.chat("nope")
        calls = len(w.upstream.calls)
        text = (await w.ask("/metrics", method="GET")).body.decode()
        assert 'swapd_requests_total{model="a",status="200"} 1.0' in text
        assert 'swapd_requests_total{model="",status="404"} 1.0' in text
        assert 'swapd_vram_free_bytes{device="GPU-0",name="sim"} 1.572864e+010' in text.replace("e+10", "e+010")
        assert 'swapd_model_state{model="a",state="ready"} 1.0' in text
        assert 'swapd_model_loads_total{model="a"} 2.0' in text
        assert len(w.upstream.calls) == calls


@on_uvloop
async def test_status_has_the_promised_fields() -> None:
    async with world(hello, config_path="/etc/swapd.toml", config_error="line 3") as w:
        status = (await w.ask("/api/status", method="GET")).json()
        assert {"version", "uptime_s", "config", "devices", "ram", "models"} <= set(status)
        assert status["config"] == {"path": "/etc/swapd.toml", "error": "line 3"}


@on_uvloop
async def test_load_waits_for_ready_or_tells_the_error() -> None:
    async with world(hello, ROUTES) as w:
        reply = await w.ask("/api/models/org%2Fm%20x/load")
        assert (reply.status, reply.json()) == (200, {"id": "org/m x", "state": "ready"})
        w.supervisor.refusals["a"] = StartTimeout("a: no progress for 10m", stderr_tail="loading tensors")
        reply = await w.ask("/api/models/a/load")
        assert reply.status == 504
        assert "loading tensors" in reply.json()["error"]["message"]
        assert (await w.ask("/api/models/nope/load")).status == 404


@on_uvloop
async def test_load_without_waiting_is_202() -> None:
    async with world(hello) as w:
        w.supervisor.held.add("a")
        assert (await w.ask("/api/models/a/load?wait=0")).status == 202
        assert w.supervisor.calls == [("load", "a")]


@on_uvloop
async def test_insufficient_memory_names_needed_and_available_per_device() -> None:
    async with world(hello) as w:
        w.supervisor.refusals["a"] = InsufficientMemory(
            "no", needed={"GPU-0": (9 << 30) + 1}, available={"GPU-0": 5 << 30}
        )
        reply = await w.chat()
        assert reply.status == 503
        assert "retry-after" not in reply.headers
        error = reply.json()["error"]
        assert (error["needed_mib"], error["available_mib"]) == ({"GPU-0": 9217}, {"GPU-0": 5120})


@on_uvloop
async def test_unload_of_one_and_of_all() -> None:
    async with world(hello) as w:
        assert (await w.ask("/api/models/a/unload?force=1")).status == 200
        assert (await w.ask("/api/models/a/unload?wait=0")).status == 202
        reply = await w.ask("/api/unload")
        assert sorted(reply.json()["unloaded"]) == ["b", "org/model:q4 k"]
        assert w.supervisor.calls[0] == ("unload", "a", True, True)
        assert w.supervisor.calls[1] == ("unload", "a", False, False)
        assert (await w.ask("/api/unload?force=perhaps")).status == 400


@on_uvloop
async def test_one_that_cannot_be_unloaded_is_told_when_the_others_are_gone() -> None:
    async with world(hello) as w:
        unloaded = w.supervisor.unload

        async def unload(model: str, *, force: bool = False, wait: bool = True) -> None:
            if model == "a":
                raise InstanceDied("the process of 'a' cannot be killed", cause="lost")
            await asyncio.sleep(0.01)
            await unloaded(model, force=force, wait=wait)

        w.supervisor.unload = unload  # type: ignore[method-assign]
        for method, path in (("POST", "/api/unload"), ("GET", "/unload")):
            w.supervisor.states = dict.fromkeys(w.supervisor.states, "ready")
            reply = await w.ask(path, method=method)
            assert (reply.status, reply.json()["error"]["code"]) == (502, "instance_died")
            assert sorted(w.supervisor.states.values()) == ["ready", "stopped", "stopped"]
            w.supervisor.states["a"] = "lost"
            assert (await w.ask(path, method=method)).status == 200


@on_uvloop
async def test_what_goes_wrong_inside_is_json_too() -> None:
    async with world(hello) as w:
        w.supervisor.log = None  # type: ignore[assignment]
        reply = await w.ask("/api/models/a/logs", method="GET")
        assert (reply.status, reply.json()["error"]["code"]) == (500, "internal")
        assert reply.headers["content-type"] == "application/json"


@on_uvloop
async def test_logs_are_plain_text_and_can_be_followed() -> None:
    async with world(hello) as w:
        reply = await w.ask("/api/models/a/logs", method="GET")
        assert reply.body.decode() == "loading \ufffd\n"
        reply = await w.ask("/api/models/a/logs?follow=1", method="GET")
        assert reply.body == b"first\nsecond\n"


@on_uvloop
async def test_explain_says_what_a_request_would_do() -> None:
    async with world(hello, ROUTES) as w:
        told = (await w.ask("/api/explain/org/m%20x", method="GET")).json()
        assert (told["model"], told["action"]) == ("org/m x", "start")


@on_uvloop
async def test_events_begin_with_the_status_and_go_on_with_changes() -> None:
    async with world(hello) as w:
        client = await w.client()
        await client.send("/api/events", method="GET")
        assert (await client.head())[1]["content-type"].startswith("text/event-stream")
        first = await client.chunk()
        assert first.startswith(b"event: status\ndata: {")
        w.supervisor.news.put_nowait({"model": "a", "state": "draining"})
        assert json.loads((await client.chunk()).partition(b"data: ")[2]) == {"model": "a", "state": "draining"}
        client.close()
        await asyncio.sleep(0.02)


@on_uvloop
async def test_openapi_document_describes_the_own_api() -> None:
    async with world(hello) as w:
        paths = (await w.ask("/api/openapi.json", method="GET")).json()["paths"]
        assert {"/api/status", "/api/events", "/api/unload"} <= set(paths)


@on_uvloop
async def test_keep_alive_connection_serves_many_requests() -> None:
    async with world(hello) as w:
        client = await w.client()
        for path, method in [("/v1/models", "GET"), ("/api/status", "GET"), ("/nope", "POST"), ("/health", "GET")]:
            await client.send(path, b"x" if method == "POST" else None, method=method)
            assert (await client.reply()).whole
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)  # pipelined
        for _ in range(3):
            assert (await client.reply()).status == 200
        client.close()
        await until(lambda: not w.supervisor.open)
