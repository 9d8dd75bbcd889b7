"""Signals and sockets, with swapd's server as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from swapd.proxy.http import HttpProtocol
from swapd.proxy.serve import server_config
from tests.component.fake_supervisor import Call, Client, StubUpstream, on_uvloop, until

CHAT = "/v1/chat/completions"
ASK = {"model": "a", "stream": True}


@asynccontextmanager
async def served(
    folder: Path, stub: StubUpstream, drain_s: float, listen: str = "0"
) -> AsyncIterator[tuple[Process, str]]:
    """The process, and the URL that it told."""
    path = str(folder / "up.sock")
    upstream = await asyncio.start_unix_server(stub.accept, path)
    command = ["-m", "tests.component.fake_supervisor", listen, path, str(drain_s)]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await stub.close()
        upstream.close()


async def connected(url: str) -> Client:
    if url.startswith("/"):
        return Client(*await asyncio.open_unix_connection(url))
    return Client(*await asyncio.open_connection("127.0.0.1", urlsplit(url).port))


async def ended_within(process: Process, seconds: float) -> float:
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        await process.wait()
    return time.monotonic() - started


async def short_stream(call: Call) -> None:
    await call.begin_stream()
    for number in range(10):
        await call.event(str(number))
        await asyncio.sleep(0.05)
    await call.end_stream()


async def endless_stream(call: Call) -> None:
    await call.begin_stream()
    while True:
        await call.event("x")
        await asyncio.sleep(0.02)


def test_first_signal_lets_running_streams_end_and_stops_children_before_the_server_closes(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with served(tmp_path, StubUpstream(short_stream), 5.0) as (process, url):
            running, late = await connected(url), await connected(url)
            await running.send(CHAT, ASK)
            await running.head()
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            assert await process.stdout.readline() == b"shutdown\n"
            await late.send(CHAT, ASK)
            status, headers = await late.head()
            assert (status, headers["retry-after"]) == (503, "5")
            body = b""
            while chunk := await running.chunk():
                body += chunk
            assert body.count(b"data:") == 10
            assert await process.stdout.readline() == b"children stopped\n"
            await ended_within(process, 3)
            assert process.returncode == 0
            running.close()
            late.close()

    scenario()


def test_stream_that_does_not_end_cannot_hold_the_shutdown(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with served(tmp_path, StubUpstream(endless_stream), 0.3) as (process, url):
            client, idle, events = await connected(url), await connected(url), await connected(url)
            await client.send(CHAT, ASK)
            await events.send("/api/events", method="GET")
            process.send_signal(signal.SIGINT)
            reply = await client.reply()
            assert not reply.whole
            assert b"swapd is stopping" in reply.body
            await ended_within(process, 4)
            assert process.returncode == 0
            for one in (client, idle, events):
                one.close()

    scenario()


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        async with served(tmp_path, StubUpstream(endless_stream), 60.0) as (process, url):
            client = await connected(url)
            await client.send(CHAT, ASK)
            await client.head()
            process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            assert await process.stdout.readline() == b"shutdown\n"
            process.send_signal(signal.SIGTERM)
            assert await process.stdout.readline() == b"shutdown now\n"
            await ended_within(process, 1.5)
            client.close()

    scenario()


def test_listens_at_a_socket_path_and_takes_it_away(tmp_path: Path) -> None:
    @on_uvloop
    async def scenario() -> None:
        path = tmp_path / "swapd.sock"
        async with served(tmp_path, StubUpstream(short_stream), 1.0, str(path)) as (process, url):
            assert url == str(path)
            client = await connected(url)
            await client.send("/health", method="GET")
            assert (await client.reply()).status == 200
            client.close()
            process.send_signal(signal.SIGTERM)
            await ended_within(process, 3)
            assert not path.exists()

    scenario()


# our protocol beside uvicorn's


async def small_app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    told = f"{scope['method']} {scope['path']} {scope['raw_path'].decode()} {scope['query_string'].decode()} ".encode()
    kind = scope["path"].rpartition("/")[2]
    status = {"empty": 204, "unchanged": 304}.get(kind, 200)
    headers = [(b"x-own", b"1")]
    if kind == "sized":
        headers.append((b"content-length", b"%d" % len(told + body)))
    if kind == "closing":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if status == 200:
        await send({"type": "http.response.body", "body": told, "more_body": True})
    if kind != "cut":
        await send({"type": "http.response.body", "body": body if status == 200 else b""})


REQUESTS = [
    b"GET /sized HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /a%2Fb%20c/sized?x=%201&y HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://x/p/sized?q HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /chunked HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /chunked HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
    b"POST /sized HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
    b"HEAD /sized HTTP/1.1\r\nhost: x\r\n\r\n",
    b"HEAD /chunked HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /empty HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /unchanged HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /closing HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /sized HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"GET /sized HTTP/1.0\r\n\r\n",
    b"GET /cut HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /sized HTTP/1.1\r\nhost: x\r\n\r\n" * 3,
    b"no http at all\r\n\r\n",
]


def test_our_http_protocol_answers_as_uvicorns_does() -> None:
    @on_uvloop
    async def scenario() -> None:
        answers = [await _answers_of(protocol) for protocol in (HttpToolsProtocol, HttpProtocol)]
        for request, theirs, ours in zip(REQUESTS, *answers, strict=True):
            assert _normal(ours) == _normal(theirs), request

    scenario()


def test_connection_is_closed_when_it_has_been_idle_and_never_while_it_is_used() -> None:
    @on_uvloop
    async def scenario() -> None:
        async with _serving(HttpProtocol, keep_alive_s=0.1) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ask = b"POST /sized HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
            for first, second in ((ask, b"hi"), (ask[:9], ask[9:] + b"hi"), (ask + b"h", b"i")):
                writer.write(first)
                await asyncio.sleep(0.25)  # longer than it may be idle
                writer.write(second)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await reader.readuntil(b"hi")
            assert server.server_state.connections
            async with asyncio.timeout(10):
                assert await reader.read() == b"", "nobody asks any more"
            await until(lambda: not server.server_state.connections)
            writer.close()

    scenario()


@asynccontextmanager
async def _serving(protocol: type, keep_alive_s: float = 120) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """``small_app`` behind a protocol, and its port."""
    config = server_config(small_app)
    config.http, config.port, config.timeout_keep_alive = protocol, 0, keep_alive_s  # type: ignore[assignment]
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        for listener in server.servers:
            listener.close()
    await until(lambda: not server.server_state.connections)


async def _answers_of(protocol: type) -> list[bytes]:
    async with _serving(protocol) as (_, port):
        return await asyncio.gather(*(_answer(port, request) for request in REQUESTS))


async def _answer(port: int, request: bytes) -> bytes:
    """All that comes, and whether the connection was closed then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    try:
        async with asyncio.timeout(1):
            while data := await reader.read(65536):
                answer += data
        answer += b"<closed>"
    except TimeoutError:
        answer += b"<open>"
    writer.close()
    return answer


def _normal(answer: bytes) -> list[bytes]:
    """Header lines in any order."""
    return sorted(line for line in answer.split(b"\r\n") if not line.startswith(b"date:"))
