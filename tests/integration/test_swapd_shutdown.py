"""SIGTERM of the real swapd: bounded, and nothing is left."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.integration.swapd_process import Swapd, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_the_running_stream_end_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"TOKENS": 30, "TOK_S": 25}}, "b": {}}) as swapd:
        assert swapd.load("b").status == 200
        stream = swapd.stream("a")
        stream.events(1)
        swapd.signal(number)
        wait_for(lambda: swapd.said("shutting down"))
        text, whole = stream.rest()
        assert whole and "[DONE]" in text
        assert swapd.wait_ended(5) == 0
        assert {row["why"] for row in swapd.fakes("exit")} == {"SIGTERM"} and len(swapd.fakes("exit")) == 2
        assert swapd.fakes("term", "a")[0]["t"] >= swapd.fakes("done", "a")[0]["t"]
        _left_clean(swapd)


def test_new_requests_are_refused_while_it_shuts_down(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"TOKENS": 75, "TOK_S": 25}}}) as swapd:
        waiting = swapd.connect()
        waiting.request("GET", "/health")
        waiting.getresponse().read()
        stream = swapd.stream("a")
        stream.events(1)
        swapd.signal()
        wait_for(lambda: swapd.said("shutting down"))
        body = json.dumps({"model": "a", "messages": []})
        waiting.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        refused = waiting.getresponse()
        assert refused.status == 503 and refused.getheader("Retry-After")
        assert json.loads(refused.read())["error"]["code"] == "shutting_down"
        waiting.close()
        assert stream.rest()[1]
        assert swapd.wait_ended(5) == 0


def test_stream_that_does_not_end_is_cut_when_the_drain_is_over(tmp_path: Path) -> None:
    models = {"a": {"knobs": {"TOKENS": 10000, "TOK_S": 25}}}
    with Swapd(tmp_path, models, server={"drain": "500ms"}) as swapd:
        stream = swapd.stream("a")
        stream.events(1)
        begun = time.monotonic()
        swapd.signal()
        text, whole = stream.rest()
        assert not whole and '"error"' in text and "shutting down" in text
        assert swapd.wait_ended(5) == 0
        assert 0.4 < time.monotonic() - begun < 4
        _left_clean(swapd)


def test_second_signal_ends_at_once_even_with_an_engine_that_ignores_it(tmp_path: Path) -> None:
    models = {"a": {"stop_grace": "60s", "knobs": {"TOKENS": 10000, "TOK_S": 25, "IGNORE_TERM": 1}}}
    with Swapd(tmp_path, models, server={"drain": "60s"}) as swapd:
        stream = swapd.stream("a")
        stream.events(1)
        swapd.signal()
        wait_for(lambda: swapd.said("shutting down"))
        begun = time.monotonic()
        swapd.signal()
        assert swapd.wait_ended(5) == 0
        assert time.monotonic() - begun < 1.5
        assert not stream.rest()[1]
        _left_clean(swapd)


@pytest.mark.parametrize("signals", [1, 2])
def test_signal_while_a_model_loads_ends_the_load(tmp_path: Path, signals: int) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"LOAD_S": 60}}}) as swapd:
        waiting = swapd.chat_later("a")
        swapd.wait_fake("start")
        for _ in range(signals):
            swapd.signal()
        assert swapd.wait_ended(3) == 0
        if signals == 1:
            assert waiting.result(5).error["code"] == "shutting_down"
        _left_clean(swapd)


def test_open_event_streams_do_not_hold_the_shutdown(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}) as swapd:
        events, logs = swapd.connect(), swapd.connect()
        events.request("GET", "/api/events")
        logs.request("GET", "/api/models/a/logs?follow=1")
        assert swapd.load("a").status == 200
        begun = time.monotonic()
        swapd.signal()
        assert swapd.wait_ended(5) == 0
        assert time.monotonic() - begun < 4
        events.close()
        logs.close()


def _left_clean(swapd: Swapd) -> None:
    """No process, no endpoint, no socket, no list of children."""
    swapd.assert_nothing_left()
    assert not (swapd.state_dir / "endpoint").exists()
    assert list((swapd.folder / "run").iterdir()) == []
    assert list((swapd.state_dir / "children").glob("*")) == []
