"""Our connection to a model's process: HTTP/1.1 on ``asyncio.Protocol`` and ``httptools``, pooled per generation.

Nothing here suspends but ``Pool.connect``: what comes in is handed to the
``Receiver`` right from ``data_received``.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import httptools

from swapd.core.spec import ModelId
from swapd.errors import SwapdError
from swapd.proxy.asgi import Headers
from swapd.proxy.tail import TAIL_BYTES
from swapd.supervisor.ports import Upstream

IDLE_S: Final = 3.0
"""How long an unused connection is kept: llama-server closes its end after 5 s."""
_SLACK_S: Final = 0.05
"""A loop's timer counts from the beginning of its turn, and may come before a clock that was read later is due."""
CONNECT_S: Final = 5.0
"""How long a full listen queue is tried again; every other wait for a process is unbounded."""

FAR_END: Final = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
    )
    if hasattr(socket, name)
)
"""Options of a connection to another machine."""
TAIL_PIECES: Final = 8
"""What is kept of an answer's end: so many pieces, so much of each."""

Key: TypeAlias = tuple[ModelId, int]
Direct: TypeAlias = Callable[[bytes], bool]
"""Takes a whole chunk, framing and all, right away; False: it did not, ``on_data`` has to."""
_SIZES: Final = {b"%x" % size: size for size in range(1, 0x1000)}
_EVENT_END: Final = b"\n\n\r\n"
"""How a chunk ends that is a whole event of a stream, or several."""


class Receiver(Protocol):
    """Who hears of an answer; called from ``data_received``, so it never suspends."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The answer's head; ``on_data`` follows at once."""

    def on_data(self, data: bytes, *, last: bool) -> Direct | None:
        """What came in together, which may be nothing; returns the shortest way for what comes next, if it has one."""

    def on_upgrade(self, headers: Headers, rest: bytes) -> None:
        """The process took an upgrade (101): the connection is the receiver's, who ends it; ``rest`` came already."""

    def on_room(self) -> None:
        """The process takes more of a body again."""

    def on_broken(self, error: SwapdError | None) -> None:
        """The connection ended before the answer did; ``error``: why it was closed, if swapd closed it."""


@functools.cache
def tls_context() -> ssl.SSLContext:
    """How peers are asked over https: the system's certificates. Reads files, once."""
    return ssl.create_default_context()


