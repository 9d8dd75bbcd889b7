"""CPU of a relay per request and per streamed chunk, against a bare splice on the same machine in the same run.

    python -m benchmarks.relay [--launches 3] [--runs 2] [--factory module:function] [--flat-out]

Two loads: JSON requests of 2 KB by 16 clients, and streams of 200 chunks by 32
clients. Each relay is a process of its own whose CPU time the kernel tells;
upstream (on a unix socket) and clients are other processes. Every relay gets the
same load, paced as engines are: an answer takes 50 ms, a token 30 ms, both
+-50 %, so that each event arrives by itself and wakes the relay, as in real use.

``--flat-out`` paces nothing: events arrive in batches, a splice's system calls
become nearly free on some machines, and the ratio is mostly Python against C.

The factory builds the app from the upstream's socket path (it may be a coroutine
function); by default the real app over a supervisor without a scheduler.
``LLAMA_SWAP_BIN`` is run beside if it is set.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.splice import serve_splice

CHUNKS = 200
JSON_CLIENTS, STREAM_CLIENTS = 16, 32


class Pace(NamedTuple):
    """Seconds of an answer and of a chunk, and how much of each load makes a run."""

    think_s: float
    chunk_s: float
    requests: int
    streams: int


PACED, FLAT_OUT = Pace(0.05, 0.03, 1000, 32), Pace(0.0, 0.002, 4000, 320)
TARGET_REQUEST, TARGET_CHUNK = 3.5, 1.5
KEY = "local-key"


# upstream


class Upstream(asyncio.Protocol):
    """Answers a request after a while, or streams chunks."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

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
            self.transport.write(STREAM_HEAD)
            self._chunk()
        else:
            self._after(self.pace.think_s, lambda: self.transport.write(JSON_ANSWER))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds * random.uniform(0.5, 1.5), call)
        else:
            call()

    def _chunk(self) -> None:
        if self.transport.is_closing():
            return
        if self.left:
            self.left -= 1
            self.transport.write(STREAM_CHUNK)
            self._after(self.pace.chunk_s, self._chunk)
        else:
            self.transport.write(STREAM_END)


_EVENT = {
    "choices": [{"finish_reason": None, "index": 0, "delta": {"content": " word"}}],
    "created": 1764450000,
    "id": "chatcmpl-5bN0mYq2Jt4oPz8wXcVbQ1rL7uKd9eHf",
    "model": "a",
    "system_fingerprint": "b11434-0123456",
    "object": "chat.completion.chunk",
}
_TIMINGS = {
    "cache_n": 236, "prompt_n": 1, "prompt_ms": 30.958, "prompt_per_token_ms": 30.958, "prompt_per_second": 32.301,
    "predicted_n": 200, "predicted_ms": 661.064, "predicted_per_token_ms": 3.305, "predicted_per_second": 302.542,
}  # fmt: skip
_USAGE = {"completion_tokens": 200, "prompt_tokens": 237, "total_tokens": 437,
          "prompt_tokens_details": {"cached_tokens": 236}}  # fmt: skip


