"""The limit of any relay in this language: two protocols on uvloop that hand each other's bytes on, unread."""

from __future__ import annotations

import asyncio


class _Far(asyncio.Protocol):
    """To the upstream."""

    def __init__(self, near: _Near) -> None:
        self.near = near

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near.far = transport

    def data_received(self, data: bytes) -> None:
        self.near.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.near.transport.close()


class _Near(asyncio.Protocol):
    """To the client; one upstream connection for as long as it lives."""

    far: asyncio.Transport | None = None

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: _Far(self), self.upstream)
        for data in self.early:
            self.far.write(data)
        self.early.clear()

    def data_received(self, data: bytes) -> None:
        if self.far is None:
            self.early.append(data)
        else:
            self.far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.far is not None:
            self.far.close()


async def serve_splice(upstream: str, port: int) -> None:
    """Listen for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: _Near(upstream), "127.0.0.1", port)
    await server.serve_forever()