class Gone(Exception):
    """No connection: the process is dead, or its generation was retired. Nothing was sent."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time; owned by the ``Pool``."""

    def __init__(self, pool: Pool, key: Key) -> None:
        self.used = 0
        self.full = False
        """The process does not keep up with a body: wait for ``on_room``."""
        self.unsent = 0
        """Bytes of a body that ``more`` has still to bring."""
        self.idle_since = 0.0
        self.key = key
        self.tail: deque[bytes] = deque(maxlen=TAIL_PIECES)
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._direct: Direct | None = None
        self._status = 0
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # httptools calls it for each piece; a method of ours would cost more
        self._head_only = self._headed = self._complete = self._keep = self._between = False
        self._parser: Any = httptools.HttpResponseParser(self)

    def ask(self, receiver: Receiver, head: bytes, body: bytes, *, head_only: bool = False, unsent: int = 0) -> None:
        """Write a request; its answer goes to ``receiver``.

        ``head_only``: the answer to HEAD has no body. ``unsent``: so much of the body follows by ``more``.
        """
        self.unsent = unsent
        self._receiver = receiver
        self._direct = None
        self._head_only = head_only
        self.tail = deque(maxlen=TAIL_PIECES)  # the last one is still read by whoever asked before
        self.used += 1
        assert self._transport is not None
        if len(body) > 65536:
            self._transport.writelines([head, body])
        else:
            self._transport.write(head + body)

    def more(self, data: bytes) -> None:
        """The next piece of a body."""
        self.unsent -= len(data)
        assert self._transport is not None
        self._transport.write(data)

    def become(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """From here on another protocol has the bytes, and tells ``Pool.forget`` of the end."""
        assert self._transport is not None
        self.tail.append(b"")
        self._transport.set_protocol(protocol)
        return self._transport

    def pause(self) -> None:
        """Stop reading: the client is slower than the process."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def watch_far_end(self) -> None:
        """Notice within about a minute that another machine is gone, although nothing is said for an hour."""
        found = self._transport.get_extra_info("socket") if self._transport is not None else None
        if found is not None:
            for level, option, value in FAR_END:
                found.setsockopt(level, option, value)

    def abort(self) -> None:
        """Close at once; the receiver hears nothing more."""
        self._receiver = self._direct = None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def retire(self, error: SwapdError | None) -> None:
        """Close at once; a request that still runs ends with ``error``."""
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.on_broken(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        direct = self._direct
        if direct is not None:  # the parser is between two chunks: what is one whole event needs no parsing
            size_end = data.find(b"\r\n", 1, 5)
            if _SIZES.get(data[:size_end]) == len(data) - size_end - 4 and data.endswith(_EVENT_END) and direct(data):
                self.tail.append(data)
                return
        receiver = self._receiver
        if receiver is None:
            self.abort()  # an answer that nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            receiver.on_upgrade(self._headers, data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.retire(None)
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if chunks:
            self.tail.append(body[-TAIL_BYTES:])
            chunks.clear()
        if self._status:
            status, self._status, self._headed = self._status, 0, True
            receiver.on_head(status, self._headers)
            if self._head_only:
                body, self._complete, self._keep = b"", True, False
        if self._complete:
            self._finish(receiver, body)
        elif self._headed:
            direct = receiver.on_data(body, last=False)
            self._direct = direct if self._between and data.endswith(b"\n") else None

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._receiver is not None:
            self._receiver.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        receiver, self._parser = self._receiver, None
        if receiver is None:
            return
        self._receiver = None
        if exc is None and self._headed and not self._framed():
            receiver.on_data(b"", last=True)  # the body ended with the connection
        else:
            receiver.on_broken(None)

    # httptools

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # 1xx are answers on the way, none of the client's business
            self._status = status
            self._keep = self._parser.should_keep_alive()

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        self._complete = self._status != 0 or self._headed

    def _finish(self, receiver: Receiver, data: bytes) -> None:
        self._receiver = self._direct = None
        self._headed = self._complete = self._between = False
        if self._keep and not self.unsent:
            self._pool.release(self)
        else:
            self.abort()
        receiver.on_data(data, last=True)

    def _framed(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)


class Pool:
    """All upstream connections. State: those idle and those in use, by model and generation."""

    def __init__(self) -> None:
        self._idle: dict[Key, list[Connection]] = {}
        self._live: dict[Key, set[Connection]] = {}
        self._retired: dict[ModelId, int] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def idle(self, model: ModelId, generation: int) -> Connection | None:
        """A connection that was used before, newest first; None if there is none that is fresh enough."""
        waiting = self._idle.get((model, generation))
        if not waiting:
            return None
        connection = waiting.pop()
        if time.monotonic() - connection.idle_since < IDLE_S:
            return connection
        connection.abort()  # the newest is too old, so all are
        return None

    async def connect(self, model: ModelId, generation: int, upstream: Upstream) -> Connection:
        """A new connection.

        Raises:
            Gone: if the process does not listen, or was retired meanwhile.
        """
        key = (model, generation)
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._open(key, upstream)
        except (OSError, TimeoutError) as error:
            raise Gone(str(error)) from error
        if generation <= self._retired.get(model, -1):
            connection.abort()
            raise Gone("retired")
        return connection

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = time.monotonic()
        self._idle.setdefault(connection.key, []).append(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(IDLE_S + _SLACK_S, self._sweep)

    def forget(self, connection: Connection) -> None:
        """It is closed, or will be."""
        live = self._live.get(connection.key)
        if live is not None:
            live.discard(connection)
            if not live:
                del self._live[connection.key]
        idle = self._idle.get(connection.key)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def retire(self, model: ModelId, generation: int, error: SwapdError | None) -> None:
        """Close every connection of a generation, and let no new one come; running requests end with ``error``."""
        self._retired[model] = max(generation, self._retired.get(model, -1))
        for connection in list(self._live.get((model, generation), ())):
            connection.retire(error)
        self._idle.pop((model, generation), None)

    def drop_idle(self, model: ModelId, generation: int) -> None:
        """Close what waits for a next request; those that run go on."""
        for connection in list(self._idle.get((model, generation), ())):
            connection.abort()

    def close(self) -> None:
        """Close all."""
        for connections in list(self._live.values()):
            for connection in list(connections):
                connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _open(self, key: Key, upstream: Upstream) -> Connection:
        loop = asyncio.get_running_loop()
        pause_s = 0.002
        while True:
            try:
                if upstream.path:
                    _, connection = await loop.create_unix_connection(lambda: Connection(self, key), upstream.path)
                else:
                    context = tls_context() if upstream.tls else None
                    where = (upstream.host, upstream.port)
                    _, connection = await loop.create_connection(lambda: Connection(self, key), *where, ssl=context)
            except BlockingIOError:  # a unix socket's listen queue is full for the moment
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.1)
            else:
                self._live.setdefault(key, set()).add(connection)
                return connection

    def _sweep(self) -> None:
        self._sweeper = None
        now = time.monotonic()
        for key, waiting in list(self._idle.items()):
            for connection in [one for one in waiting if now - one.idle_since >= IDLE_S]:
                connection.abort()
            if not waiting:
                self._idle.pop(key, None)
        if self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(IDLE_S / 3, self._sweep)
