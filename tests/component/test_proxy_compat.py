"""What was written for llama-swap, llama.cpp's router or Ollama goes on working."""

from __future__ import annotations

import asyncio

import pytest

from swapd.core.spec import ModelFacts, RouteSpec
from swapd.errors import Refused
from swapd.proxy.compat.ollama import human_count
from tests.component.fake_supervisor import Call, on_uvloop, until, world

FACTS = ModelFacts(
    path="/m/q.gguf",
    command=("/opt/llama-server", "-m", "/m/q.gguf", "--api-key", "secret", "-hft", "secret", "-e", "K_TOKEN=secret"),
    name="Qwen",
    architecture="qwen3",
    quantization="Q4_K_M",
    size_bytes=2_500_000_000,
    modified_at_s=1_700_000_000.0,
    parameters=4_022_468_096,
    trained_ctx_tokens=40960,
    has_chat_template=True,
    chat_template="{{ tools }}<think>",
    tools=True,
    reasoning=True,
    vision=True,
    slots=4,
    header={"general.architecture": "qwen3", "qwen3.context_length": 40960, "general.license": "apache-2.0"},
)
ROUTES = {
    "a": RouteSpec("a", ctx_tokens=24576, description="the big one", idle_timeout_s=900.0, facts=FACTS),
    "org/m x": RouteSpec("org/m x"),
    "hidden": RouteSpec("hidden", unlisted=True),
}


async def hello(call: Call) -> None:
    await call.json({"hello": 1})


# llama-swap


@on_uvloop
async def test_running_lists_what_is_not_stopped() -> None:
    async with world(hello, ROUTES) as w:
        w.supervisor.states.update({"a": "draining", "org/m x": "starting", "hidden": "failed"})
        first, second = (await w.ask("/running", method="GET")).json()["running"]
        assert first == {
            "model": "a",
            "state": "ready",
            "cmd": "/opt/llama-server -m /m/q.gguf --api-key '[removed]' -hft '[removed]' -e 'K_TOKEN=[removed]'",
            "proxy": "",
            "ttl": 900,
            "name": "a",
            "description": "the big one",
        }
        assert (second["model"], second["state"]) == ("org/m x", "starting")


@on_uvloop
async def test_unload_of_all_and_of_one_as_llama_swap_has_them() -> None:
    async with world(hello, ROUTES) as w:
        w.supervisor.states["hidden"] = "stopped"
        assert (await w.ask("/api/models/unload/org%2Fm%20x")).body == b"OK"
        assert w.supervisor.calls == [("unload", "org/m x", False, True)]
        assert (await w.ask("/api/models/unload/nope")).json()["error"]["code"] == "model_not_found"
        assert (await w.ask("/unload", method="GET")).body == b"OK"
        assert w.supervisor.calls[1:] == [("unload", "a", False, True)]
        assert (await w.ask("/api/models/unload")).json() == {"msg": "ok"}
        assert (await w.ask("/unload", method="HEAD")).status == 405


@on_uvloop
async def test_logs_of_all_models_and_as_they_come() -> None:
    async with world(hello, ROUTES) as w:
        reply = await w.ask("/logs", method="GET")
        assert reply.headers["content-type"].startswith("text/plain")
        assert reply.body.decode().startswith("==> a <==\nloading \ufffd\n==> org/m x <==\n")
        reply = await w.ask("/logs/stream/org%2Fm%20x", method="GET")
        assert reply.whole and reply.body == b"first\nsecond\n"
        reply = await w.ask("/logs/stream", method="GET")
        assert reply.whole and reply.body.count(b"second\n") == 3
        assert (await w.ask("/logs/stream/nope", method="GET")).status == 404


@on_uvloop
async def test_follower_of_logs_that_leaves_is_let_go() -> None:
    ended: list[str] = []

    async with world(hello, ROUTES) as w:

        async def endless(model: str):  # type: ignore[no-untyped-def]
            try:
                yield b"first\n"
                await asyncio.sleep(60)
            finally:
                ended.append(model)

        w.supervisor.follow = endless  # type: ignore[method-assign]
        client = await w.client()
        await client.send("/logs/stream", method="GET")
        await client.head()
        assert await client.chunk() == b"first\n"
        client.close()
        await until(lambda: len(ended) == 3)


# llama.cpp's router


