from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import structlog

from swapd.activity_store import BATCH, VERSION, ActivityStore
from swapd.core.activity import EndedRequest


def row(number: int, model: str = "a") -> EndedRequest:
    return EndedRequest(
        f"r{number}", 1000.0 + number, model, "alias", "pi/1 (local)", "/v1/chat/completions",
        stream=True, status=200, outcome="ok", error=None, total_s=1.5, prompt_tokens=number,
    )  # fmt: skip


def rids(rows: object) -> list[str]:
    return [one.rid for one in rows]  # type: ignore[attr-defined]


async def test_rows_come_back_newest_first_as_they_were(tmp_path: Path) -> None:
    store = ActivityStore(tmp_path / "a.sqlite")
    for number in range(5):
        store.record(row(number, "ab"[number % 2]))
    everything = await store.recent(limit=10)
    assert rids(everything) == ["r4", "r3", "r2", "r1", "r0"]
    assert everything[0] == row(4, "a")
    assert rids(await store.recent(limit=2)) == ["r4", "r3"]
    assert rids(await store.recent(limit=10, model="b")) == ["r3", "r1"]
    assert rids(await store.recent(limit=10, since=1003.0)) == ["r4", "r3"]
    store.close()
    store.record(row(9))  # too late, and no error

    again = ActivityStore(tmp_path / "a.sqlite")
    assert rids(await again.recent(limit=1)) == ["r4"]
    again.close()


async def test_older_rows_go(tmp_path: Path) -> None:
    store = ActivityStore(tmp_path / "a.sqlite", kept=150)
    for number in range(400):
        store.record(row(number))
    assert rids(await store.recent(limit=1000)) == [f"r{n}" for n in range(399, 249, -1)]
    store.close()


def test_rows_are_written_together_by_another_thread(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    store = ActivityStore(path, delay_s=30.0)
    store.record(row(0))
    time.sleep(0.1)
    assert not path.exists()
    for number in range(1, BATCH):
        store.record(row(number))
    for _ in range(200):
        if path.exists() and count(path) == BATCH:
            break
        time.sleep(0.01)
    assert count(path) == BATCH
    store.record(row(BATCH))
    store.close()  # writes what waits, long before its delay is over
    assert count(path) == BATCH + 1


def count(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute("SELECT count(*) FROM requests").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        db.close()


async def test_disk_that_takes_nothing_costs_rows_and_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "folder.sqlite"
    with structlog.testing.capture_logs() as logged:
        store = ActivityStore(path, delay_s=0.0)
        for number in range(3):
            store.record(row(number))
            assert await store.recent(limit=10) == []
        path.parent.mkdir(parents=True)
        store.record(row(7))
        assert rids(await store.recent(limit=10)) == ["r7"]
        store.close()
    assert [entry["event"] for entry in logged] == ["the activity of late is not kept"]


async def test_locked_file_blocks_nobody_but_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    store = ActivityStore(path, delay_s=0.0)
    store.record(row(0))
    await store.recent(limit=1)
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    for number in range(1, 50):
        store.record(row(number))
    assert count(path) == 1, "they were taken while nobody could write"
    other.rollback()
    other.close()
    assert len(await store.recent(limit=100)) == 50
    store.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("activity")]


async def test_file_of_another_layout_begins_anew(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("CREATE TABLE requests (id INTEGER PRIMARY KEY, nonsense)")
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.commit()
    db.close()
    store = ActivityStore(tmp_path / "a.sqlite")
    store.record(row(1))
    assert rids(await store.recent(limit=5)) == ["r1"]
    store.close()
