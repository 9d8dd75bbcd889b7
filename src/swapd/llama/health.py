"""Small questions to a child: one HTTP GET over its socket or port, without an HTTP client's weight."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

from swapd.core.endpoint import Upstream

LONGEST_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code and body of one answer."""

    status: int
    body: bytes


async def get(upstream: Upstream, path: str, api_key: str, timeout_s: float) -> Answer | None:
    """Ask; ``None`` if nobody answers in time. Never raises for what the child does."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        async with asyncio.timeout(timeout_s):
            return await _get(upstream, path, api_key)
    return None


async def _get(upstream: Upstream, path: str, api_key: str) -> Answer:
    if upstream.path:
        reader, writer = await asyncio.open_unix_connection(upstream.path)
    else:
        reader, writer = await asyncio.open_connection(upstream.host, upstream.port)
    try:
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}Connection: close\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        return Answer(int(head.split(None, 2)[1]), await _body(reader, head))
    finally:
        writer.transport.abort()


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    """The body by its length, else to the end of the connection (chunked bodies come with their frames off)."""
    fields = dict(line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line)
    if "chunked" in fields.get("transfer-encoding", ""):
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        return b"".join(parts)
    if "content-length" in fields:
        return await reader.readexactly(min(int(fields["content-length"]), LONGEST_ANSWER_BYTES))
    return await reader.read(LONGEST_ANSWER_BYTES)


async def read_ctx(upstream: Upstream, api_key: str, timeout_s: float = 1.0) -> int:
    """Tokens of context of all slots together, from ``/props``; 0 if it does not tell."""
    answer = await get(upstream, "/props", api_key, timeout_s)
    if answer is None or answer.status != 200:
        return 0
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        props = json.loads(answer.body)
        return int(props["default_generation_settings"]["n_ctx"])
    return 0
