"""A supervisor without a scheduler, an upstream that does as told, and swapd's real server around them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop

from swapd.core.naming import Names
from swapd.core.spec import RouteSpec
from swapd.errors import InstanceDied, ShuttingDown, SwapdError
from swapd.proxy.activity import Activities
from swapd.proxy.app import build_app
from swapd.proxy.directory import Directory
from swapd.proxy.listen import parse_listen
from swapd.proxy.peers import Peers
from swapd.proxy.serve import serve, server_config
from swapd.proxy.settings import ProxySettings
from swapd.supervisor.ports import ActivityLog, Upstream
from swapd.supervisor.tickets import Ticket


class FakeSupervisor:
    """Grants at once, unless a model is ``held`` or ``refusals`` has an error for it."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self.upstreams = dict(upstreams)
        self.generations = dict.fromkeys(upstreams, 1)
        self.held: set[str] = set()
        self.full: set[str] = set()
        self.refusals: dict[str, SwapdError] = {}
        self.waiting: list[Ticket] = []
        self.open: list[Ticket] = []
        self.requested: list[str] = []
        self.closed: list[tuple[str, bool, float]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.known = True
        self.loads: dict[str, tuple[float, float]] = {}
        self.states: dict[str, str] = dict.fromkeys(upstreams, "ready")
        self.last_words = "ggml_cuda: out of memory"
        self.on_request: Callable[[str], None] = lambda model: None
        self.news: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._listeners: list[Callable[[str, int, SwapdError | None], None]] = []

    def request(self, model: str, *, rid: str, prompt_tokens: int = 0) -> Ticket:
        self.on_request(model)
        self.requested.append(model)
        return self._ticket(model, rid)

    def load(self, model: str, *, rid: str, preload: bool = False) -> Ticket:
        self.calls.append(("load", model))
        return self._ticket(model, rid)

    def peek(self, model: str) -> Ticket | None:
        return self._ticket(model, "peek") if self.states[model] == "ready" else None

    def let_go(self, model: str) -> None:
        self.held.discard(model)
        for ticket in [one for one in self.waiting if one.model == model]:
            self.waiting.remove(ticket)
            ticket.grant(self.upstreams[model], self.generations[model])

    def refuse_waiting(self, error: SwapdError) -> None:
        while self.waiting:
            ticket = self.waiting.pop()
            self.open.remove(ticket)
            ticket.refuse(error)

    def restart(self, model: str, error: SwapdError | None) -> None:
        """What a stop does: connections are closed first; the next grant is another generation."""
        for listener in self._listeners:
            listener(model, self.generations[model], error)
        self.generations[model] += 1

    async def unload(self, model: str, *, force: bool = False, wait: bool = True) -> None:
        self.calls.append(("unload", model, force, wait))
        self.states[model] = "stopped"

    async def death(self, model: str, generation: int) -> InstanceDied:
        return InstanceDied(f"{model} died: signal SIGKILL", stderr_tail=self.last_words)

    def add_retire_listener(self, listener: Callable[[str, int, SwapdError | None], None]) -> None:
        self._listeners.append(listener)

    def status(self) -> dict[str, Any]:
        gpu = {"id": "GPU-0", "index": 0, "name": "sim", "total_mib": 16384, "free_mib": 15000, "headroom_mib": 1024}
        ram = {"total_mib": 32000, "available_mib": 30000, "headroom_mib": 1024}
        models = [
            {
                "id": model,
                "state": state,
                "active": 1,
                "queued": 0,
                "loads": 2,
                "load_s": 1.5,
                "reserved_mib": {"GPU-0": 9},
                "measured_mib": {},
                "ram_mib": 0,
                "context_saved": False,
                "n_ctx": None,
                "args": [],
                **dict.fromkeys(("reason", "pid", "progress", "idle_s", "loaded_s", "group", "last_error")),
            }
            for model, state in self.states.items()
        ]
        return {"devices": [gpu], "ram": ram, "models": models, "known": self.known}

    def explain(self, model: str) -> Mapping[str, Any]:
        room = {"needed_mib": {"GPU-0": 9}, "available_mib": {"GPU-0": 99}, "args": []}
        return {
            "model": model,
            "state": self.states[model],
            "action": "start",
            "evicts": [],
            "why": "it fits",
            "args": [],
            **room,
        }

    def state_of(self, model: str) -> str:
        return self.states[model]

    def has_place(self, model: str) -> bool:
        return self.states[model] == "ready" and model not in self.full

    def outlook(self, model: str, rid: str) -> str:
        return "loading, 42%"

    def load_span(self, model: str) -> tuple[float, float]:
        return self.loads.get(model, (0.0, 0.0))

    def n_ctx(self, model: str) -> int:
        return 0

    def models(self) -> list[str]:
        return list(self.upstreams)

    def devices_known(self) -> bool:
        return self.known

    def log(self, model: str) -> bytes:
        return b"\x1b[32mloading\x1b[0m \xff\n"

    async def follow(self, model: str) -> AsyncIterator[bytes]:
        yield b"first\n"
        await asyncio.sleep(0.05)
        yield b"second\n"

    async def changes(self) -> AsyncIterator[Mapping[str, Any]]:
        while True:
            yield await self.news.get()

    async def shutdown(self) -> None:
        self.calls.append(("shutdown",))

    def shutdown_now(self) -> None:
        self.calls.append(("shutdown_now",))

    def _ticket(self, model: str, rid: str) -> Ticket:
        ticket = Ticket(rid, model, self._close)
        if model in self.refusals:
            ticket.refuse(self.refusals[model])
            return ticket
        self.open.append(ticket)
        if model in self.held:
            self.waiting.append(ticket)
        else:
            ticket.grant(self.upstreams[model], self.generations[model])
        return ticket

    def _close(self, ticket: Ticket, served: bool, prefill_tps: float) -> None:
        self.open.remove(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        self.closed.append((ticket.model, served, prefill_tps))


@dataclass
class Call:
    """A request as an upstream got it, and the way to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    number: int
    connection: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def json(self, value: object, status: str = "200 OK", extra: str = "") -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def hung_up(self) -> None:
        """Until the other side closes."""
        await self.reader.read(1)


Behaviour = Callable[[Call], Awaitable[None]]


@dataclass
class StubUpstream:
    """An HTTP server on a unix socket; returning False from its behaviour's connection closes it."""

    behaviour: Behaviour
    path: str = ""
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.ensure_future(self.serve_one(reader, writer)))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while call := await self._read(reader, writer, connection):
                self.calls.append(call)
                await self.behaviour(call)
        except (ConnectionError, asyncio.IncompleteReadError, RuntimeError):  # uvloop raises the last on closed ones
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> Call | None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head.decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = line.split(" ")
        return Call(method, target, headers, body, len(self.calls) + 1, connection, reader, writer)


@dataclass
class World:
    """Everything of one test."""

    port: int
    supervisor: FakeSupervisor
    upstream: StubUpstream
    directory: Directory

    async def ask(
        self, path: str, body: object = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One whole exchange on a connection of its own."""
        client = await self.client()
        await client.send(path, body, method=method, headers=headers)
        try:
            return await client.reply(method)
        finally:
            client.close()

    async def chat(self, model: str = "a", *, stream: bool = False, **headers: str) -> Reply:
        return await self.ask("/v1/chat/completions", {"model": model, "stream": stream}, headers=headers)

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        return Client(reader, writer)


@dataclass
class Reply:
    """``whole``: the answer ended as HTTP says, not by a cut."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """A client that sees the bytes as they are."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(
        self, path: str, body: object = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1"]
        given = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        lines += [f"{name}: {value}" for name, value in given.items()]
        if data or method == "POST":
            lines.append(f"content-length: {len(data)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *lines = raw.decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        return int(line.split(" ")[1]), headers

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self, method: str = "GET") -> Reply:
        status, headers = await self.head()
        body = b""
        try:
            if method == "HEAD" or status == 204:
                return Reply(status, headers, b"", whole=True)
            if headers.get("transfer-encoding") == "chunked":
                while chunk := await self.chunk():
                    body += chunk
            else:
                body = await self.reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return Reply(status, headers, body, whole=False)
        return Reply(status, headers, body, whole=True)

    def close(self) -> None:
        self.writer.close()


ROUTES = {
    "a": RouteSpec("a"),
    "b": RouteSpec("b"),
    "org/model:q4 k": RouteSpec("org/model:q4 k"),
}


@asynccontextmanager
async def world(
    behaviour: Behaviour,
    routes: Mapping[str, RouteSpec] | None = None,
    activity: ActivityLog | None = None,
    names: Names | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """swapd's own uvicorn on a free port, and one stub upstream for all models; the peers of ``names`` are asked."""
    known = ROUTES if routes is None else routes
    with tempfile.TemporaryDirectory() as folder:
        stub = StubUpstream(behaviour, os.path.join(folder, "up.sock"))
        upstream = await asyncio.start_unix_server(stub.accept, stub.path)
        supervisor = FakeSupervisor(dict.fromkeys(known, Upstream(path=stub.path)))
        listed = tuple(id_ for id_, route in known.items() if not route.unlisted)
        names = names or Names(tuple(known), unlisted=frozenset(known) - frozenset(listed))
        directory = Directory(names, known, supervisor, Peers(names.peers))  # type: ignore[arg-type]
        asking = asyncio.ensure_future(directory.peers.watch())
        activities = Activities(supervisor, activity)  # type: ignore[arg-type]
        app = build_app(supervisor, known, ProxySettings(**settings), directory, activities)  # type: ignore[arg-type]
        config = server_config(app)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        config.port = 0
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield World(port, supervisor, stub, directory)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await stub.close()
            upstream.close()
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await until(lambda: not server.server_state.tasks and not server.server_state.connections)


async def until(happened: Callable[[], object], within_s: float = 3.0) -> None:
    """Wait for something that must happen soon."""
    async with asyncio.timeout(within_s):
        while not happened():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.002)


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that swapd runs on; whatever the loop complains of fails it."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(20):
                await test(*args, **named)

        uvloop.run(watched())
        assert not complaints, complaints

    return run


class StoppingSupervisor(FakeSupervisor):
    """Drains as the real one does: running requests get ``drain_s``, then end with an error."""

    def __init__(self, upstreams: Mapping[str, Upstream], drain_s: float) -> None:
        super().__init__(upstreams)
        self.drain_s = drain_s

    async def shutdown(self) -> None:
        print("shutdown", flush=True)
        self.refusals = dict.fromkeys(self.upstreams, ShuttingDown("swapd is stopping"))
        with suppress(TimeoutError):
            await until(lambda: not self.open, self.drain_s)
        self.restart("a", ShuttingDown("swapd is stopping"))
        print("children stopped", flush=True)

    def shutdown_now(self) -> None:
        print("shutdown now", flush=True)


async def _serve(listen: str, upstream: str, drain_s: float) -> None:
    supervisor = StoppingSupervisor({"a": Upstream(path=upstream)}, drain_s)
    app = build_app(supervisor, {"a": RouteSpec("a")}, ProxySettings())  # type: ignore[arg-type]
    await serve(app, parse_listen(listen), supervisor, lambda url: print(url, flush=True))  # type: ignore[arg-type]


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
