"""What was measured, in SQLite: footprints and load times, by what decides them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOADS_KEPT: Final = 5
"""The largest of the last so many loads counts."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS loads (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    run TEXT NOT NULL,
    idle TEXT NOT NULL,
    peak TEXT NOT NULL,
    load_s REAL NOT NULL,
    worked INTEGER NOT NULL,
    UNIQUE (key, run)
);
CREATE INDEX IF NOT EXISTS loads_by_key ON loads (key, id);
"""


@dataclass(frozen=True, slots=True)
class Load:
    """One measured load: bytes by device id when idle and at the most, seconds, and whether a long request ran."""

    idle_bytes: Mapping[str, int]
    peak_bytes: Mapping[str, int]
    load_s: float
    worked: bool


class Store:
    """One file, one connection, used from one thread. ``path`` None keeps everything in memory."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=0.2)
        if path is not None:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
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
        )
        self._db.execute(
            "INSERT INTO loads (key, run, idle, peak, load_s, worked) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key, run) DO UPDATE SET idle = excluded.idle, peak = excluded.peak, worked = excluded.worked",
            values,
        )
        keep = "SELECT id FROM loads WHERE key = ? ORDER BY id DESC LIMIT ?"
        self._db.execute(f"DELETE FROM loads WHERE key = ? AND id NOT IN ({keep})", (key, key, LOADS_KEPT))

    def loads(self, key: str) -> list[Load]:
        """The last loads of a key, newest first."""
        rows = self._db.execute(
            "SELECT idle, peak, load_s, worked FROM loads WHERE key = ? ORDER BY id DESC", (key,)
        ).fetchall()
        return [Load(json.loads(idle), json.loads(peak), load_s, bool(worked)) for idle, peak, load_s, worked in rows]
