"""Keys, the browser rule, CORS and request ids, on the real app."""

from __future__ import annotations

import base64

import pytest

from swapd.core.spec import RouteSpec
from tests.component.fake_supervisor import Call, on_uvloop, world

KEYS = {"api_keys": ("ours", "second"), "admin_keys": ("boss",)}


async def hello(call: Call) -> None:
    await call.json({}, extra="Access-Control-Allow-Origin: http://child\r\n")


async def streamed(call: Call) -> None:
    await call.begin_stream()
    await call.event("x")
    await call.end_stream()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer ours"},
        {"authorization": "bearer second"},
        {"x-api-key": "ours"},
        {"authorization": basic("anyone", "ours")},
        {"authorization": basic("ours", "")},
        {"authorization": "Bearer boss"},
        {"authorization": "Bearer wrong", "x-api-key": "ours"},
    ],
)
def test_each_way_to_give_a_key_is_taken(headers: dict[str, str]) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello, **KEYS) as w:
            assert (await w.chat(**headers)).status == 200

    scenario()


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": "wrong"}, {"authorization": "Basic !"}, {"authorization": "Bearer "}]
)
def test_no_key_or_a_wrong_one_is_401_on_every_route_but_the_probes(headers: dict[str, str]) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello, **KEYS) as w:
            reply = await w.chat(**headers)
            assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"].startswith("Bearer")
            for path in ("/", "/v1/models", "/metrics", "/api/status", "/upstream/a/x", "/nothing"):
                assert (await w.ask(path, method="GET", headers=headers)).status == 401
            for path in ("/health", "/ready"):
                assert (await w.ask(path, method="GET", headers=headers)).status == 200
            assert not w.supervisor.requested

    scenario()


@on_uvloop
async def test_load_unload_and_logs_need_an_admin_key_where_there_are_any() -> None:
    async with world(hello, {"org/m": RouteSpec("org/m")}, **KEYS) as w:
        orders = [
            ("POST", "/api/models/org/m/load"),
            ("POST", "/api/models/org%2Fm/unload"),
            ("POST", "/api/unload"),
            ("GET", "/api/models/org/m/logs"),
        ]
        for method, path in orders:
            refused = await w.ask(path, method=method, headers={"x-api-key": "ours"})
            assert (refused.status, "admin_keys" in refused.json()["error"]["message"]) == (403, True)
            assert (await w.ask(path, method=method)).status == 401
            assert (await w.ask(path, method=method, headers={"x-api-key": "boss"})).status == 200
        assert (await w.ask("/api/status", method="GET", headers={"x-api-key": "ours"})).status == 200


@on_uvloop
async def test_path_with_a_control_character_goes_nowhere() -> None:
    """Routes that end in ``$`` take a newline more than the rules for keys do."""
    async with world(hello, capture=True, **KEYS) as w:
        await w.chat(**{"x-api-key": "ours"})
        for method, path in (
            ("GET", "/api/captures%0A"),
            ("GET", "/api/models/a/logs%0A"),
            ("POST", "/api/models/a/unload%0A"),
            ("POST", "/api/unload%0a"),
            ("POST", "/api/reload%0A"),
            ("PUT", "/api/profile%0A"),
            ("GET", "/upstream/a/x%00"),
        ):
            for key in ("ours", "boss"):
                reply = await w.ask(path, {"profile": None}, method=method, headers={"x-api-key": key})
                assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found"), path
        assert not w.supervisor.calls


@on_uvloop
async def test_every_order_of_the_own_api_needs_an_admin_key() -> None:
    async with world(hello, {"m": RouteSpec("m")}, **KEYS) as w:
        document = (await w.ask("/api/openapi.json", method="GET", headers={"x-api-key": "ours"})).json()
        orders = [(m, path) for path, methods in document["paths"].items() for m in methods if m != "get"]
        assert len(orders) >= 6
        for method, path in orders:
            reply = await w.ask(path.format(model="m", rid="r"), method=method.upper(), headers={"x-api-key": "ours"})
            assert reply.status == 403, (method, path)


@on_uvloop
async def test_without_keys_it_is_open_and_admin_keys_alone_guard_orders_only() -> None:
    async with world(hello, admin_keys=("boss",)) as w:
        assert (await w.chat()).status == 200
        assert (await w.ask("/api/models/a/load")).status == 401


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example", "https://127.0.0.1.nip.io"]
)
def test_page_of_another_site_may_do_nothing(origin: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello) as w:
            for method, path in [
                ("POST", "/v1/chat/completions"),
                ("GET", "/api/status"),
                ("GET", "/"),
                ("GET", "/health"),
            ]:
                reply = await w.ask(
                    path, {"model": "a"} if method == "POST" else None, method=method, headers={"origin": origin}
                )
                assert reply.status == 403
                assert "cors_origins" in reply.json()["error"]["message"]
                assert "access-control-allow-origin" not in reply.headers
            preflight = await w.ask("/v1/chat/completions", method="OPTIONS", headers={"origin": origin})
            assert preflight.status == 403
            assert not w.supervisor.requested

    scenario()