@on_uvloop
async def test_load_and_unload_as_llama_cpps_router_has_them() -> None:
    async with world(hello, ROUTES) as w:
        w.supervisor.states["org/m x"] = "stopped"
        w.supervisor.held.add("org/m x")
        assert (await w.ask("/models/load", {"model": "org/m x"})).json() == {"success": True}
        assert w.supervisor.calls == [("load", "org/m x")]
        reply = await w.ask("/models/load", {"model": "a"})
        assert (reply.status, reply.json()["error"]["message"]) == (400, "model is already running")
        reply = await w.ask("/models/unload", {"model": "org/m x"})
        assert (reply.status, reply.json()["error"]["message"]) == (400, "model is not running")
        assert (await w.ask("/models/unload", {"model": "a"})).json() == {"success": True}
        assert w.supervisor.calls[-1] == ("unload", "a", False, False)
        assert (await w.ask("/models/load", {"model": "nope"})).status == 404
        assert (await w.ask("/models/load", b"{")).status == 400
        w.supervisor.refusals["org/m x"] = Refused("a is in use")
        assert (await w.ask("/models/load", {"model": "org/m x"})).status == 409
        assert not w.supervisor.open


@on_uvloop
async def test_list_has_what_clients_of_the_router_read() -> None:
    async with world(hello, ROUTES) as w:
        first = (await w.ask("/models", method="GET")).json()["data"][0]
        assert first["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
        assert first["status"] == {"value": "loaded"} and first["aliases"] == []


# Ollama


@on_uvloop
async def test_ollama_lists_models_and_shows_what_they_can_do() -> None:
    async with world(hello, ROUTES) as w:
        assert (await w.ask("/api/version", method="GET")).json()["version"].count(".") == 2
        first, other = (await w.ask("/api/tags", method="GET")).json()["models"]
        assert (first["name"], first["model"], first["size"]) == ("a", "a", 2_500_000_000)
        assert first["modified_at"].startswith("2023-11-14T22:13:20") and len(first["digest"]) == 64
        assert first["details"] == {
            "parent_model": "",
            "format": "gguf",
            "family": "qwen3",
            "families": ["qwen3"],
            "parameter_size": "4.0B",
            "quantization_level": "Q4_K_M",
        }
        assert other["name"] == "org/m x" and other["details"]["family"] == ""
        shown = (await w.ask("/api/show", {"model": "a:latest"})).json()
        assert shown["capabilities"] == ["completion", "vision", "tools", "thinking"]
        assert shown["model_info"]["qwen3.context_length"] == 24576  # what a request can have here
        assert shown["template"] == "{{ tools }}<think>" and shown["license"] == "apache-2.0"
        assert (await w.ask("/api/show", {"name": "org/m x"})).json()["capabilities"] == ["completion"]
        reply = await w.ask("/api/show", {"model": "nope"})
        assert reply.status == 404 and isinstance(reply.json()["error"], str)
        assert (await w.ask("/api/show", {})).status == 400
        assert not w.supervisor.requested and not w.upstream.calls


@on_uvloop
async def test_ollama_ps_shows_loaded_models_only() -> None:
    async with world(hello, ROUTES) as w:
        w.supervisor.states.update({"org/m x": "starting", "hidden": "stopped"})
        (only,) = (await w.ask("/api/ps", method="GET")).json()["models"]
        assert (only["name"], only["size_vram"], only["context_length"]) == ("a", 9 << 20, 24576)
        assert only["expires_at"] > "2026"


@pytest.mark.parametrize(("count", "text"), [(134_515_008, "134.52M"), (8_030_261_248, "8.0B"), (0, ""), (9, "9")])
def test_counts_as_ollama_writes_them(count: int, text: str) -> None:
    assert human_count(count) == text


# all of them

ADMIN = [
    ("GET", "/unload"),
    ("GET", "/logs"),
    ("GET", "/logs/stream"),
    ("GET", "/logs/stream/a"),
    ("POST", "/api/models/unload"),
    ("POST", "/api/models/unload/a"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
]
OPEN = [
    ("GET", "/running"),
    ("GET", "/models"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("POST", "/api/show"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN + OPEN)
def test_keys_and_the_browser_rule_hold_on_every_route(method: str, path: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello, ROUTES, api_keys=("user",), admin_keys=("admin",)) as w:

            async def asked(**headers: str) -> int:
                return (
                    await w.ask(path, {"model": "a"} if method == "POST" else None, method=method, headers=headers)
                ).status

            assert await asked() == 401
            assert await asked(authorization="Bearer admin", origin="https://evil.example") == 403
            assert await asked(authorization="Bearer admin", sec_fetch_site="cross-site") == 403
            assert await asked(authorization="Bearer user") == (403 if (method, path) in ADMIN else 200)
            assert not w.supervisor.calls

    scenario()
