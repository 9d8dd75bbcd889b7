"""A request's body, read whole before a model is asked for: small in memory, large in a file without a name."""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections.abc import AsyncGenerator
from typing import IO, Final, TypeAlias

from swapd.errors import SwapdError, TooLarge
from swapd.proxy.asgi import HEADERS, Receive, Scope
from swapd.proxy.settings import ProxySettings
from swapd.units import format_size

SPOOLED_BYTES: Final = 8 << 20
"""Larger bodies wait in a file."""
PIECE_BYTES: Final = 1 << 20
"""What is written and read at once, in a thread: the disk may be slow."""


class HungUp(Exception):
    """The client left before its request was here."""


class Spool:
    """A body in a file that has no name, so nothing is left however swapd ends; its owner closes it.

    ``splice`` puts other bytes in the place of some; the file stays as it is.
    """

    def __init__(self, folder: str) -> None:
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0, dir=folder or None)  # noqa: SIM115 - see close
        self._size = 0
        self._replaced: tuple[int, int, bytes] | None = None

    def __len__(self) -> int:
        if self._replaced is None:
            return self._size
        start, end, text = self._replaced
        return self._size - (end - start) + len(text)

    def append(self, data: bytes) -> None:
        """More of the body; blocks."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(data)

    def view(self) -> mmap.mmap:
        """The whole body as it came, to be searched; the caller closes it."""
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def splice(self, start: int, end: int, text: bytes) -> None:
        """Forward ``text`` instead of the bytes from ``start`` to ``end``."""
        self._replaced = start, end, text

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What is forwarded, piece by piece."""
        start, end, text = self._replaced or (self._size, self._size, b"")
        for first, last, then in ((0, start, text), (end, self._size, b"")):
            for position in range(first, last, PIECE_BYTES):
                size = min(PIECE_BYTES, last - position)
                yield await asyncio.to_thread(os.pread, self._file.fileno(), size, position)
            if then:
                yield then

    def close(self) -> None:
        """Give the disk's space back."""
        self._file.close()


Body: TypeAlias = bytes | Spool


async def read_body(scope: Scope, receive: Receive, settings: ProxySettings) -> Body:
    """The whole body.

    Raises:
        TooLarge: it is larger than ``max_body``.
        HungUp: the client left.
        SwapdError: the disk does not take it.
    """
    limit = settings.max_body_bytes
    announced: bytes = scope[HEADERS].get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while size <= SPOOLED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        body: bytes = message.get("body", b"")
        size += len(body)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join([*chunks, body]) if chunks else body
        chunks.append(body)
    try:
        return await _spooled(receive, chunks, limit, settings.spool_dir)
    except OSError as error:
        raise SwapdError(f"a large body could not be kept on disk: {error.strerror}") from error


async def _spooled(receive: Receive, chunks: list[bytes], limit: int, folder: str) -> Spool:
    spool = await asyncio.to_thread(Spool, folder)
    waiting, more = sum(map(len, chunks)), True
    try:
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HungUp
            chunks.append(message.get("body", b""))
            waiting += len(chunks[-1])
            more = message.get("more_body", False)
            if len(spool) + waiting > limit:
                raise _too_large(limit)
            if waiting >= PIECE_BYTES or not more:
                await asyncio.to_thread(spool.append, b"".join(chunks))
                chunks.clear()
                waiting = 0
    except BaseException:
        spool.close()
        raise
    return spool


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {format_size(limit)} ([server] max_body)")
