"""Bytes of a file in order, block by block, for a reader that trusts no length it is told."""

from __future__ import annotations

import os
import re
import stat
import struct
from functools import cache
from io import FileIO
from types import TracebackType
from typing import Any, NoReturn

from swapd.errors import GgufError

BLOCK_BYTES = 1 << 20
MAX_HEADER_BYTES = 256 << 20
"""No header read so far had a tenth of it; a larger one is refused rather than walked for minutes."""
RUN = 256
"""Strings that are hopped over by one match."""
LONGEST = 64
"""Bytes of the longest string within such a run; nearly all tokens and merges are shorter."""


class Stream:
    """A window on a file that only moves forward; ``position`` and ``left`` are bytes."""

    def __init__(self, file: FileIO, path: str, size: int) -> None:
        self.path, self.size, self.order = path, size, "<"
        self._file = file
        self._buffer = b""
        self._base = 0  # the file's byte at which the buffer starts
        self._at = 0  # the next byte, within the buffer

    @classmethod
    def open(cls, path: str) -> Stream:
        """Raises: ``GgufError`` if the file cannot be read or is no plain file."""
        try:
            file = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
            status = os.fstat(file.fileno())
        except (OSError, ValueError) as error:
            raise GgufError(f"{path}: {getattr(error, 'strerror', None) or error}", path=path) from error
        if not stat.S_ISREG(status.st_mode):
            file.close()
            raise GgufError(f"{path}: no plain file", path=path)
        return cls(file, path, status.st_size)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        """The file's byte that comes next."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes of the file still to come."""
        return self.size - self.position

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raises: ``GgufError`` that names the file and the byte."""
        offset = self.position if at is None else at
        raise GgufError(f"{self.path}: at byte {offset}: {message}", path=self.path, offset=offset)

    def take(self, count: int) -> bytes:
        """The next bytes; the caller bounds ``count``."""
        self._have(count)
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def skip(self, count: int) -> None:
        """Go on without reading."""
        if count > self.left:
            self.fail(f"the file ends: {count} bytes were announced, {self.left} are left")
        self._at += count
        if self._at > len(self._buffer):
            self._move()

    def unpack(self, code: str) -> Any:
        """One number, by its letter in ``struct``."""
        packed = _number(self.order, code)
        self._have(packed.size)
        (value,) = packed.unpack_from(self._buffer, self._at)
        self._at += packed.size
        return value

    def unpack_many(self, code: str, count: int) -> tuple[Any, ...]:
        """Several numbers; the caller bounds ``count``."""
        return struct.unpack(f"{self.order}{count}{code}", self.take(count * self.width(code)))

    def width(self, code: str) -> int:
        """Bytes of a number."""
        return _number(self.order, code).size

    def skip_strings(self, count: int) -> None:
        """Hop over strings, each a length of 8 bytes and as many bytes.

        A tokenizer has up to 700,000 of them: a loop over them takes 0.1 s, so
        runs of short ones are matched by one regular expression.
        """
        run = _run_of_strings(self.order)
        length = _number(self.order, "Q")
        while count:
            if len(self._buffer) - self._at < RUN * (LONGEST + 8):
                self._fill()
            matched = run.match(self._buffer, self._at) if count >= RUN else None
            if matched:
                self._at = matched.end()
                count -= RUN
                continue
            for _ in range(min(count, RUN)):
                self._have(8)
                (size,) = length.unpack_from(self._buffer, self._at)
                self._at += 8
                self.skip(size)
                count -= 1

    def _have(self, count: int) -> None:
        if len(self._buffer) - self._at >= count:
            return
        if count > self.left:
            self.fail(f"the file ends: {count} bytes were expected, {max(self.left, 0)} are left")
        while len(self._buffer) - self._at < count:
            if not self._fill():
                self.fail("the file became shorter while it was read")

    def _fill(self) -> bool:
        """Let go of what was read, and append a block; whether there was one."""
        if self.position > MAX_HEADER_BYTES:
            self.fail(f"the header is larger than {MAX_HEADER_BYTES >> 20} MiB")
        if self._at:
            self._move()
        try:
            block = os.pread(self._file.fileno(), BLOCK_BYTES, self._base + len(self._buffer))
        except OSError as error:
            self.fail(f"cannot be read: {error.strerror}")
        self._buffer += block
        return bool(block)

    def _move(self) -> None:
        self._base += self._at
        self._buffer = self._buffer[self._at :]
        self._at = 0


@cache
def _number(order: str, code: str) -> struct.Struct:
    return struct.Struct(order + code)


@cache
def _run_of_strings(order: str) -> re.Pattern[bytes]:
    """Exactly ``RUN`` strings of at most ``LONGEST`` bytes, each behind its length."""
    lengths = (size.to_bytes(8, "little" if order == "<" else "big") for size in range(LONGEST + 1))
    choices = b"|".join(re.escape(length) + b".{%d}" % size for size, length in enumerate(lengths))
    return re.compile(b"(?s:%s){%d}+" % (choices, RUN))
