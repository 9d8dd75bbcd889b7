"""What was measured, in SQLite: footprints and load times, overheads of GPUs, the engines' own projections."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

LOADS_KEPT: Final = 5
"""The largest of the last so many loads counts."""
OVERHEADS_KEPT: Final = 9
"""The median of the last so many counts: single ones may hold what another program took meanwhile."""
VERSION: Final = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS loads (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    run TEXT NOT NULL,
    idle TEXT NOT NULL,
    peak TEXT NOT NULL,
    load_s REAL NOT NULL,
    worked INTEGER NOT NULL,
    predicted TEXT NOT NULL,
    UNIQUE (key, run)
);
CREATE INDEX IF NOT EXISTS loads_by_key ON loads (key, id);
CREATE TABLE IF NOT EXISTS overheads (
    id INTEGER PRIMARY KEY,
    binary TEXT NOT NULL,
    device TEXT NOT NULL,
    run TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    UNIQUE (binary, device, run)
);
CREATE TABLE IF NOT EXISTS projections (
    key TEXT PRIMARY KEY,
    bytes TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Load:
    """One load: bytes by device at idle and at the peak seen, and what was predicted for idle (empty: nothing).

    ``worked``: requests ran, so the peak is one.
    """

    idle_bytes: Mapping[str, int]
    peak_bytes: Mapping[str, int]
    load_s: float
    worked: bool
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)


class Store:
    """One file, one connection, used from one thread. ``path`` None keeps everything in memory.

    A file that is locked, full or broken costs what was to be written or read, never more: it is logged, and nothing
    is known. ``read_only``: for commands that look at what a running swapd writes.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        if path is not None and read_only:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)
            return
        try:
            self._open(path)
        except sqlite3.Error as error:
            text = "what is measured is not kept and what was measured is not known: the store cannot be opened"
            log.warning(text, path=str(path), error=str(error))
            with contextlib.suppress(AttributeError):
                self._db.close()
            self._open(None)

    def _open(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=0.2)
        if path is not None:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
        self._upgrade()
        self._db.executescript(_SCHEMA)

    def _upgrade(self) -> None:
        """Measurements of an older layout are dropped: they come again with the next loads."""
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version < VERSION:
            self._db.execute("DROP TABLE IF EXISTS loads")
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _ask(self, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            log.warning("the store cannot be used", error=str(error), query=query.split("(")[0].strip())
            return []

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __del__(self) -> None:
        """Whoever looks once need not close it."""
        with contextlib.suppress(AttributeError, sqlite3.Error):  # never opened; garbage of another thread
            self._db.close()

    def record(self, key: str, run: str, load: Load) -> None:
        """Add a load, or replace what is known of it (``run`` names one process); older ones than the last few go."""
        values = (
            key,
            run,
            json.dumps(dict(load.idle_bytes)),
            json.dumps(dict(load.peak_bytes)),
            load.load_s,
            load.worked,
            json.dumps(dict(load.predicted_bytes)),
        )
        self._ask(
            "INSERT INTO loads (key, run, idle, peak, load_s, worked, predicted) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key, run) DO UPDATE SET idle = excluded.idle, peak = excluded.peak, worked = excluded.worked",
            values,
        )
        self._forget("loads", "key = ?", (key,), LOADS_KEPT)

    def loads(self, key: str) -> list[Load]:
        """The last loads of a key, newest first."""
        rows = self._ask(
            "SELECT idle, peak, load_s, worked, predicted FROM loads WHERE key = ? ORDER BY id DESC", (key,)
        )
        return [
            Load(json.loads(idle), json.loads(peak), load_s, bool(worked), json.loads(predicted))
            for idle, peak, load_s, worked, predicted in rows
        ]

    def record_overhead(self, binary: str, device: str, run: str, overhead_bytes: int) -> None:
        """What one load showed of a binary's context and kernels on a GPU; only the first word on a load counts."""
        self._ask(
            "INSERT OR IGNORE INTO overheads (binary, device, run, bytes) VALUES (?, ?, ?, ?)",
            (binary, device, run, overhead_bytes),
        )
        self._forget("overheads", "binary = ? AND device = ?", (binary, device), OVERHEADS_KEPT)

    def overhead(self, binary: str | None, device: str) -> int | None:
        """The median of what the last loads of a binary (``None``: of any) showed; ``None`` if there was none."""
        query = "SELECT bytes FROM overheads WHERE device = :device AND binary = coalesce(:binary, binary)"
        rows = self._ask(query, {"device": device, "binary": binary})
        values = [size for (size,) in rows]
        return int(statistics.median(values)) if values else None

    def record_projection(self, key: str, by_device: Mapping[str, int]) -> None:
        """What the engine itself said it would allocate; empty = it could not say."""
        self._ask("INSERT OR REPLACE INTO projections (key, bytes) VALUES (?, ?)", (key, json.dumps(dict(by_device))))

    def projection(self, key: str) -> dict[str, int] | None:
        """Bytes by device, or ``None`` if the engine was never asked."""
        rows = self._ask("SELECT bytes FROM projections WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def _forget(self, table: str, where: str, values: tuple[str, ...], kept: int) -> None:
        keep = f"SELECT id FROM {table} WHERE {where} ORDER BY id DESC LIMIT ?"
        self._ask(f"DELETE FROM {table} WHERE {where} AND id NOT IN ({keep})", (*values, *values, kept))
