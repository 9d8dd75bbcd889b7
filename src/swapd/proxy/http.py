"""uvicorn's HTTP protocol with three things that a relay needs on its hot path, and one for websockets.

* A chunk of a body is written by a plain call, framed as it came: a coroutine for each token costs more.
* A hang-up calls back, so that watching for it needs neither a task nor a ``receive``.
* A head and the bytes that come with it are one ``write``: each write is a
  system call, and a wake-up of the client.
* A request to upgrade may take the connection over.

They are ASGI extensions: ``scope["extensions"]`` has them, and an app that finds
none goes by the book. It leans on uvicorn's ``HttpToolsProtocol`` (pinned in
``constraints.txt``); a test runs the two side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from math import inf
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from swapd.proxy.asgi import HANG_UP, ONE_WRITE, TAKE_OVER, WRITE_CHUNK

_JOINED_BYTES: Final = 65536
"""Larger bodies are not copied behind their head."""
_SLACK_S: Final = 0.001
"""uvloop counts milliseconds: a timer may come up to half of one early."""


class Cycle(RequestResponseCycle):
    """One request and its response."""

    on_hang_up: Callable[[], None] | None = None
    task: asyncio.Task[None]

    async def run_in(self, tasks: set[asyncio.Task[None]], app: Any) -> None:
        """Run the app, as one of the tasks that the server waits for."""
        try:
            await self.run_asgi(app)
        finally:
            tasks.discard(self.task)

    def watch(self, on_hang_up: Callable[[], None] | None) -> bool:
        """Call back when the client goes (None: no longer); False if it has gone already."""
        self.on_hang_up = on_hang_up
        if self.flow.read_paused:  # by the last of a body; a hang-up would not be read
            self.flow.resume_reading()
        return not self.disconnected

    def write_chunk(self, chunk: bytes) -> bool:
        """A chunk of a chunked body, framed already, at once; False: nothing was done, ``send`` what is in it."""
        if self.flow.write_paused or self.disconnected or not self.chunked_encoding:
            return False
        self.transport.write(chunk)
        return True

    async def send(self, message: Any) -> None:
        """As uvicorn's; a ``http.response.start`` may carry ``body`` and ``more_body`` too."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            head = self._head(message)
            if "body" in message:
                self._write(head, message["body"], message["more_body"])
            else:
                self.transport.write(head)
        elif message["type"] != "http.response.body" or self.response_complete:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")
        else:
            self._write(b"", message.get("body", b""), message.get("more_body", False))

    def _head(self, message: Any) -> bytes:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected 'http.response.start', got {message['type']!r}")
        self.response_started = True
        self.waiting_for_100_continue = False
        status = message["status"]
        headers = [date_header(), *self.default_headers, *message["headers"]]
        chunked = self.scope["method"] != "HEAD" and status not in (204, 304)
        told = False
        for name, value in headers:
            if name == b"content-length":
                self.expected_content_length, chunked = int(value), False
            elif name == b"connection" and b"close" in value.lower():
                told, self.keep_alive = True, False
        self.chunked_encoding = chunked
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive and not told:
            headers.append((b"connection", b"close"))
        block = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        if block.count(b"\n") != len(headers) or block.count(b"\r") != len(headers):
            raise RuntimeError("a header holds a line break")
        return b"%b%b\r\n" % (STATUS_LINE[status], block)

    def _write(self, head: bytes, body: bytes, more_body: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, framed = 0, b""
        elif self.chunked_encoding:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                framed += b"0\r\n\r\n"
        else:
            framed = body
            self.expected_content_length -= len(body)
        if head and len(framed) <= _JOINED_BYTES:
            self.transport.write(head + framed)
        else:
            if head:
                self.transport.write(head)
            if framed:
                self.transport.write(framed)
        if self.expected_content_length < 0 or (self.expected_content_length and not more_body):
            raise RuntimeError("the body is not as long as Content-Length says")
        if not more_body:
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.scope["extensions"] = {}  # they lead back to this object: garbage that only a collection would find
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


_date: tuple[int, tuple[bytes, bytes]] = (0, (b"date", b""))


def date_header() -> tuple[bytes, bytes]:
    """``Date`` of this second; made when somebody asks, so that an idle swapd need not wake every second for it."""
    global _date
    second = int(time.time())
    if second != _date[0]:
        _date = second, (b"date", formatdate(second, usegmt=True).encode())
    return _date[1]


class HttpProtocol(HttpToolsProtocol):
    """One client's connection. ``timeout_keep_alive_task`` is set once, not for each request."""

    _idle_since = inf

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        cycle: Any = self.cycle
        if cycle is not None and cycle.on_hang_up is not None and not cycle.response_complete:
            cycle.on_hang_up()

    def take_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """The connection is HTTP no longer: what comes from here on is ``protocol``'s, and the answer is given."""
        cycle: Any = self.cycle
        cycle.response_started = cycle.response_complete = True
        cycle.scope["extensions"] = {}
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.transport.set_protocol(protocol)
        return self.transport

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; a request to upgrade that is no websocket keeps its body."""
        self._idle_since = inf
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_body(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """As uvicorn's; the task takes itself off the list, which needs no turn of the loop."""
        cycle.task = self.loop.create_task(cycle.run_in(self.tasks, app))
        self.tasks.add(cycle.task)

    def on_response_complete(self) -> None:
        """As uvicorn's."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_after(self.timeout_keep_alive)

    def _close_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close what has been idle for long enough, else look again: one that is busy, after its next answer."""
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= _SLACK_S:
            super().timeout_keep_alive_handler()
        elif left < inf:
            self._close_after(left)

    def _read_body(self, data: bytes) -> None:
        """The parser takes what follows such a head (Java's client always offers ``h2c``) for no HTTP."""
        framing = [pair for pair in self.headers if pair[0] in (b"content-length", b"transfer-encoding")]
        if not framing:
            return
        self.cycle.more_body = True
        self.cycle.message_event.clear()
        body = _BodyOnly(self)
        self.parser = httptools.HttpRequestParser(body)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % pair for pair in framing]))
        body.skips_head = False
        if data:
            self.data_received(data)

    def on_headers_complete(self) -> None:
        """As uvicorn's, with our ``Cycle`` and without what ``serve`` never uses (limits, its websockets)."""
        scope: Any = self.scope
        http_version = self.parser.get_http_version()
        scope["http_version"] = http_version
        scope["method"] = self.parser.get_method().decode("ascii")
        raw_path, _, scope["query_string"] = self.url.partition(b"?")
        if not raw_path.startswith(b"/"):  # the form that proxies get: scheme and host in front of the path
            raw_path = b"/" + raw_path.partition(b"://")[2].partition(b"/")[2]
        path = raw_path.decode("latin-1")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        running = self.cycle
        cycle = self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["extensions"] = {HANG_UP: cycle.watch, WRITE_CHUNK: cycle.write_chunk, ONE_WRITE: {}}
        if self.parser.should_upgrade():
            scope["extensions"][TAKE_OVER] = self.take_over
        if running is None or running.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # pipelined
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))


class _BodyOnly:
    """What a parser calls: all of it goes to the protocol, but the head that was heard before."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.skips_head = True
        self._protocol = protocol
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self.skips_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.skips_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.skips_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.skips_head:
            self._protocol.on_headers_complete()
