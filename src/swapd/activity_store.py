"""The requests of late, in SQLite: handed over at once, written a second later by a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import structlog

from swapd.core.activity import EndedRequest

KEPT: Final = 10_000
"""Rows; older ones go."""
BATCH: Final = 100
DELAY_S: Final = 1.0
"""A row waits so long for others, or until there are ``BATCH``."""

_COLUMNS: Final = ", ".join(EndedRequest._fields)
_ROW: Final = f"({', '.join('?' * len(EndedRequest._fields))})"
VERSION: Final = crc32(_COLUMNS.encode()) & 0x7FFF_FFFF
"""Of the layout: a file that has other columns begins anew."""

log = structlog.get_logger(__name__)


class ActivityStore:
    """Implements ``supervisor.ports.ActivityLog``; ``path`` None keeps everything in memory.

    A disk that is full or locked costs rows, never a request: it is said once, and again after it went well.
    """

    def __init__(self, path: Path | None, *, kept: int = KEPT, delay_s: float = DELAY_S) -> None:
        self._path, self._kept, self._delay_s = path, kept, delay_s
        self._rows: deque[EndedRequest] = deque()
        self._hurry = threading.Event()
        self._failing = self._closed = False
        self._db: sqlite3.Connection | None = None  # the thread's alone
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="activity")

    def record(self, ended: EndedRequest) -> None:
        """Take a row; never blocks, never raises."""
        if self._closed:
            return
        rows = self._rows
        rows.append(ended)
        waiting = len(rows)
        if waiting == 1:
            self._thread.submit(self._write_later)
        elif waiting == BATCH:
            self._hurry.set()

    async def recent(self, *, limit: int, model: str = "", since: float = 0.0) -> Sequence[EndedRequest]:
        """The last rows, newest first: of one model, or that came at ``since`` (seconds of the epoch) or later."""
        self._hurry.set()
        return await asyncio.wrap_future(self._thread.submit(self._read, limit, model, since))

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._closed = True
        self._hurry.set()
        self._thread.submit(self._end)
        self._thread.shutdown()

    # in the thread

    def _write_later(self) -> None:
        if self._rows:
            self._hurry.wait(self._delay_s)
            self._write()

    def _write(self) -> None:
        self._hurry.clear()
        batch: list[EndedRequest] = []
        while self._rows:
            batch.append(self._rows.popleft())
        if not batch:
            return
        try:
            db = self._opened()
            with db:
                for start in range(0, len(batch), BATCH):
                    rows = batch[start : start + BATCH]  # one statement: the interpreter is given up once, not per row
                    statement = f"INSERT INTO requests ({_COLUMNS}) VALUES {', '.join([_ROW] * len(rows))}"
                    db.execute(statement, list(chain.from_iterable(rows)))
                db.execute("DELETE FROM requests WHERE id <= (SELECT max(id) FROM requests) - ?", (self._kept,))
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs rows only
            self._failed(error, len(batch))
        else:
            self._failing = False

    def _read(self, limit: int, model: str, since: float) -> list[EndedRequest]:
        self._write()
        query = f"SELECT {_COLUMNS} FROM requests WHERE (:model = '' OR model = :model) AND at >= :since"
        values = {"model": model, "since": since, "limit": limit}
        try:
            rows = self._opened().execute(f"{query} ORDER BY id DESC LIMIT :limit", values).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._failed(error, 0)
            return []
        return [_row(row) for row in rows]

    def _end(self) -> None:
        self._write()
        if self._db is not None:
            self._db.close()

    def _failed(self, error: Exception, lost: int) -> None:
        if not self._failing:
            log.warning("the activity of late is not kept", path=str(self._path), error=str(error), rows_lost=lost)
        self._failing = True

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            db = sqlite3.connect(self._path or ":memory:", timeout=1.0)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version != VERSION:  # of another layout: it begins anew
                    db.execute("DROP TABLE IF EXISTS requests")
                    db.execute(f"PRAGMA user_version = {VERSION}")
                db.execute(f"CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, {_COLUMNS})")
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db


def _row(values: Sequence[Any]) -> EndedRequest:
    row = EndedRequest(*values)
    return row._replace(stream=bool(row.stream))
