"""CPU of a relay per request and per streamed chunk, against a bare splice on the same machine in the same run.

    python -m benchmarks.relay [--runs 5] [--factory module:function]

Two loads: JSON requests of 2 KB by 16 clients, and streams of 200 chunks by 32
clients. Each relay is a process of its own whose CPU time the kernel tells;
upstream (on a unix socket) and clients are other processes. The factory builds
the app from the upstream's socket path: by default the real app over a fake
supervisor. ``LLAMA_SWAP_BIN`` is run beside if it is set.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

REQUESTS, STREAMS, CHUNKS = 1000, 32, 200
JSON_CLIENTS, STREAM_CLIENTS = 16, 32
CHUNK_PAUSE_S = 0.03
THINK_S = 0.05
TARGET_REQUEST, TARGET_CHUNK = 3.5, 1.5
KEY = "local-key"
_TICKS = os.sysconf("SC_CLK_TCK")


# upstream


class Upstream(asyncio.Protocol):
    """Answers a JSON request at once, a stream with a chunk every 2 ms."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.seen = transport, b""

    def data_received(self, data: bytes) -> None:
        self.seen += data
        head, found, body = self.seen.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < size:
            return
        self.seen = body[size:]
        if b'"stream": true' in body[:size]:
            self.left = CHUNKS
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nServer: stub\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            self._chunk()
        else:
            asyncio.get_running_loop().call_later(THINK_S * random.uniform(0.5, 1.5), self._answer)

    def _answer(self):
        self.transport.write(JSON_ANSWER)

    def _chunk(self) -> None:
        if self.transport.is_closing():
            return
        if self.left:
            self.left -= 1
            self.transport.write(STREAM_CHUNK)
            asyncio.get_running_loop().call_later(CHUNK_PAUSE_S * random.uniform(0.5, 1.5), self._chunk)
        else:
            self.transport.write(b"0\r\n\r\n")


_EVENT = {
    "choices": [{"finish_reason": None, "index": 0, "delta": {"content": " word"}}],
    "created": 1764450000,
    "id": "chatcmpl-5bN0mYq2Jt4oPz8wXcVbQ1rL7uKd9eHf",
    "model": "a",
    "system_fingerprint": "b11434-0123456",
    "object": "chat.completion.chunk",
}
_DATA = b"data: " + json.dumps(_EVENT).encode() + b"\n\n"
STREAM_CHUNK = b"%x\r\n%s\r\n" % (len(_DATA), _DATA)
_ANSWER = json.dumps({"id": "x", "choices": [{"message": {"content": "word " * 80}}], "usage": {"total_tokens": 90}}).encode()
JSON_ANSWER = (
    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
)


async def serve_upstream(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(Upstream, path, backlog=512)
    await server.serve_forever()


# load


def request(stream: bool) -> bytes:
    body = {"model": "a", "stream": stream, "messages": [{"role": "user", "content": "word " * 390}]}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json\r\n"
        "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: OpenAI/Python 3.57.0\r\n"
        "X-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class LoadClient(asyncio.Protocol):
    """Sends its request again and again; an answer ends with its last byte as told by length or last chunk."""

    def __init__(self, data: bytes, left: list[int], done: asyncio.Future[None], stream: bool) -> None:
        self.data, self.left, self.done, self.stream = data, left, done, stream
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._next()

    def _next(self) -> None:
        if self.left[0] > 0:
            self.left[0] -= 1
            self.transport.write(self.data)
        else:
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.stream:
            self.seen = (self.seen + data)[-5:]
            if self.seen == b"0\r\n\r\n":
                self.seen = b""
                self._next()
            return
        self.seen += data
        head, found, body = self.seen.partition(b"\r\n\r\n")
        if found:
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(self.seen.decode())
            lowered = head.lower()
            if b"content-length:" in lowered:
                whole = len(body) >= int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])
            else:
                whole = body.endswith(b"0\r\n\r\n")
            if whole:
                self.seen = b""
                self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed by the relay"))


async def drive(port: int, clients: int, count: int, *, stream: bool) -> None:
    loop = asyncio.get_running_loop()
    left = [count]
    ends = [loop.create_future() for _ in range(clients)]
    data = request(stream)
    for done in ends:
        await loop.create_connection(lambda done=done: LoadClient(data, left, done, stream), "127.0.0.1", port)
    await asyncio.gather(*ends)


# relays


