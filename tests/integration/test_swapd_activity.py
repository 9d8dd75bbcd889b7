"""What the real swapd remembers of requests, with real processes behind it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.integration.swapd_process import Swapd, wait_for

KEY = {"Authorization": "Bearer boss"}


def rows(swapd: Swapd, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = swapd.get(f"/api/activity{query}").json["requests"]
    return found


def test_requests_are_told_with_waits_tokens_and_rates(tmp_path: Path) -> None:
    models = {
        "a": {"knobs": {"LOAD_S": 0.6}, "vram": "6000 MiB"},
        "b": {"knobs": {"LOAD_S": 0.3}, "vram": "6000 MiB"},
    }
    with Swapd(tmp_path, models) as swapd:
        assert swapd.chat("a", max_tokens=5).status == 200
        stream = swapd.stream("a", max_tokens=6)
        assert stream.rest()[1]
        assert swapd.chat("b").status == 200
        assert swapd.post("/v1/embeddings", {"model": "b", "input": "x"}).status == 200
        assert swapd.chat("nope").status == 404
        wait_for(lambda: len(rows(swapd)) == 5)
        nope, embedded, other, streamed, first = rows(swapd)
        assert (first["model"], first["status"], first["outcome"], first["stream"]) == ("a", 200, "ok", False)
        assert first["load_s"] > 0.5
        assert first["total_s"] >= first["load_s"] + first["queue_s"]
        assert (first["prompt_tokens"], first["cached_tokens"], first["completion_tokens"]) == (11, 4, 5)
        assert (first["prefill_s"], first["decode_s"], first["decode_tps"]) == (0.005, 0.025, 200.0)
        assert (streamed["stream"], streamed["completion_tokens"], streamed["load_s"]) == (True, 6, 0)
        assert 0 < streamed["first_byte_s"] <= streamed["total_s"]
        assert other["queue_s"] > 0 and other["load_s"] > 0.2, "a had to go first"
        assert (embedded["prompt_tokens"], embedded["completion_tokens"]) == (3, None)
        assert (nope["model"], nope["asked"], nope["error"]) == ("", "nope", "model_not_found")
        assert [row["model"] for row in rows(swapd, "?model=a&limit=1")] == ["a"]

        told = swapd.cli("status", COLUMNS="80").stdout
        assert max(map(len, told.splitlines())) <= 80, told
        assert "LAST ANSWERS" in told and "200.0 t/s" in told and "36%" in told
        assert 'swapd_generation_tokens_total{model="a"} 11.0' in swapd.get("/metrics").text

        assert swapd.chat("b").status == 200  # is written at the end, too
        swapd.signal()
        swapd.wait_ended()
        db = sqlite3.connect(swapd.state_dir / "activity.sqlite")
        assert db.execute("SELECT count(*) FROM requests WHERE model = 'b'").fetchone() == (3,)
        db.close()


def test_rows_outlive_a_restart_and_a_spoilt_file_costs_only_rows(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}) as swapd:
        assert swapd.chat("a").status == 200
        wait_for(lambda: rows(swapd))
        (row,) = rows(swapd)
        swapd.signal()
        swapd.wait_ended()
        swapd.start()
        assert rows(swapd) == [row]
        swapd.signal()
        swapd.wait_ended()
        for name in ("activity.sqlite-wal", "activity.sqlite-shm"):
            (swapd.state_dir / name).unlink(missing_ok=True)
        (swapd.state_dir / "activity.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
        swapd.start()
        assert swapd.chat("a").status == 200
        assert rows(swapd) == []
        assert "the activity of late is not kept" in swapd.log_file.read_text()


def test_operator_ends_a_request_that_waits_and_one_that_runs(tmp_path: Path) -> None:
    models = {"a": {"knobs": {"TOKENS": 1000, "TOK_S": 20}, "concurrency": 1}}
    with Swapd(tmp_path, models, server={"admin_keys": ["boss"]}) as swapd:
        stream = swapd.stream("a")
        stream.events(3)
        waiting = swapd.chat_later("a")

        def active() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = swapd.get("/api/activity").json["active"]
            return found

        wait_for(lambda: [one["state"] for one in active()] == ["answering", "queued"])
        runs, waits = (one["rid"] for one in active())
        assert swapd.post(f"/api/requests/{waits}/cancel").status == 401
        assert swapd.ask("POST", f"/api/requests/{waits}/cancel", headers=KEY).status == 200
        ended = waiting.result(10)
        assert (ended.status, ended.json["error"]["code"]) == (499, "cancelled")
        assert swapd.ask("POST", f"/api/requests/{runs}/cancel", headers=KEY).status == 200
        text, whole = stream.rest()
        assert '"code": "cancelled"' in text and not whole
        wait_for(lambda: swapd.model("a")["active"] == 0)
        wait_for(lambda: [row["outcome"] for row in rows(swapd)] == ["cancelled", "cancelled"])
        assert swapd.ask("POST", f"/api/requests/{runs}/cancel", headers=KEY).status == 404
        assert swapd.model("a")["state"] == "ready"


def test_captured_bodies_are_for_the_admin_key(tmp_path: Path) -> None:
    server = {"admin_keys": ["boss"], "capture": True}
    with Swapd(tmp_path, {"a": {}}, server=server) as swapd:
        assert swapd.chat("a", secret="of the prompt").status == 200
        assert swapd.get("/api/captures").status == 401
        (head,) = swapd.ask("GET", "/api/captures", headers=KEY).json["captures"]
        whole = swapd.ask("GET", f"/api/captures/{head['rid']}", headers=KEY).json
        assert "of the prompt" in whole["request"]["text"] and "tok0" in whole["response"]["text"]
        files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "swapd.toml"]
        assert not [path for path in files if b"of the prompt" in path.read_bytes()]
