"""Many requests at once through the real swapd: swapping, fairness, leases."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.integration.swapd_process import Swapd, in_background, together, wait_for

PAIR = {"pair": {"members": ["a", "b"], "swap": True}}
QUICK = {"knobs": {"TOKENS": 4}}


def test_500_interleaved_requests_to_a_swapping_pair_are_all_answered_with_few_swaps(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": QUICK, "b": QUICK}, PAIR) as swapd:

        def client(number: int) -> list[tuple[int, object, str]]:
            answers = []
            for turn in range(25):
                model = "ab"[(number + turn) % 2]
                reply = swapd.chat(model, timeout_s=60)
                answers.append(
                    (reply.status, reply.json.get("model", "") if reply.status == 200 else reply.text, model)
                )
            return answers

        answers = [answer for one in together(20, client) for answer in one]
        assert len(answers) == 500
        assert [answer for answer in answers if answer[0] != 200 or answer[1] != answer[2]] == []
        starts = len(swapd.fakes("start"))
        print(f"starts for 500 requests: {starts}")
        assert starts <= 125
        assert len(swapd.fakes("req")) == 500
        _nothing_cut_short(swapd)


def _nothing_cut_short(swapd: Swapd) -> None:
    """No process saw a client leave, and swapd never cut a request for a stop.

    (That a fake's last "done" is missing means nothing: its answer is out before it writes that.)
    """
    assert not swapd.fakes("disconnect")
    assert swapd.said("cut=False") and not swapd.said("cut=True")


def test_streams_of_a_swapping_pair_are_never_cut(tmp_path: Path) -> None:
    slow = {"knobs": {"TOKENS": 10, "TOK_S": 50}}
    with Swapd(tmp_path, {"a": slow, "b": slow}, PAIR) as swapd:

        def client(number: int) -> None:
            for turn in range(4):
                text, whole = swapd.stream("ab"[(number + turn) % 2]).rest()
                assert whole and text.endswith("data: [DONE]\n\n") and text.count('"content": "tok') == 10

        together(6, client)
        _nothing_cut_short(swapd)


def test_parallel_requests_abab_need_two_starts(tmp_path: Path) -> None:
    slow = {"knobs": {"LOAD_S": 0.2}}
    with Swapd(tmp_path, {"a": slow, "b": slow}, PAIR) as swapd:
        replies = together(6, lambda number: swapd.chat("ab"[number % 2]))
        assert [reply.status for reply in replies] == [200] * 6
        assert len(swapd.fakes("start")) == 2


def test_20_requests_at_once_start_the_model_once(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"preload": True, "knobs": {"LOAD_S": 0.3}}}) as swapd:
        replies = together(20, lambda _number: swapd.chat("a"))
        assert {reply.status for reply in replies} == {200}
        assert len(swapd.fakes("start")) == 1 and len(swapd.fakes("req")) == 20


def test_request_for_b_is_served_in_bounded_time_while_four_clients_loop_on_a(tmp_path: Path) -> None:
    longest_s, max_wait_s, load_s = 0.4, 1.0, 0.3
    models = {
        "a": {"knobs": {"TOKENS": 8, "TOK_S": 8 / longest_s, "LOAD_S": load_s}},
        "b": {"knobs": {"LOAD_S": load_s}},
    }
    scheduling = {"max_wait": f"{max_wait_s:g}s"}
    with Swapd(tmp_path, models, PAIR, scheduling=scheduling) as swapd:
        assert swapd.load("a").status == 200
        over = threading.Event()

        def loop(number: int) -> list[int]:
            time.sleep(number * longest_s / 4)  # never all idle at once
            statuses = []
            while not over.is_set():
                statuses.append(swapd.chat("a").status)
            return statuses

        looping = in_background(together, 4, loop)
        wait_for(lambda: len(swapd.fakes("req", "a")) >= 4)
        waits = []
        for _ in range(2):
            reply = swapd.chat("b")
            assert reply.status == 200
            waits.append(reply.seconds)
            time.sleep(0.3)
        over.set()
        print(f"b waited {waits}")
        slack_s = 5.0  # two noisy cores; never served, it would wait for 30 s
        assert max(waits) < max_wait_s + longest_s + load_s + slack_s
        assert waits[0] > 0.5 * max_wait_s  # it is batching, not order of arrival
        assert {status for one in looping.result(30) for status in one} == {200}


def test_request_lets_the_running_stream_of_the_other_model_end(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {"knobs": {"TOKENS": 30, "TOK_S": 30}}, "b": {}}, PAIR) as swapd:
        stream = swapd.stream("a")
        stream.events(2)
        later = swapd.chat_later("b")
        text, whole = stream.rest()
        assert whole and "[DONE]" in text
        assert later.result(20).status == 200
        assert swapd.fakes("start", "b")[0]["t"] > swapd.fakes("done", "a")[0]["t"]


def test_just_loaded_model_serves_its_own_request_before_it_goes(tmp_path: Path) -> None:
    slow = {"knobs": {"LOAD_S": 0.3}}
    with Swapd(tmp_path, {"a": slow, "b": slow}, PAIR) as swapd:
        first = swapd.chat_later("a")
        swapd.wait_fake("start", "a")
        assert swapd.chat("b").status == 200
        assert first.result(20).status == 200
        assert len(swapd.fakes("start")) == 2


def test_two_different_swaps_at_once_both_end(tmp_path: Path) -> None:
    trio = {"trio": {"members": ["a", "b", "c"], "swap": True}}
    with Swapd(tmp_path, {"a": {}, "b": {}, "c": {}}, trio) as swapd:
        assert swapd.chat("a").status == 200
        replies = together(2, lambda number: swapd.chat("bc"[number]))
        assert [reply.status for reply in replies] == [200, 200]
        assert max(reply.seconds for reply in replies) < 5


def test_idle_counts_from_the_last_byte_and_monitoring_does_not_count(tmp_path: Path) -> None:
    models = {"a": {"idle_timeout": "700ms", "knobs": {"TOKENS": 30, "TOK_S": 20}}}
    with Swapd(tmp_path, models) as swapd:
        stream = swapd.stream("a")  # 1.5 s, twice the idle time
        assert stream.rest()[1]
        ended = time.monotonic()
        while swapd.state("a") == "ready":  # status, metrics, lists, look-ups: nothing of it keeps it loaded
            for path in ("/metrics", "/v1/models", "/upstream/a/props", "/upstream/a/health", "/api/explain/a"):
                assert swapd.get(path).status in (200, 503), path
            assert time.monotonic() - ended < 3
        swapd.wait_state("a", "stopped")
        assert swapd.fakes("exit")[0]["t"] - swapd.fakes("done")[0]["t"] > 0.65
        assert "idle" in swapd.model("a")["reason"]


def test_request_that_meets_an_idle_unload_is_served(tmp_path: Path) -> None:
    """Requests come just when the idle time is over, again and again; stopping takes a while."""
    models = {"a": {"idle_timeout": "100ms", "stop_grace": "60ms", "knobs": {"IGNORE_TERM": 1, "TOKENS": 1}}}
    with Swapd(tmp_path, models) as swapd:
        longest = 0.0
        for turn in range(30):
            reply = swapd.chat("a")
            assert reply.status == 200
            longest = max(longest, reply.seconds)
            time.sleep(0.06 + 0.003 * turn)
        print(f"longest {longest:.3f} s, {len(swapd.fakes('start'))} starts")
        assert longest < 2
        assert 2 < len(swapd.fakes("start")) <= 30


def test_full_queue_is_429_and_queue_timeout_503(tmp_path: Path) -> None:
    scheduling = {"queue_limit": 2, "queue_timeout": "2s"}
    with Swapd(tmp_path, {"a": {"knobs": {"LOAD_S": 4}}}, scheduling=scheduling) as swapd:
        waiting = [swapd.chat_later("a") for _ in range(2)]
        wait_for(lambda: swapd.model("a")["queued"] == 2)
        full = swapd.chat("a")
        assert full.status == 429 and full.error["code"] == "queue_full" and full.headers["retry-after"]
        for one in waiting:
            late = one.result(20)
            assert late.status == 503 and late.error["code"] == "queue_timeout" and late.headers["retry-after"]


def test_beyond_its_concurrency_a_model_queues(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with Swapd(tmp_path, {"a": {"concurrency": 2, "knobs": {"HOLD": go_on}}}) as swapd:
        assert swapd.load("a").status == 200
        waiting = [swapd.chat_later("a") for _ in range(4)]
        wait_for(lambda: (swapd.model("a")["active"], swapd.model("a")["queued"]) == (2, 2))
        go_on.touch()
        assert {one.result(20).status for one in waiting} == {200}


def test_preload_loads_what_fits_in_file_order_and_never_evicts(tmp_path: Path) -> None:
    models = {name: {"vram": "3500 MiB", "preload": True} for name in ("a", "b", "c")}
    with Swapd(tmp_path, models) as swapd:
        wait_for(lambda: swapd.loaded() == {"a", "b"})
        time.sleep(0.3)
        assert swapd.loaded() == {"a", "b"} and not swapd.fakes("start", "c")