def build_fake(upstream: str) -> object:
    """The real app with every option on, over a supervisor without a scheduler."""
    from tests.component.fake_supervisor import FakeSupervisor

    from swapd.core.spec import RouteSpec
    from swapd.proxy.app import build_app
    from swapd.proxy.settings import ProxySettings
    from swapd.supervisor.ports import Upstream as Where

    supervisor = FakeSupervisor({"a": Where(path=upstream)})
    supervisor.requested = supervisor.closed = _Forgetful()
    settings = ProxySettings(api_keys=(KEY, "another-key"), admin_keys=("admin-key",))
    return build_app(supervisor, {"a": RouteSpec("a")}, settings)


class _Forgetful(list):
    def append(self, item: object) -> None:
        pass


async def serve_app(upstream: str, port: int, factory: str) -> None:
    import uvicorn

    from swapd.proxy.serve import calm_collector, server_config

    module, _, function = factory.partition(":")
    made = getattr(importlib.import_module(module), function)(upstream)
    app = await made if isinstance(made, Awaitable) else made
    config = server_config(app)
    config.host, config.port = "127.0.0.1", port
    calm_collector()
    await uvicorn.Server(config).serve()


@contextmanager
def process(*args: str) -> Iterator[int]:
    """A child of this file; its pid."""
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.relay", *args], stdin=subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


@contextmanager
def llama_swap(upstream: str, port: int) -> Iterator[int]:
    """llama-swap in front of the same upstream, through a TCP port (it knows no sockets)."""
    raise NotImplementedError


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, from the scheduler's own clock (nanoseconds, unlike ``stat``)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def wait_for(port: int) -> None:
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens at {port}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def measure(pid: int, load: Callable[[], None]) -> float:
    before = cpu_s(pid)
    load()
    return cpu_s(pid) - before


def run_once(pid: int, port: int) -> tuple[float, float]:
    """Microseconds per request and per chunk."""
    per_request = measure(pid, lambda: uvloop.run(drive(port, JSON_CLIENTS, REQUESTS, stream=False))) / REQUESTS
    seconds = measure(pid, lambda: uvloop.run(drive(port, STREAM_CLIENTS, STREAMS, stream=True)))
    return per_request * 1e6, seconds / STREAMS / CHUNKS * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--factory", default="benchmarks.relay:build_fake")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "SOCKET", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, path, port = options.serve
        return serve_child(kind, path, int(port), options.factory)
    return compare(options.runs, options.factory, as_json=options.json)


def serve_child(kind: str, path: str, port: int, factory: str) -> int:
    if kind == "upstream":
        uvloop.run(serve_upstream(path))
    elif kind == "splice":
        from benchmarks.splice import serve_splice

        uvloop.run(serve_splice(path, port))
    else:
        uvloop.run(serve_app(path, port, factory))
    return 0


def compare(runs: int, factory: str, *, as_json: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/up.sock"
        splice_port, app_port = free_port(), free_port()
        with (
            process("--serve", "upstream", path, "0"),
            process("--serve", "splice", path, str(splice_port)) as splice,
            process("--factory", factory, "--serve", "app", path, str(app_port)) as app,
        ):
            wait_for(splice_port)
            wait_for(app_port)
            relays = {"splice": (splice, splice_port), "swapd": (app, app_port)}
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in relays}
            for number in range(runs + 1):
                for name, (pid, port) in relays.items():
                    result = run_once(pid, port)
                    if number:  # the first run warms up
                        figures[name].append(result)
    medians = {name: tuple(statistics.median(column) for column in zip(*rows, strict=True)) for name, rows in figures.items()}
    return report(medians, as_json=as_json)


def report(medians: dict[str, tuple[float, ...]], *, as_json: bool) -> int:
    base = medians["splice"]
    ratios = {name: [figure / of for figure, of in zip(row, base, strict=True)] for name, row in medians.items()}
    if as_json:
        print(json.dumps({"us": medians, "ratios": ratios}))
    else:
        print(f"{'relay':12} {'us/request':>11} {'ratio':>6} {'us/chunk':>9} {'ratio':>6}")
        for name, (per_request, per_chunk) in medians.items():
            print(f"{name:12} {per_request:11.1f} {ratios[name][0]:6.2f} {per_chunk:9.2f} {ratios[name][1]:6.2f}")
        print(f"targets: at most {TARGET_REQUEST} a request, {TARGET_CHUNK} a chunk")
    return 0 if ratios["swapd"][0] <= TARGET_REQUEST and ratios["swapd"][1] <= TARGET_CHUNK else 1


if __name__ == "__main__":
    sys.exit(main())