def _chunk(event: object) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_CHUNK = _chunk(_EVENT)
STREAM_END = (
    _chunk({**_EVENT, "choices": [], "usage": _USAGE, "timings": _TIMINGS}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
_CHOICES = [{"message": {"role": "assistant", "content": "word " * 80}}]
_ANSWER = json.dumps({"id": "x", "choices": _CHOICES, "usage": _USAGE, "timings": _TIMINGS}).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nServer: llama.cpp\r\n"
JSON_ANSWER = b"%sContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s" % (
    _HEAD,
    len(_ANSWER),
    _ANSWER,
)
STREAM_HEAD = _HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def serve_upstream(path: str, port: int, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    if port:
        server = await loop.create_server(lambda: Upstream(pace), "127.0.0.1", port)
    else:
        server = await loop.create_unix_server(lambda: Upstream(pace), path, backlog=512)
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

    from swapd.activity_store import ActivityStore
    from swapd.core.spec import RouteSpec
    from swapd.proxy.activity import Activities
    from swapd.proxy.app import build_app
    from swapd.proxy.settings import ProxySettings
    from swapd.supervisor.ports import Upstream as Where

    supervisor = FakeSupervisor({"a": Where(path=upstream)})
    supervisor.requested = supervisor.closed = _Forgetful()
    settings = ProxySettings(api_keys=(KEY, "another-key"), admin_keys=("admin-key",))
    activity = ActivityStore(Path(upstream).with_name("activity.sqlite"))
    activities = Activities(supervisor, activity)
    return build_app(supervisor, {"a": RouteSpec("a")}, settings, activities=activities)


class _Forgetful(list):
    def append(self, item: object) -> None:
        pass


async def serve_app(upstream: str, port: int, factory: str) -> None:
    from swapd.proxy.listen import Address, bind
    from swapd.proxy.serve import Server, server_config

    module, _, function = factory.partition(":")
    made = getattr(importlib.import_module(module), function)(upstream)
    app = await made if isinstance(made, Awaitable) else made
    await Server(server_config(app), lambda: None).serve(bind(Address(host="127.0.0.1", port=port)))


AS_SERVE_BEGINS = "from swapd.proxy.calm import gather_heap as g; g(); from benchmarks.relay import main; main()"
"""The heap is asked for before anything else is imported: what lies where decides what a wake costs."""


@contextmanager
def process(kind: str, *args: str) -> Iterator[int]:
    """A child of this file that serves; its pid."""
    begin = ["-c", AS_SERVE_BEGINS] if kind == "swapd" else ["-m", "benchmarks.relay"]
    with started([sys.executable, *begin, "--serve", kind, *args]) as pid:
        yield pid


@contextmanager
def llama_swap(folder: str, port: int, *, flat_out: bool) -> Iterator[int]:
    """llama-swap in front of the same upstream, by TCP (it knows no sockets)."""
    pace = "--flat-out " if flat_out else ""
    command = f"{sys.executable} -m benchmarks.relay {pace}--serve upstream - ${{PORT}}"
    config = {"models": {"a": {"cmd": command, "proxy": "http://127.0.0.1:${PORT}", "checkEndpoint": "none"}}}
    path = Path(folder, "llama-swap.yaml")
    path.write_text(json.dumps(config))  # JSON is YAML
    with started([os.environ["LLAMA_SWAP_BIN"], "-config", str(path), "-listen", f"127.0.0.1:{port}"]) as pid:
        yield pid


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, from the scheduler's own clock (nanoseconds, unlike ``stat``)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def wait_for(where: int | str) -> None:
    """Until something listens at a port or socket path."""
    family = socket.AF_INET if isinstance(where, int) else socket.AF_UNIX
    for _ in range(500):
        with socket.socket(family) as probe:
            if probe.connect_ex(("127.0.0.1", where) if isinstance(where, int) else where) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens at {where}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def measure(pid: int, load: Callable[[], None]) -> float:
    before = cpu_s(pid)
    load()
    return cpu_s(pid) - before


def run_once(pid: int, port: int, pace: Pace) -> tuple[float, float]:
    """Microseconds per request and per chunk."""
    requests = measure(pid, lambda: uvloop.run(drive(port, JSON_CLIENTS, pace.requests, stream=False)))
    streams = measure(pid, lambda: uvloop.run(drive(port, STREAM_CLIENTS, pace.streams, stream=True)))
    return requests / pace.requests * 1e6, streams / pace.streams / CHUNKS * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2, help="of each launch")
    parser.add_argument("--factory", default="benchmarks.relay:build_fake")
    parser.add_argument("--flat-out", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "SOCKET", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve_child(*options.serve, options.factory, FLAT_OUT if options.flat_out else PACED)
    medians = compare(options.launches, options.runs, options.factory, flat_out=options.flat_out)
    return report(medians, as_json=options.json)


def serve_child(kind: str, path: str, port: str, factory: str, pace: Pace) -> int:
    if kind == "upstream":
        uvloop.run(serve_upstream(path, int(port), pace))
    elif kind == "splice":
        uvloop.run(serve_splice(path, int(port)))
    else:
        uvloop.run(serve_app(path, int(port), factory))
    return 0


def compare(launches: int, runs: int, factory: str, *, flat_out: bool) -> dict[str, tuple[float, ...]]:
    """Medians of microseconds per request and per chunk, of all runs of all launches.

    Each launch starts the relays anew (where a process's memory lies changes what it costs) and warms them up.
    """
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(launches):
        for name, row in launch(runs, factory, flat_out=flat_out):
            figures.setdefault(name, []).append(row)
    return {name: tuple(map(statistics.median, zip(*rows, strict=True))) for name, rows in figures.items()}


def launch(runs: int, factory: str, *, flat_out: bool) -> Iterator[tuple[str, tuple[float, float]]]:
    """Name and figures of each run of each relay, in turn."""
    options = ["--factory", factory, *(["--flat-out"] if flat_out else [])]
    pace = FLAT_OUT if flat_out else PACED
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = f"{folder}/up.sock"
        stack.enter_context(process("upstream", path, "0", *options))
        wait_for(path)
        relays = {}
        for name in ("splice", "swapd"):
            port = free_port()
            relays[name] = (stack.enter_context(process(name, path, str(port), *options)), port)
        if os.environ.get("LLAMA_SWAP_BIN"):
            port = free_port()
            relays["llama-swap"] = (stack.enter_context(llama_swap(folder, port, flat_out=flat_out)), port)
        for _, port in relays.values():
            wait_for(port)
        for pid, port in relays.values():
            run_once(pid, port, pace._replace(requests=pace.requests // 4, streams=STREAM_CLIENTS // 4))
        for _ in range(runs):
            for name, (pid, port) in relays.items():
                yield name, run_once(pid, port, pace)


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