@on_uvloop
async def test_cross_site_request_without_an_origin_is_refused() -> None:
    """An <img> or a link on another page: no Origin, but the browser says so."""
    async with world(hello) as w:
        cross = {"sec-fetch-site": "cross-site"}
        assert (await w.ask("/api/status", method="GET", headers=cross)).status == 403
        assert (await w.ask("/api/status", method="GET", headers={"sec-fetch-site": "none"})).status == 200
        allowed = {**cross, "origin": "http://localhost:3000"}
        assert (await w.ask("/api/status", method="GET", headers=allowed)).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("192.168.1.5:8080", 200),
        ("box.example", 200),
        ("evil.example:8080", 403),
        ("[bad", 403),
    ],
)
def test_host_that_is_not_ours_is_refused_when_bound_to_loopback(host: str, status: int) -> None:
    """DNS rebinding: a page's own name resolves to 127.0.0.1."""

    @on_uvloop
    async def scenario() -> None:
        async with world(hello, hosts=("box.example",)) as w:
            client = await w.client()
            client.writer.write(f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            reply = await client.reply()
            assert reply.status == status
            if status == 403:
                assert "[server] hosts" in reply.json()["error"]["message"]
            client.close()

    scenario()


@on_uvloop
async def test_any_host_is_answered_beyond_loopback() -> None:
    async with world(hello, bound_to_loopback=False) as w:
        client = await w.client()
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: proxy.example\r\n\r\n")
        assert (await client.reply()).status == 200
        client.close()


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://[::1]:5", "app://obsidian.md", "tauri://localhost", "http://x"]
)
def test_preflight_needs_no_key_and_wakes_no_model(origin: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(hello, cors_origins=("http://x",), **KEYS) as w:
            asked = "authorization,x-stainless-os"
            headers = {
                "origin": origin,
                "access-control-request-headers": asked,
                "access-control-request-method": "POST",
            }
            for path in ("/v1/chat/completions", "/upstream/a/v1/x", "/api/models/a/load"):
                reply = await w.ask(path, method="OPTIONS", headers=headers)
                assert reply.status == 204
                assert reply.headers["access-control-allow-origin"] == origin
                assert reply.headers["access-control-allow-headers"] == asked
                assert "POST" in reply.headers["access-control-allow-methods"]
            assert not w.supervisor.requested

    scenario()


@on_uvloop
async def test_errors_and_streams_carry_the_same_cors_headers_once() -> None:
    async with world(streamed) as w:
        page = {"origin": "http://localhost:3000"}
        for path, body in (
            ("/v1/chat/completions", {"model": "a", "stream": True}),
            ("/v1/chat/completions", {"model": "nope"}),
            ("/nothing", {}),
            ("/api/models/nope/load", None),
        ):
            reply = await w.ask(path, body, headers=page)
            assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert reply.headers["x-request-id"]
    async with world(hello) as w:
        client = await w.client()
        await client.send("/v1/chat/completions", {"model": "a"}, headers=page)
        raw = await client.reader.readuntil(b"\r\n\r\n")
        assert raw.lower().count(b"access-control-allow-origin") == 1
        client.close()


@on_uvloop
async def test_every_answer_has_its_own_request_id() -> None:
    async with world(hello) as w:
        seen = set()
        for method, path in [
            ("POST", "/v1/chat/completions"),
            ("GET", "/api/status"),
            ("GET", "/no"),
            ("OPTIONS", "/"),
            ("HEAD", "/"),
        ]:
            reply = await w.ask(
                path, {"model": "a"} if method == "POST" else None, method=method, headers={"x-request-id": "theirs"}
            )
            seen.add(reply.headers["x-request-id"])
        assert len(seen) == 5 and "theirs" not in seen


@on_uvloop
async def test_bug_of_ours_is_a_500_with_its_id() -> None:
    async with world(hello) as w:
        w.supervisor.on_request = lambda model: 1 / 0  # type: ignore[assignment, return-value]
        reply = await w.chat()
        assert (reply.status, reply.json()["error"]["code"]) == (500, "internal")
        assert reply.headers["x-request-id"]
