"""Websockets to a model: the handshake is the client's own, then bytes go by unread until one side ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from swapd.core.spec import RouteSpec
from swapd.errors import StartFailed, Unloaded
from swapd.proxy.frames import GOING_AWAY
from tests.component.fake_supervisor import Call, Client, World, on_uvloop, until, world

HELLO = b"\x81\x05hello"
HANDSHAKE = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
    "sec-websocket-protocol": "chat",
}
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nServer: x\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
)


def speaks(then: Callable[[Call], Awaitable[None]], first: bytes = b"") -> Callable[[Call], Awaitable[None]]:
    async def accept(call: Call) -> None:
        call.writer.write(SWITCH + first)
        await then(call)
        call.writer.close()

    return accept


async def echo(call: Call) -> None:
    while data := await call.reader.read(65536):
        call.writer.write(data)
        await call.writer.drain()


async def opened(w: World, path: str = "/upstream/a/ws", more: Mapping[str, str] | None = None) -> Client:
    client = await w.client()
    await client.send(path, method="GET", headers={**HANDSHAKE, **(more or {})})
    return client


@on_uvloop
async def test_bytes_go_both_ways_and_the_lease_lasts_as_long_as_the_socket() -> None:
    async with world(speaks(echo, first=b"\x81\x02hi")) as w:
        client = await opened(w, "/upstream/a/ws?x=1")
        status, headers = await client.head()
        assert (status, headers["upgrade"], headers["connection"]) == (101, "websocket", "Upgrade")
        assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert headers["sec-websocket-protocol"] == "chat" and headers["x-request-id"] and "server" not in headers
        assert await client.reader.readexactly(4) == b"\x81\x02hi"
        call = w.upstream.calls[0]
        assert (call.target, call.headers["upgrade"], call.headers["connection"]) == ("/ws?x=1", "websocket", "Upgrade")
        assert call.headers["sec-websocket-key"] == HANDSHAKE["sec-websocket-key"]
        for size in (7, 100_000, 1_000_000):
            client.writer.write(bytes(size))
            assert await client.reader.readexactly(size) == bytes(size)
        assert len(w.supervisor.open) == 1
        client.close()
        await until(lambda: not w.supervisor.open)
        assert w.supervisor.closed == [("a", True, 0.0)]


@pytest.mark.parametrize("path", ["org/model:q4%20k", "org%2Fmodel%3Aq4%20k"])
def test_ids_with_slash_colon_and_space(path: str) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with world(speaks(echo)) as w:
            client = await opened(w, f"/upstream/{path}/ws")
            assert (await client.head())[0] == 101
            client.close()
            await until(lambda: w.supervisor.closed)
            assert w.supervisor.requested == ["org/model:q4 k"]

    scenario()


@on_uvloop
async def test_end_of_the_model_ends_the_client_after_its_last_bytes() -> None:
    async def says_bye(call: Call) -> None:
        call.writer.write(b"\x81\x03bye" + b"\x88\x02\x03\xe8")

    async with world(speaks(says_bye)) as w:
        client = await opened(w)
        await client.head()
        assert await client.reader.read() == b"\x81\x03bye\x88\x02\x03\xe8"
        client.close()
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_hang_up_of_the_client_ends_the_model_side() -> None:
    ended = asyncio.Event()

    async def listens(call: Call) -> None:
        await call.hung_up()
        ended.set()

    async with world(speaks(listens)) as w:
        client = await opened(w)
        await client.head()
        client.close()
        await asyncio.wait_for(ended.wait(), 3)
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_unload_ends_the_socket_with_a_close_frame() -> None:
    async with world(speaks(echo)) as w:
        client = await opened(w)
        await client.head()
        client.writer.write(HELLO)
        assert await client.reader.readexactly(7) == HELLO
        w.supervisor.restart("a", Unloaded("a was unloaded"))
        assert await client.reader.read() == GOING_AWAY
        client.close()
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_unload_in_the_middle_of_a_frame_puts_nothing_into_it() -> None:
    async with world(speaks(echo, first=HELLO[:4])) as w:
        client = await opened(w)
        await client.head()
        assert await client.reader.readexactly(4) == HELLO[:4]
        w.supervisor.restart("a", Unloaded("a was unloaded"))
        assert await client.reader.read() == b""
        client.close()
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_socket_waits_for_its_model_and_leaves_the_queue_with_its_client() -> None:
    async with world(speaks(echo)) as w:
        w.supervisor.held.add("a")
        stays, leaves = await opened(w), await opened(w)
        await until(lambda: len(w.supervisor.waiting) == 2)
        leaves.close()
        await until(lambda: len(w.supervisor.waiting) == 1)
        w.supervisor.let_go("a")
        assert (await stays.head())[0] == 101
        stays.close()
        await until(lambda: not w.supervisor.open)


@on_uvloop
async def test_failures_before_the_upgrade_are_answers_as_of_any_request() -> None:
    async def refuses(call: Call) -> None:
        await call.json({"error": "no websockets here"}, "404 Not Found")

    async with world(refuses, hosts=()) as w:
        client = await opened(w)
        reply = await client.reply()
        assert (reply.status, reply.json()) == (404, {"error": "no websockets here"})
        client.close()
        client = await opened(w, "/upstream/nope/ws")
        assert (await client.reply()).status == 404
        await client.send("/health", method="GET")  # the connection is still HTTP
        assert (await client.reply()).json() == {"status": "ok"}
        client.close()
        w.supervisor.refusals["a"] = StartFailed("a did not start", stderr_tail="out of memory")
        client = await opened(w)
        assert (await client.reply()).status == 502
        client.close()


@on_uvloop
async def test_browser_rule_and_keys_hold_for_websockets() -> None:
    async with world(speaks(echo), api_keys=("k",)) as w:
        for more, status in (
            ({"origin": "https://evil.example"}, 403),
            ({}, 401),
            ({"authorization": "Bearer k"}, 101),
        ):
            client = await opened(w, more=more)
            assert (await client.head())[0] == status
            client.close()
        await until(lambda: not w.supervisor.open)
        assert w.supervisor.requested == ["a"]
        assert "authorization" not in w.upstream.calls[0].headers


@on_uvloop
async def test_key_of_the_model_itself_is_sent() -> None:
    async with world(speaks(echo), {"a": RouteSpec("a", api_key="child")}) as w:
        client = await opened(w)
        await client.head()
        assert w.upstream.calls[0].headers["authorization"] == "Bearer child"
        client.close()


@on_uvloop
async def test_other_paths_and_other_upgrades_are_ordinary_requests() -> None:
    async def hello(call: Call) -> None:
        await call.json({"hello": "a"})

    async with world(hello) as w:
        client = await opened(w, "/v1/realtime")
        assert (await client.reply()).status == 404
        client.close()
        client = await w.client()
        for _ in range(2):
            h2c = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}
            await client.send("/v1/chat/completions", {"model": "a"}, headers=h2c)
            assert (await client.reply()).json() == {"hello": "a"}
        client.close()


@on_uvloop
async def test_upgrade_that_nobody_asked_for_is_a_broken_answer() -> None:
    async with world(speaks(echo)) as w:
        assert (await w.chat()).status == 502


@on_uvloop
async def test_slow_client_holds_the_model_back() -> None:
    sent = 0

    async def floods(call: Call) -> None:
        nonlocal sent
        call.writer.write(b"\x82\x7f" + (400 * 65536).to_bytes(8))
        for _ in range(400):
            call.writer.write(bytes(65536))
            await call.writer.drain()
            sent += 65536

    async with world(speaks(floods)) as w:
        client = await opened(w)
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 400 * 65536
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while await client.reader.read(1 << 20):
            pass
        assert sent == 400 * 65536
        client.close()
