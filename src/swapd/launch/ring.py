"""The last bytes of a model's output, over all its starts; readers may follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

DEFAULT_CAPACITY_BYTES = 1 << 20


class OutputRing:
    """At most ``capacity_bytes`` of output; older bytes are dropped.

    A follower that falls behind by more than that misses bytes, never memory.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._data = bytearray()
        self._total = 0  # bytes ever written: positions never go backwards
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def append(self, data: bytes) -> None:
        """Add bytes and wake the followers."""
        self._total += len(data)
        self._data += data[-self._capacity_bytes :]
        if (excess := len(self._data) - self._capacity_bytes) > 0:
            del self._data[:excess]
        self._wake()

    def snapshot(self) -> bytes:
        """What is kept now."""
        return bytes(self._data)

    def close(self) -> None:
        """End all followers once they have read what is kept."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """What is kept, then new bytes as they come."""
        position = self._total - len(self._data)
        while True:
            if position < self._total:
                oldest = self._total - len(self._data)
                chunk = bytes(self._data[max(position, oldest) - oldest :])
                position = self._total
                yield chunk
            elif self._closed:
                return
            else:
                await self._news()

    async def _news(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


class Tail:
    """The last bytes of one generation's stream, for its obituary."""

    def __init__(self, capacity_bytes: int = 32 << 10) -> None:
        self._capacity_bytes = capacity_bytes
        self._data = bytearray()

    def append(self, data: bytes) -> None:
        self._data += data[-self._capacity_bytes :]
        if (excess := len(self._data) - self._capacity_bytes) > 0:
            del self._data[:excess]

    def text(self) -> str:
        """Decoded at the edge: whatever a child writes, this never fails."""
        return self._data.decode("utf-8", "replace")
