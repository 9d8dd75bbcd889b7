"""A configuration that changes while swapd serves: real swapd, fake engines."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.swapd_process import Swapd, wait_for

TWO = {"a": {"vram": "1000 MiB"}, "b": {"vram": "1000 MiB"}}
STREAM: dict[str, Any] = {"TOKENS": 40, "TOK_S": 10}


def rewritten(one: Swapd, models: dict[str, Any]) -> str:
    """The file's text with other models."""
    one.models = models
    return one.toml(str(one.folder / "llama-server"), str(one.folder / "changing-server"))


def put(one: Swapd, models: dict[str, Any]) -> None:
    """Replace the file as an editor does: a new one, renamed."""
    temporary = one.folder / "new.toml"
    temporary.write_text(rewritten(one, models))
    temporary.replace(one.config)


def ids(one: Swapd) -> set[str]:
    return {m["id"] for m in one.status()["models"]}


def test_unchanged_models_and_their_streams_go_on_and_new_ones_are_there(tmp_path: Path) -> None:
    slow = {"a": {"vram": "1000 MiB", "knobs": STREAM}, "b": {"vram": "1000 MiB"}}
    with Swapd(tmp_path, slow) as one:
        stream = one.stream("a")
        stream.events(3)
        pid = one.model("a")["pid"]
        put(one, {**slow, "c": {"vram": "500 MiB"}})
        wait_for(lambda: "c" in ids(one), why="the file was replaced")
        text, whole = stream.rest()
        assert whole and "[DONE]" in text
        assert one.model("a")["pid"] == pid and one.chat("c").status == 200


def test_a_changed_model_is_replaced_once_it_is_idle(tmp_path: Path) -> None:
    slow = {"a": {"vram": "1000 MiB", "knobs": STREAM}}
    with Swapd(tmp_path, slow) as one:
        stream = one.stream("a")
        stream.events(3)
        pid = one.model("a")["pid"]
        put(one, {"a": {"vram": "1000 MiB", "knobs": {**STREAM, "TOKENS": 3}, "args": "--temp 0"}})
        wait_for(lambda: one.said("configuration reloaded"))
        assert one.model("a")["pid"] == pid, "its stream goes on"
        assert stream.rest()[1]
        wait_for(lambda: one.model("a")["pid"] not in (None, pid) and one.state("a") == "ready", why="it came back")
        assert "--temp" in one.fakes("start", "a")[-1]["argv"]


def test_a_removed_model_ends_its_stream_and_goes(tmp_path: Path) -> None:
    models = {"a": {"vram": "1000 MiB", "knobs": STREAM}, "b": {"vram": "1000 MiB"}}
    with Swapd(tmp_path, models) as one:
        stream = one.stream("a")
        stream.events(3)
        put(one, {"b": {"vram": "1000 MiB"}})
        wait_for(lambda: one.state("a") == "draining")
        assert one.chat("a").status == 404
        assert stream.rest()[1], "never cut"
        wait_for(lambda: ids(one) == {"b"})
        wait_for(lambda: one.free_vram() == 8192)
        assert one.chat("b").status == 200


def test_sighup_reads_the_file_again_even_if_nobody_touched_it(tmp_path: Path) -> None:
    with Swapd(tmp_path, TWO) as one:
        wait_for(lambda: one.get("/ready").status == 200)
        assert not one.said("configuration reloaded")
        os.kill(one.pid, signal.SIGHUP)
        wait_for(lambda: one.said("configuration reloaded"))


@pytest.mark.parametrize("how", ["signal", "command"])
def test_a_broken_file_keeps_the_old_configuration_and_shows_the_error(tmp_path: Path, how: str) -> None:
    with Swapd(tmp_path, TWO) as one:
        good = one.config.read_text()
        one.config.write_text(good + "\n[models.c]\ngguff = 'x'\n")
        if how == "command":
            done = one.cli("reload")
            assert done.returncode == 1 and "gguff" in done.stderr
        else:
            os.kill(one.pid, signal.SIGHUP)
        error = wait_for(lambda: one.status()["config"]["error"])
        assert "gguff" in error and "did you mean 'gguf'" in error
        assert "gguff" in one.cli("status").stdout
        assert ids(one) == {"a", "b"} and one.chat("a").status == 200
        one.config.write_text(good)
        assert one.cli("reload").returncode == 0
        assert one.status()["config"]["error"] is None


def test_reload_says_what_changed_and_what_has_to_wait_for_a_start(tmp_path: Path) -> None:
    json_log = {"log_format": "json"}
    with Swapd(tmp_path, TWO, server=json_log) as one:
        one.server = {**json_log, "log_level": "warning"}
        one.config.write_text(rewritten(one, {"b": {"vram": "1000 MiB", "args": "--temp 0"}, "c": {}}))
        done = one.cli("reload")
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in one.log_file.read_text().splitlines() if "configuration reloaded" in line]
        entry = lines[0]  # whoever was first, the watcher or the command
        told = {key: entry[key] for key in ("added", "changed", "removed", "at_restart")}
        assert told == {"added": ["c"], "changed": ["b"], "removed": ["a"], "at_restart": ["server.log_level"]}
        assert done.stdout == (
            "added: c\nchanged: b\nremoved: a\nnot before swapd is started again: server.log_level\n"
        ), "even if the watcher was first"
        assert ids(one) == {"b", "c"}
        again = one.cli("reload")
        assert "no model was added" in again.stdout


def test_keys_and_headroom_of_the_new_file_hold_at_once(tmp_path: Path) -> None:
    with Swapd(tmp_path, TWO) as one:
        assert one.chat("a").status == 200
        one.server = {"api_keys": ["k"]}
        one.headroom = {"vram": "2 GiB"}
        one.config.write_text(rewritten(one, TWO))
        wait_for(lambda: one.chat("a").status == 401)
        status = one.get("/api/status", authorization="Bearer k").json
        wait_for(lambda: one.get("/api/status", authorization="Bearer k").json["devices"][0]["headroom_mib"] == 2048)
        assert {m["id"] for m in status["models"]} == {"a", "b"}
